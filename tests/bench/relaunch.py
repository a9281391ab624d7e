"""The time from a leader's death to the next leader, beyond the delay that is configured."""

import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.bench.figures import Row, samples
from tests.bench.observe import until
from tests.bench.own import daemon, row

DELAY = 0.05


def relaunch(count: int) -> Row:
    """The leader is a shell that sleeps: what is measured is ours and the kernel's."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "engine.sh")
        script.write_text("#!/bin/sh\nexec sleep 1000\n")
        script.chmod(0o755)
        restart = {"min_backoff": DELAY, "max_backoff": DELAY, "never_ready_limit": 100_000}
        with daemon({"launcher": [str(script)], "restart": restart}) as rig:
            taken = [(_relaunched_after(rig.pid) - DELAY) * 1000 for _ in range(count)]
    return row("leader killed to relaunched, beyond the configured delay", "ms", samples(taken), 10)


def _relaunched_after(pid: int) -> float:
    until(lambda: _sleeping(_leader(pid)), 10, "a leader", 0.001)
    leader = _leader(pid)
    assert leader is not None
    begun = time.perf_counter()
    os.kill(leader, signal.SIGKILL)
    while _leader(pid) in (None, leader):
        time.sleep(0.0002)  # looking all the time would take from the kernel what the daemon needs
    return time.perf_counter() - begun


def _leader(pid: int) -> int | None:
    """Return the daemon's child. The kernel lists children by the thread that made them."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                return int(child)
    return None


def _sleeping(leader: int | None) -> bool:
    if leader is None:
        return False
    try:
        return Path(f"/proc/{leader}/cmdline").read_text().startswith("sleep")
    except OSError:
        return False
