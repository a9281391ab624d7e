"""What the kernel says about processes: nothing here trusts what a supervisor says about itself."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE")


class UnmetError(Exception):
    """Raised when something awaited did not happen; the text is what the table shows."""


def until(check: Callable[[], bool], within: float, what: str, every: float = 0.01) -> float:
    """Poll; return the seconds it took. Raises UnmetError."""
    begun = time.monotonic()
    while not check():
        if time.monotonic() - begun > within:
            raise UnmetError(f"{what}: not within {within:g} s")
        time.sleep(every)
    return time.monotonic() - begun


def bearing(token: str) -> list[int]:
    """Return the living processes, of any pid namespace below ours, whose environment has `token`."""
    needle = token.encode()
    found = []
    for pid in _pids():
        with suppress(OSError):
            if needle in (PROC / str(pid) / "environ").read_bytes() and state(pid) != "Z":
                found.append(pid)
    return found


def working_in(folder: Path) -> list[int]:
    """Return the living processes whose working directory is `folder` or below it."""
    found = []
    for pid in _pids():
        with suppress(OSError):
            if (PROC / str(pid) / "cwd").readlink().is_relative_to(folder) and state(pid) != "Z":
                found.append(pid)
    return found


def descendants(root: int) -> list[int]:
    """Return `root` and all below it."""
    below: dict[int, list[int]] = {}
    for pid in _pids():
        with suppress(OSError):
            below.setdefault(int(_stat(pid)[1]), []).append(pid)
    found = [root]
    for pid in found:
        found.extend(below.get(pid, ()))
    return found


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def state(pid: int) -> str:
    """Return the kernel's letter for what a process is at. Raises OSError when it is gone."""
    return _stat(pid)[0]


def command(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def cpu_seconds(pid: int) -> float:
    """Return what all threads of a process have used, ended ones too: by its clock, as /proc counts in 10 ms."""
    return time.clock_gettime(~pid << 3 | 2)


def cpu_of(pids: Iterable[int]) -> float:
    """Return the processor's seconds of all that are alive."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            total += cpu_seconds(pid)
    return total


def wakeups(pids: Iterable[int]) -> int:
    """Return how often the processes went to sleep, all threads together: each wake-up began with one."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for task in (PROC / str(pid) / "task").iterdir():
                total += _field(task / "status", "voluntary_ctxt_switches")
    return total


def rss_mib(pids: Iterable[int]) -> float:
    return sum(_field(PROC / str(pid) / "status", "VmRSS") for pid in pids) / 1024


def peak_mib(pids: Iterable[int]) -> float:
    return sum(_field(PROC / str(pid) / "status", "VmHWM") for pid in pids) / 1024


def pss_mib(pids: Iterable[int]) -> float:
    """Return the resident memory with shared pages divided among those who share them."""
    return sum(_field(PROC / str(pid) / "smaps_rollup", "Pss") for pid in pids) / 1024


def _field(path: Path, name: str) -> int:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on: the name before them may hold anything."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
