"""What the unit forbids, and what vLLM needs all the same."""

import json

import pytest

from tests.systemd.conftest import CONFIG, Container

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(180)]

UNITS = "vllm-supervisor.service vllm-supervisor@a.service vllm-supervisor.socket vllm-supervisor-devices.service"
SCRIPT = "/etc/vllm-supervisor/launch.sh"
WRITABLE = (
    "/var/lib/vllm-supervisor",
    "/var/cache/vllm-supervisor",
    "/var/log/vllm-supervisor",
    "/run/vllm-supervisor",
    "/tmp",
    "/dev/shm",
)
CLOSED = (
    "/", "/etc", "/etc/vllm-supervisor", "/usr/bin", "/usr/lib/vllm-supervisor", "/opt", "/srv", "/home", "/root",
    "/boot", "/var/lib", "/var/log", "/run", "/run/systemd", "/sys/fs/cgroup", "/proc/sys/kernel", "/dev",
)  # fmt: skip


def engine_after(service: Container, script: str) -> str:
    """Start an engine by `script`, whose last line becomes the engine, and return its log."""
    service.write(SCRIPT, f'{script}\nexec vllm-supervisor simulate serve "$@"\n')
    service.run("rm -f /var/log/vllm-supervisor/vllm.log")
    service.write(
        "/etc/vllm-supervisor/config.yaml", CONFIG.replace("[vllm-supervisor, simulate, serve]", f"[/bin/sh, {SCRIPT}]")
    )
    service.run("systemctl start vllm-supervisor")
    service.wait_ready()
    return service.run("cat /var/log/vllm-supervisor/vllm.log").stdout


def test_the_units_are_sound(container: Container) -> None:
    """`systemd-analyze verify` has nothing to say, man pages included, about any unit that was installed."""
    done = container.run(f"systemd-analyze verify --man=yes {UNITS}")
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("unit", ["vllm-supervisor.service", "vllm-supervisor@a.service"])
def test_exposure_is_2_at_most(container: Container, unit: str) -> None:
    """`systemd-analyze security` gives both services 2.0 or less."""
    done = container.run(f"systemd-analyze security --no-pager --threshold=20 {unit}", check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_nobody_runs_as_root(ready: Container) -> None:
    """Daemon and engine have the service's user, no capability, no way to gain one, and a system call filter."""
    uid = ready.run("id -u vllm-supervisor").stdout.strip()
    assert uid != "0"
    for pid, name in ready.processes():
        facts = dict(
            line.split(":\t", 1) for line in ready.run(f"cat /proc/{pid}/status").stdout.splitlines() if ":\t" in line
        )
        assert set(facts["Uid"].split()) == {uid}, name
        assert {int(facts[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}, name
        assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2"), name


def limits(text: str) -> dict[str, list[str]]:
    """Return name -> soft and hard limit, from the text of /proc/PID/limits."""
    return {line[:26].strip(): line[26:].split()[:2] for line in text.splitlines()}


def test_limits_reach_the_engine(ready: Container) -> None:
    """vLLM may lock all memory and open 65,535 files, and leaves no core of the size of a model."""
    found = limits(ready.run(f"cat /proc/{ready.engines()[0]}/limits").stdout)
    assert found["Max core file size"] == ["0", "0"]
    # A container without CAP_SYS_RESOURCE cannot lift its own limits, whatever a unit says: then as far as they go.
    most = limits(
        ready.run(
            "systemd-run --quiet --wait --pipe -p LimitMEMLOCK=infinity -p LimitNOFILE=65535 cat /proc/self/limits"
        ).stdout
    )
    for name in ("Max locked memory", "Max open files"):
        assert found[name] == most[name]


def test_an_engine_writes_only_where_it_may(service: Container) -> None:
    """State, cache, logs, run time, /tmp and /dev/shm are writable for the engine, and nothing else is."""
    lines = [
        f"( : > {folder}/probe ) 2>/dev/null && echo 'wrote {folder}' || echo 'refused {folder}'"
        for folder in (*WRITABLE, *CLOSED)
    ]
    told = engine_after(service, "\n".join(lines)).splitlines()
    assert [folder for folder in WRITABLE if f"wrote {folder}" not in told] == []
    assert [folder for folder in CLOSED if f"refused {folder}" not in told] == []
    assert service.run("ls /tmp/probe", check=False).returncode != 0, "/tmp must be the service's own"


def test_an_engine_cannot_reach_for_more(service: Container) -> None:
    """New namespaces, mounts, set-user-id files, other families of sockets and home directories are out of reach."""
    script = """
unshare --user true 2>/dev/null && echo GOT a namespace
mount -t tmpfs none /tmp 2>/dev/null && echo GOT a mount
cp /bin/true /tmp/true && chmod u+s /tmp/true 2>/dev/null && test -u /tmp/true && echo GOT a set-user-id file
python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)' 2>/dev/null && echo GOT packets
python3 -c 'import socket; socket.socket(socket.AF_VSOCK)' 2>/dev/null && echo GOT a vsock
ls ~root/* >/dev/null 2>&1 && echo GOT the home of root
dmesg >/dev/null 2>&1 && echo GOT the kernel log
python3 -c 'import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)' && echo has netlink
python3 -c 'import mmap; mmap.mmap(-1, 4096, prot=7)' && echo has executable memory
"""
    told = engine_after(service, script)
    assert "GOT" not in told
    assert "has netlink" in told
    assert "has executable memory" in told


def test_other_devices_are_refused(service: Container) -> None:
    """A device that is no GPU cannot be opened, whatever its mode."""
    probe = 'python3 -c \'open("/dev/net/tun", "rb+", buffering=0)\''
    service.run("chmod 666 /dev/net/tun")
    if service.run(f"systemd-run --quiet --wait -p DevicePolicy=closed {probe}", check=False).returncode == 0:
        pytest.skip("this kernel attaches no device programs to control groups: DevicePolicy= has no effect here")
    told = engine_after(service, f"{probe} 2>/dev/null && echo OPENED || echo refused tun\n: > /dev/null && echo null")
    assert "refused tun" in told
    assert "null" in told


def test_devices_are_made_before_the_service_starts(service: Container) -> None:
    """The helper unit runs nvidia-modprobe as root, unconfined, each time before the service starts."""
    service.write(
        "/usr/bin/nvidia-modprobe",
        '#!/bin/sh\necho "$@ $(id -u) $(systemctl show -P MainPID vllm-supervisor)" >> /run/modprobe.log\n',
    )
    service.run("chmod 755 /usr/bin/nvidia-modprobe")
    try:
        service.run("systemctl start vllm-supervisor && systemctl restart vllm-supervisor")
        assert service.run("cat /run/modprobe.log").stdout.splitlines() == ["-c 0 -u 0 0"] * 2
    finally:
        service.run("rm -f /usr/bin/nvidia-modprobe /run/modprobe.log")


def test_credentials_reach_the_engine_and_nobody_else(service: Container) -> None:
    """A file that only root can read becomes a variable of the engine, and is shown nowhere."""
    secret = "hf_0123456789abcdefSECRET"
    service.write("/etc/vllm-supervisor/hf-token", f"{secret}\n")
    service.run("chmod 600 /etc/vllm-supervisor/hf-token")
    text = CONFIG.replace("log_file:", 'env: {HF_TOKEN: "${credential:hf-token}"}\n    log_file:')
    service.write("/etc/vllm-supervisor/config.yaml", text)
    with service.drop_in("[Service]\nLoadCredential=hf-token:/etc/vllm-supervisor/hf-token\n"):
        service.run("systemctl start vllm-supervisor")
        service.wait_ready()
        leader = service.status()["pid"]
        assert f"HF_TOKEN={secret}" in service.run(f"tr '\\0' '\\n' < /proc/{leader}/environ").stdout
        shown = [
            json.dumps(service.status()),
            service.run("vllm-supervisor status; vllm-supervisor events; vllm-supervisor logs -n 500").stdout,
            service.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout,
            service.run("journalctl --no-pager -o export -u vllm-supervisor").stdout,
            service.run("systemctl show vllm-supervisor; systemctl status vllm-supervisor").stdout,
            service.run("grep -rsF hf_0123 /run/vllm-supervisor /var/lib/vllm-supervisor /var/log", check=False).stdout,
            service.run(
                "CREDENTIALS_DIRECTORY=/etc/vllm-supervisor VLLM_LOG_FILE=/var/log/v.log vllm-supervisor check"
            ).stdout,
        ]
        assert [text for text in shown if secret in text] == []
        daemon = service.show("MainPID")
        assert secret not in service.run(f"tr '\\0' '\\n' < /proc/{daemon}/environ").stdout
        service.run("systemctl stop vllm-supervisor")


def test_a_missing_credential_is_named(service: Container) -> None:
    """Without the drop-in the daemon says which credential is missing and how to give it, and is not restarted."""
    text = CONFIG.replace("log_file:", 'env: {HF_TOKEN: "${credential:hf-token}"}\n    log_file:')
    service.write("/etc/vllm-supervisor/config.yaml", text)
    assert service.run("systemctl start vllm-supervisor", check=False).returncode != 0
    assert service.show("ExecMainStatus") == "2"
    assert "LoadCredential=" in service.journal()


def test_an_engine_at_its_memory_limit_leaves_the_daemon_alone(service: Container) -> None:
    """The kernel takes the engine, not the daemon, which tells of it and starts the next one."""
    controllers = service.run("cat /sys/fs/cgroup/cgroup.controllers").stdout.split()
    if "memory" not in controllers:
        pytest.skip("this container has no memory controller: its kernel gives it to the old hierarchy")
    greedy = """
test -e /tmp/fed || { : > /tmp/fed; exec python3 -c 'x = []
while True: x.append(bytearray(1 << 24))'; }
"""
    with service.drop_in("[Service]\nMemoryMax=400M\nMemorySwapMax=0\n"):
        daemon = engine_after(service, greedy) and service.show("MainPID")
        status = service.status()
        assert status["last_exit"]["signal"] in (9, "SIGKILL")
        assert status["last_exit"]["diagnosis"]["class"] == "oom_killed"
        assert service.show("MainPID") == daemon
        assert service.show("NRestarts") == "0"
        service.run("systemctl stop vllm-supervisor")
