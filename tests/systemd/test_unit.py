"""The shipped unit under a real PID 1."""

import pytest

from tests.eventually import eventually
from tests.systemd.conftest import CONFIG, SLOW, Container, ready_again

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(180)]


def test_start_returns_when_the_socket_answers_and_status_says_so(service: Container) -> None:
    """READY comes with the control socket, and STATUS follows the engine's state in words."""
    service.run("systemctl start vllm-supervisor")
    assert service.run("vllm-supervisor status --json").returncode == 0
    service.run("vllm-supervisor wait --timeout 30")
    assert service.show("ActiveState") == "active"
    eventually(lambda: "ready" in service.show("StatusText").lower(), what="StatusText says ready")
    assert service.run("vllm-supervisor status --check", check=False).returncode == 0


def test_start_may_wait_for_the_engine(service: Container) -> None:
    """With `systemd.ready_when: engine` a start beyond TimeoutStartSec= returns once the model serves."""
    text = (
        CONFIG.replace("log_file:", 'env: {SIM_LOAD_SECONDS: "4"}\n    log_file:') + "systemd: {ready_when: engine}\n"
    )
    service.write("/etc/vllm-supervisor/config.yaml", text)
    with service.drop_in("[Service]\nTimeoutStartSec=3\n"):
        service.run("systemctl start vllm-supervisor")
        assert service.run("vllm-supervisor status --check", check=False).returncode == 0
        assert service.show("NRestarts") == "0"
        service.run("systemctl stop vllm-supervisor")


def test_start_that_waits_for_an_engine_that_will_not_come(service: Container) -> None:
    """With `systemd.ready_when: engine` it fails at once, says why, and is not begun again."""
    failing = CONFIG.replace("log_file:", 'env: {SIM_EXIT_CODE: "1"}\n    log_file:')
    failing = failing.replace("restart: {", "restart: {never_ready_limit: 1, ")
    service.write("/etc/vllm-supervisor/config.yaml", failing + "systemd: {ready_when: engine}\n")
    try:
        assert service.run("timeout 60 systemctl start vllm-supervisor", check=False).returncode == 1
        assert service.show("ActiveState") == "failed"
        assert service.show("ExecMainStatus") == "10"
        assert service.show("StatusText").startswith("failed: ")
        assert "never got ready" in service.show("StatusText")
        assert service.show("NRestarts") == "0"
    finally:
        service.run("systemctl reset-failed vllm-supervisor")


def test_killed_worker_is_followed_by_one_new_engine(ready: Container) -> None:
    """SIGKILL of a worker makes vLLM exit 0; that is a failure, and one engine follows."""
    before = ready.status()
    worker = next(pid for pid, name in ready.processes() if "Worker" in name)
    ready.run(f"kill -9 {worker}")
    status = ready_again(ready, before["generation"])
    assert status["restarts"]["by_reason"]["crash"] == 1
    assert status["last_exit"]["code"] == 0
    assert len(ready.engines()) == 1


def test_stop_leaves_an_empty_control_group(ready: Container) -> None:
    """`systemctl stop` ends in proof: nothing of the service is left."""
    ready.run("systemctl stop vllm-supervisor")
    assert ready.processes() == []
    assert ready.engines() == []
    assert ready.show("Result") == "success"
    assert ready.show("ExecMainStatus") == "0"


def test_stop_in_the_middle_of_a_start(service: Container) -> None:
    """A stop wins over a start that would take minutes."""
    service.write("/etc/vllm-supervisor/config.yaml", SLOW)
    service.run("systemctl start vllm-supervisor")
    eventually(service.engines, within=20, what="an engine core")
    service.run("systemctl stop vllm-supervisor")
    assert service.processes() == []
    assert service.show("Result") == "success"


def test_restart_in_the_middle_of_a_start(service: Container) -> None:
    """`systemctl restart` while the weights load: the half-started engine is gone before the next is launched."""
    service.write("/etc/vllm-supervisor/config.yaml", SLOW)
    service.run("systemctl start vllm-supervisor")
    (first,) = eventually(service.engines, within=20, what="an engine core")
    service.write("/etc/vllm-supervisor/config.yaml", CONFIG)
    service.run("systemctl restart vllm-supervisor")
    service.wait_ready()
    engines = service.engines()
    assert len(engines) == 1
    assert first not in engines
    assert service.show("NRestarts") == "0"


def test_killed_api_server_takes_its_orphans_along(ready: Container) -> None:
    """kill -9 of vLLM's own process: what it leaves behind is ended before the next engine is launched."""
    before = ready.status()
    (core,) = ready.engines()
    ready.run(f"kill -9 {before['pid']}")
    status = ready_again(ready, before["generation"])
    assert status["last_exit"]["signal"] in (9, "SIGKILL")
    assert ready.engines() != [core]
    assert len(ready.engines()) == 1


def test_killed_daemon_comes_back_with_one_engine(ready: Container) -> None:
    """kill -9 of the daemon: systemd restarts it, and there is one engine, of the new daemon."""
    pid = int(ready.show("MainPID"))
    ready.run(f"kill -9 {pid}")
    eventually(lambda: ready.show("MainPID") not in ("0", str(pid)), within=30, every=0.1)
    eventually(lambda: ready.run("vllm-supervisor wait --timeout 30", check=False).returncode == 0, within=40)
    assert len(ready.engines()) == 1
    assert ready.show("NRestarts") == "1"


def test_a_stopped_daemon_is_found_by_the_watchdog(service: Container) -> None:
    """A daemon that stands still is killed and replaced, engine included; one that lives is left alone."""
    with service.drop_in("[Service]\nWatchdogSec=3\nTimeoutAbortSec=1\n"):
        service.run("systemctl start vllm-supervisor")
        service.wait_ready()
        pid = service.show("MainPID")
        service.run(f"kill -STOP {pid}")
        eventually(lambda: service.show("MainPID") not in ("0", pid), within=30, every=0.1, what="another daemon")
        eventually(lambda: service.run("vllm-supervisor wait --timeout 30", check=False).returncode == 0, within=40)
        assert len(service.engines()) == 1
        assert service.show("NRestarts") == "1"
        assert "Watchdog timeout" in service.journal()
        service.run("systemctl stop vllm-supervisor")


def test_the_kernel_would_take_the_engine_before_the_daemon(ready: Container) -> None:
    """Of the two, the engine has the higher score for running out of memory, by 500."""

    def score(pid: object) -> int:
        return int(ready.run(f"cat /proc/{pid}/oom_score_adj").stdout)

    daemon = score(ready.show("MainPID"))
    assert {score(pid) for pid in (ready.status()["pid"], *ready.engines())} == {daemon + 500}
    # Without CAP_SYS_RESOURCE even systemd cannot lower a score: then it stays as it was.
    able = ready.run("systemd-run --quiet --wait --pipe -p OOMScoreAdjust=-500 cat /proc/self/oom_score_adj").stdout
    assert daemon == int(able)


def test_bad_configuration_is_told_and_not_retried(service: Container) -> None:
    """Status 2 is final for systemd, and the journal has the line that names the key."""
    service.write("/etc/vllm-supervisor/config.yaml", CONFIG.replace("port: 8000", "port: 80000"))
    assert service.run("systemctl start vllm-supervisor", check=False).returncode != 0
    assert service.show("ActiveState") == "failed"
    assert service.show("ExecMainStatus") == "2"
    assert service.show("NRestarts") == "0"
    assert "engine.vllm.port" in service.journal()


def test_second_daemon_exits_3_and_touches_nothing(ready: Container) -> None:
    """The locks hold: a daemon started by hand beside the service changes nothing."""
    before = ready.status()
    command = "RUNTIME_DIRECTORY=/run/vllm-supervisor STATE_DIRECTORY=/var/lib/vllm-supervisor"
    command += " VLLM_LOG_FILE=/var/log/vllm-supervisor/vllm.log"
    done = ready.run(f"{command} vllm-supervisor run -c /etc/vllm-supervisor/config.yaml", check=False)
    assert done.returncode == 3
    assert "vllm-supervisor: " in done.stderr
    assert "Traceback" not in done.stderr
    assert ready.status()["pid"] == before["pid"]
    assert len(ready.engines()) == 1


def test_child_has_no_notify_socket(ready: Container) -> None:
    """What systemd hands to the daemon does not reach vLLM."""
    leader = ready.status()["pid"]
    names = ready.run(f"tr '\\0' '\\n' < /proc/{leader}/environ | cut -d= -f1").stdout.split()
    assert "NOTIFY_SOCKET" not in names
    assert "INVOCATION_ID" not in names
    assert "RUNTIME_DIRECTORY" not in names
    assert "CREDENTIALS_DIRECTORY" not in names
    assert "SUPERVISED_ENGINE" in names


def test_log_lands_where_the_unit_says(ready: Container) -> None:
    """vLLM's output is in the logs directory, and `logs` shows it."""
    assert "startup complete" in ready.run("cat /var/log/vllm-supervisor/vllm.log").stdout
    assert "startup complete" in ready.run("vllm-supervisor logs -n 50").stdout
