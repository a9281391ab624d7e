"""Instances side by side, and a control socket that systemd holds."""

import json

import pytest

from tests.eventually import eventually
from tests.systemd.conftest import CONFIG, Container

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(180)]


def instance(port: int, metrics: int) -> str:
    return CONFIG.replace("port: 8000", f"port: {port}") + f"metrics: {{port: {metrics}}}\n"


def test_two_instances_side_by_side(service: Container) -> None:
    """Each has its own file, socket, state and log; what one leaves or loses does not touch the other."""
    service.write("/etc/vllm-supervisor/a.yaml", instance(8001, 9501))
    service.write("/etc/vllm-supervisor/b.yaml", instance(8002, 9502))
    service.run("systemctl start vllm-supervisor@a vllm-supervisor@b")
    for name in ("a", "b"):
        service.wait_ready(f"--instance {name}")
    status = {name: service.status(f"--instance {name}") for name in ("a", "b")}
    assert [status[name]["base_url"] for name in ("a", "b")] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    assert len(service.engines()) == 2
    for name in ("a", "b"):
        assert "startup complete" in service.run(f"cat /var/log/vllm-supervisor/{name}/vllm.log").stdout
        service.run(f"test -e /var/lib/vllm-supervisor/{name}/instance-id")

    service.run("runuser -u vllm-supervisor -- touch /dev/shm/left-by-nccl")
    service.run("systemctl stop vllm-supervisor@a")
    now = service.status("--instance b")
    assert (now["ready"], now["pid"]) == (True, status["b"]["pid"])
    assert len(service.engines()) == 1
    service.run("test -e /dev/shm/left-by-nccl")
    service.run("systemctl stop vllm-supervisor@b")
    assert service.engines() == []
    # systemd looks after what a service leaves when the last one of its user is gone.
    gone = "test ! -e /dev/shm/left-by-nccl"
    eventually(
        lambda: service.run(gone, check=False).returncode == 0, within=10, every=0.1, what="shared memory is gone"
    )


def test_an_instance_outlives_the_plain_service(service: Container) -> None:
    """The plain service's directories hold those of instances: its stop leaves them be."""
    service.write("/etc/vllm-supervisor/a.yaml", instance(8001, 9501))
    service.run("systemctl start vllm-supervisor@a vllm-supervisor")
    service.wait_ready("--instance a")
    service.run("systemctl stop vllm-supervisor")
    assert service.status("--instance a")["ready"] is True


def test_an_instance_without_a_file_says_so(service: Container) -> None:
    """`vllm-supervisor@typo` fails at once, and names the file that it looked for."""
    assert service.run("systemctl start vllm-supervisor@typo", check=False).returncode != 0
    assert "/etc/vllm-supervisor/typo.yaml" in service.journal("vllm-supervisor@typo")
    assert service.show("NRestarts", "vllm-supervisor@typo") == "0"


def test_a_client_that_comes_first_starts_the_daemon(service: Container) -> None:
    """With the socket unit the first `status` is answered by a daemon that it started, and a later one again."""
    service.run("systemctl start vllm-supervisor.socket")
    assert service.show("ActiveState") == "inactive"
    owner = service.run("stat -c '%U:%G %a' /run/vllm-supervisor/control.sock").stdout.strip()
    assert owner == "vllm-supervisor:vllm-supervisor 660"
    assert service.status()["state"] in ("starting", "ready")
    assert service.show("ActiveState") == "active"
    service.wait_ready()

    service.run("systemctl stop vllm-supervisor.service")
    assert service.engines() == []
    service.run("test -S /run/vllm-supervisor/control.sock")
    assert service.status()["state"] in ("starting", "ready")
    service.run("systemctl stop vllm-supervisor.socket vllm-supervisor.service")
    service.run("test ! -e /run/vllm-supervisor/control.sock")


def test_a_client_waits_while_the_daemon_restarts(service: Container) -> None:
    """With the socket unit no client is turned away, not even while the daemon is restarted."""
    service.run("systemctl start vllm-supervisor.socket vllm-supervisor.service")
    service.wait_ready()
    asked = service.run(
        "systemctl restart --no-block vllm-supervisor.service; "
        "for i in 1 2 3 4 5 6 7 8; do vllm-supervisor status --json | tr -d '\\n'; echo; done"
    )
    answers = [json.loads(line) for line in asked.stdout.splitlines()]
    assert len(answers) == 8


def test_what_looks_at_an_instance_reads_its_file(service: Container) -> None:
    """`doctor` and `check` take the file of the instance that they are told of, and no other one's in its place."""
    service.write("/etc/vllm-supervisor/a.yaml", instance(8001, 9501))
    service.run("systemctl start vllm-supervisor@a")
    service.wait_ready("--instance a")
    for words in ("doctor --unit vllm-supervisor@a", "doctor --instance a"):
        told = service.run(f"vllm-supervisor {words}", check=False).stdout
        assert "/etc/vllm-supervisor/a.yaml" in told
        (port,) = [line for line in told.splitlines() if line.split()[1] == "port"]
        assert port.endswith("8001 is held by this instance's own engine")
    told = service.run("vllm-supervisor check --against-running --instance a").stdout
    assert "/etc/vllm-supervisor/a.yaml: valid" in told
    assert "/etc/vllm-supervisor/a.yaml: nothing would change" in told
    for words in ("doctor --instance typo", "check --instance typo", "doctor --unit vllm-supervisor@typo"):
        done = service.run(f"vllm-supervisor {words}", check=False)
        assert done.returncode == 2
        assert "/etc/vllm-supervisor/typo.yaml" in done.stderr
