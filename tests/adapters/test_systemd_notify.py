"""What systemd is told, and what it passes."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_supervisor.adapters.systemd import Notifier, listen_fds


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}"


@pytest.fixture
def manager(address: str) -> Iterator[socket.socket]:
    """Stand where systemd would."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        sock.settimeout(10)
        yield sock


def test_each_call_is_one_datagram(address: str, manager: socket.socket) -> None:
    """The verbs are those of sd_notify(3), on a path and on an abstract socket."""
    notifier = Notifier({"NOTIFY_SOCKET": address})
    assert notifier.ready("ready, all is well")
    assert manager.recv(4096) == b"READY=1\nSTATUS=ready, all is well"
    assert notifier.status("one\nREADY=1\r\n two é")
    assert manager.recv(4096).decode() == "STATUS=one READY=1 two é"
    assert notifier.stopping("draining")
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=draining"
    assert notifier.extend_timeout(90.5)
    assert manager.recv(4096) == b"EXTEND_TIMEOUT_USEC=90500000"
    assert notifier.watchdog()
    assert manager.recv(4096) == b"WATCHDOG=1"


def test_reload_carries_the_monotonic_time(address: str, manager: socket.socket) -> None:
    """Type=notify-reload tells the answer to this reload from an earlier one by it."""
    before = time.monotonic_ns() // 1000
    assert Notifier({"NOTIFY_SOCKET": address}).reloading()
    verb, _, stamp = manager.recv(4096).decode().partition("\n")
    assert verb == "RELOADING=1"
    assert before <= int(stamp.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_a_long_status_still_fits_a_datagram(address: str, manager: socket.socket) -> None:
    """systemd drops what is longer than 4096 bytes, READY with it."""
    assert Notifier({"NOTIFY_SOCKET": address}).ready("é" * 10_000)
    assert manager.recv(10_000).startswith("READY=1\nSTATUS=é".encode())
    assert Notifier({"NOTIFY_SOCKET": address}).ready("é" * 10_000)
    assert len(manager.recv(10_000)) < 4096


@pytest.mark.parametrize("address", ["/nonexistent/notify", "", "@nobody", "relative\0nul", "x" * 300])
def test_without_systemd_nothing_happens(address: str) -> None:
    """A socket that is absent, dead or absurd neither raises nor waits."""
    notifier = Notifier({"NOTIFY_SOCKET": address} if address else {})
    assert not notifier.ready("x")
    assert not notifier.watchdog()


def test_a_full_socket_does_not_block(address: str, manager: socket.socket) -> None:
    """A manager that does not read costs messages, not time."""
    notifier = Notifier({"NOTIFY_SOCKET": address})
    assert not all(notifier.status("x" * 900) for _ in range(10_000))


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_interval_is_half_of_what_is_allowed(environ: dict[str, str], interval: float | None) -> None:
    """A watchdog meant for another process is not ours to feed."""
    assert Notifier(environ).watchdog_interval == interval
    assert environ == {}


def test_variables_do_not_leak_to_children() -> None:
    """What was read is gone from the environment, also when it was meant for another process."""
    environ = {"NOTIFY_SOCKET": "/x", "LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "PATH": "/bin"}
    Notifier(environ)
    assert listen_fds(environ) == []
    assert environ == {"PATH": "/bin"}


RECEIVER = """
import os, sys
from vllm_supervisor.adapters.systemd import listen_fds
os.environ["LISTEN_PID"] = str(os.getpid())
print([(name, sock.getsockname(), sock.get_inheritable()) for name, sock in listen_fds(os.environ)])
"""


def test_passed_sockets_arrive_with_their_names(tmp_path: Path) -> None:
    """Descriptors from 3 on become sockets that children do not inherit; one that is no socket is an error."""
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    program = (
        "import os, socket, sys\n"
        "socks = [socket.socket(socket.AF_UNIX) for _ in range(2)]\n"
        "[s.bind(p) for s, p in zip(socks, sys.argv[2:])]\n"
        "fds = [os.dup(os.dup(s.fileno())) for s in socks]\n"
        "[os.dup2(fd, 3 + n) for n, fd in enumerate(fds)]\n"
        "os.execv(sys.executable, [sys.executable, '-W', 'ignore', '-c', sys.argv[1]])\n"
    )
    environ = {**os.environ, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "control:"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program, RECEIVER, first, second],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == repr([("control", first, False), ("", second, False)])
    broken = subprocess.run(
        [sys.executable, "-c", RECEIVER],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert "ListenError" in broken.stderr
