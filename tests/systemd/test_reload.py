"""`systemctl reload` under a real PID 1."""

import pytest

from tests.eventually import eventually
from tests.systemd.conftest import CONFIG, Container

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(180)]

PATH = "/etc/vllm-supervisor/config.yaml"


def test_reload_takes_a_good_file(ready: Container) -> None:
    """`systemctl reload` returns when it holds; engine and daemon are the same, and the service is active."""
    before, daemon = ready.status(), ready.show("MainPID")
    ready.write(PATH, CONFIG.replace("port: 8000", "port: 8001\n    concurrency: 77"))
    ready.run("systemctl reload vllm-supervisor")
    after = ready.status()
    assert (after["concurrency"], after["pid"], after["config"]["pending"]) == (77, before["pid"], ["engine.vllm.port"])
    assert (ready.show("MainPID"), ready.show("ActiveState"), ready.show("SubState")) == (daemon, "active", "running")
    assert "need a new engine: reload --restart-engine: engine.vllm.port" in ready.journal()
    ready.run("vllm-supervisor reload --restart-engine")
    assert ready.status()["base_url"] == "http://127.0.0.1:8001"
    assert len(ready.engines()) == 1


def test_reload_fails_for_a_bad_file_and_changes_nothing(ready: Container) -> None:
    """`systemctl reload` fails, the journal has every problem, and STATUS says so until the next good file."""
    before = ready.status()
    ready.write(PATH, CONFIG.replace("port: 8000", "port: 80000"))
    done = ready.run("systemctl reload vllm-supervisor", check=False)
    assert done.returncode != 0
    assert "engine.vllm.port: 80000 is above 65535" in ready.journal()
    assert (ready.show("ActiveState"), ready.show("SubState")) == ("active", "running")
    assert ready.status()["pid"] == before["pid"]
    eventually(lambda: "reload refused: " in ready.show("StatusText"), what="StatusText")
    # One that is no YAML at all, so that not even the socket could be read from it.
    ready.write(PATH, "engine: [\n")
    assert ready.run("systemctl reload vllm-supervisor", check=False).returncode != 0
    assert len(ready.status()["config"]["refused"]) == 1
    ready.write(PATH, CONFIG)
    ready.run("systemctl reload vllm-supervisor")
    clean = f"ready, generation {before['generation']}"
    eventually(lambda: ready.show("StatusText") == clean, what="a clean StatusText")
    assert ready.status()["pid"] == before["pid"]


def test_reload_of_an_instance_reaches_that_one_alone(service: Container) -> None:
    """`systemctl reload vllm-supervisor@small` reads its own file and speaks to its own daemon."""
    service.write("/etc/vllm-supervisor/small.yaml", CONFIG.replace("8000", "8010") + "metrics: {port: 9460}\n")
    service.run("systemctl start vllm-supervisor vllm-supervisor@small")
    service.write("/etc/vllm-supervisor/small.yaml", CONFIG.replace("8000", "8010\n    concurrency: 3"))
    service.run("systemctl reload vllm-supervisor@small")
    small = service.status("--instance small")
    assert (small["concurrency"], small["config"]["pending_daemon"]) == (3, ["metrics.port"])
    assert service.status()["concurrency"] != 3


def test_a_reload_before_the_engine_is_ready_does_not_end_the_wait_for_it(service: Container) -> None:
    """With `ready_when: engine` a SIGHUP during the start is taken, and `systemctl start` still waits."""
    slow = (
        CONFIG.replace("log_file:", 'env: {SIM_LOAD_SECONDS: "3"}\n    log_file:') + "systemd: {ready_when: engine}\n"
    )
    service.write(PATH, slow)
    service.run("systemctl start --no-block vllm-supervisor")
    eventually(lambda: service.show("MainPID") != "0" and service.engines(), within=30, what="a start")
    service.write(PATH, slow.replace("port: 8000", "port: 8000\n    concurrency: 9"))
    service.run("kill -HUP $(systemctl show -P MainPID vllm-supervisor)")
    eventually(lambda: service.status()["concurrency"] == 9, within=20, what="the reload")
    if service.status()["ready"] is False:
        assert service.show("ActiveState") == "activating"
    service.wait_ready()
    eventually(lambda: service.show("ActiveState") == "active", what="active with the engine")


def test_reload_reaches_a_daemon_with_a_socket_of_its_own_whatever_the_file_says(service: Container) -> None:
    """A file that is broken, or gone, and named another socket: refused, and told by all that tell of the service."""
    place = "/run/vllm-supervisor/other.sock"
    own = f"{CONFIG}control: {{socket: {place}}}\n"
    service.write(PATH, own)
    service.run("systemctl start vllm-supervisor")
    service.wait_ready(f"--socket {place}")
    reload = "systemctl reload vllm-supervisor"
    for spoil in (f"echo 'engine: [' > {PATH}", f"rm {PATH}"):
        service.run(spoil)
        assert service.run(reload, check=False).returncode != 0
        assert len(service.status(f"--socket {place}")["config"]["refused"]) == 1
        eventually(lambda: "reload refused: " in service.show("StatusText"), what="StatusText")
        service.write(PATH, own.replace("port: 8000", "port: 8000\n    concurrency: 7"))
        service.run(reload)
        assert service.status(f"--socket {place}")["config"]["refused"] == []
    assert service.run(f"vllm-supervisor events --socket {place}").stdout.count('"config_refused"') == 2
    service.run("systemctl stop vllm-supervisor")
    assert "current.sock" not in service.run("ls /run/vllm-supervisor").stdout


def test_a_credential_that_came_later_is_named_with_what_helps(ready: Container) -> None:
    """`check --against-running` by root leaves the daemon's credentials to it; one that is new wants a restart."""
    ready.write("/etc/vllm-supervisor/key", "sk-first")
    with ready.drop_in("[Service]\nLoadCredential=key:/etc/vllm-supervisor/key\n"):
        ready.write(PATH, CONFIG.replace("port: 8000", "port: 8000\n    api_key: '${credential:key}'"))
        done = ready.run("vllm-supervisor check --against-running", check=False)
        assert done.returncode == 1
        assert "`systemctl restart`" in done.stderr
        ready.run("systemctl restart vllm-supervisor")
        assert "nothing would change" in ready.run("vllm-supervisor check --against-running").stdout
        assert ready.run("vllm-supervisor reload").returncode == 0
