"""Looks at processes through `/proc`, which may end, exec or close something at any moment of the look."""

import gc
import os
from pathlib import Path


def alive(pid: int) -> bool:
    """Say whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # at opening or, when it ends in between, at reading
        return False
    return stat.rpartition(b")")[2].split()[0] not in {b"Z", b"X"}


def descriptors(pid: int) -> dict[int, str]:
    """Return what each open descriptor of a process leads to. One that is closed meanwhile is none."""
    found = {}
    for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 -- names are all that is needed
        try:
            found[int(number)] = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 -- what it leads to is no path
        except FileNotFoundError:
            continue
    return found


def open_files() -> int:
    """Return how many descriptors our process has, without those of an earlier test that garbage holds."""
    gc.collect()
    return len(descriptors(os.getpid()))
