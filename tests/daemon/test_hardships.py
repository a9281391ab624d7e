"""A daemon in adverse circumstances: noise, lost streams, stray signals."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil

from tests.daemon.test_promises import one_engine
from tests.eventually import eventually
from tests.proc import descriptors
from tests.rig import COMMAND, Rig

Make = Callable[..., Rig]


def test_a_flood_of_log_lines(pliable: Make) -> None:
    """Fifty megabytes a second of output, some of it no text, cost the daemon nothing: it only passes the file on."""
    rig = pliable()
    rig.simulate(log_flood=50, non_utf8=1)
    rig.start()
    rig.wait_state("ready")
    began, asked, slowest = time.monotonic(), 0, 0.0
    while rig.log.stat().st_size < 50_000_000:  # well below what is rotated
        before = time.monotonic()
        assert rig.status()["state"] == "ready"
        slowest = max(slowest, time.monotonic() - before)
        asked += 1
        assert before - began < 60
    assert asked > 10
    assert slowest < 1
    tail = rig.cli("logs", "-n", "3")
    assert tail.returncode == 0
    assert len(tail.stdout.splitlines()) == 3
    assert rig.request("GET", "/v1/logs?tail=1000")[1].count(b"\n") >= 999
    rig.post("stop")
    rig.wait_state("stopped")
    assert rig.log.read_bytes().count(b"\xff\xfe") == 1
    rig.log.unlink()


def test_bytes_that_are_no_text(pliable: Make) -> None:
    """The log's last lines are passed on as they are, whatever is in them."""
    rig = pliable()
    rig.simulate(non_utf8=1)
    rig.start()
    rig.wait_state("ready")
    assert b"\xff\xfe caf\xe9" in rig.request("GET", "/v1/logs?tail=100000")[1]
    for shown in ("C", "C.UTF-8"):
        argv = [str(COMMAND), "logs", "-n", "1000", "--socket", str(rig.socket)]
        done = subprocess.run(argv, capture_output=True, env=os.environ | {"LC_ALL": shown}, check=True)
        assert b"\xff\xfe caf\xe9" in done.stdout


def test_signals_and_streams_that_are_gone(pliable: Make) -> None:
    """Without stdin, stdout and stderr the daemon does its work: it reloads at SIGHUP and survives SIGPIPE."""
    rig = pliable()
    rig.start(prefix=["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"])
    before = rig.wait_state("ready")
    for _ in range(2):
        rig.send(signal.SIGHUP)
    rig.until(lambda: rig.events("config_reloaded"), what="a reload")
    assert rig.events("signal_received")[0]["signal"] == "SIGHUP"
    rig.send(signal.SIGPIPE)
    os.kill(rig.leader(), signal.SIGKILL)
    status = rig.wait_state("ready", after=before["generation"])
    one_engine(rig)
    assert status["restarts"]["by_reason"]["crash"] == 1
    targets = descriptors(rig.leader())
    assert str(rig.socket) not in targets.values()
    assert (targets[0], targets[1]) == ("/dev/null", str(rig.log))
    assert rig.stop() == 0


def test_engines_come_and_go_and_leave_nothing_in_the_daemon(pliable: Make) -> None:
    """Crash after crash, the daemon has as many descriptors, children and threads as before."""
    rig = pliable()
    rig.start()
    rig.wait_state("ready")
    daemon = psutil.Process(rig.pid)

    def settled() -> tuple[int, int, int]:
        # A probe on its way has descriptors of its own: the least of a few looks counts.
        looks = [(daemon.num_fds(), daemon.num_threads(), len(daemon.children())) for _ in range(200)]
        return min(looks)

    before = settled()
    for generation in range(1, 7):
        os.kill(rig.leader(), signal.SIGKILL)
        rig.wait_state("ready", after=generation)
    descriptors, _, children = settled()
    assert (descriptors, children) == (before[0], before[2])
    # Worker threads that nothing needs any more end after ten seconds, when the next work is handed out.
    eventually(lambda: daemon.num_threads() <= before[1], within=60, every=0.2)


def test_a_reader_of_the_daemons_log_that_went_away(pliable: Make) -> None:
    """A pipe without reader, and one that is full, neither end nor block the daemon."""
    rig = pliable()
    broken, write = os.pipe()
    os.close(broken)
    stuck, full = os.pipe()
    os.set_blocking(full, False)
    try:
        while os.write(full, b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(full, True)
    # stdout is the pipe without a reader, stderr the one that nobody empties.
    command = 'exec "$@" >"$OUT" 2>"$ERR"'
    try:
        prefix, fds = ["sh", "-c", command, "sh"], f"/proc/{os.getpid()}/fd"
        rig.start(
            "--set", "no.such=key", prefix=prefix, environ={"OUT": "/dev/null", "ERR": f"{fds}/{write}"}, wait=False
        )
        assert rig.wait_exit() == 2, "systemd shall not try again, though nobody can be told why"
        rig.start(prefix=prefix, environ={"OUT": f"{fds}/{write}", "ERR": f"{fds}/{full}"})
        rig.wait_state("ready")
        rig.post("restart")
        rig.wait_state("ready", after=1)
        assert rig.stop() == 0
    finally:
        for fd in (write, stuck, full):
            os.close(fd)
