"""What members of an engine are doing, as the kernel tells it: little, and fast."""

import time
from collections.abc import Iterable
from contextlib import suppress

from vllm_supervisor.adapters.process.procfs import Proc, Stat
from vllm_supervisor.domain.member import Portrait

_SKETCH_WITHIN = 0.003
"""Seconds for what is read before a signal, all members together: 22 us each (measured), and the next launch waits."""
_MAX_STACK = 32
"""Frames of a kernel stack that are kept."""


def sketch(proc: Proc, stats: Iterable[Stat]) -> tuple[Portrait, ...]:
    """Return what these processes are doing, dead ones included, before they are signalled. Blocking, and short.

    Command lines are left out: to read one takes a lock of the process, which a stuck one may hold for ever, and then
    it would never be killed.
    """
    deadline = time.monotonic() + _SKETCH_WITHIN
    return tuple(_portrait(proc, stat, closely=time.monotonic() < deadline) for stat in stats)


def portrait(proc: Proc, stat: Stat) -> Portrait:
    """Return what one process is doing, its command line included. Blocking, without end where the process is stuck."""
    command = ""
    with suppress(OSError):
        command = " ".join(proc.command(stat.pid))
    return _portrait(proc, stat, command=command)


def _portrait(proc: Proc, stat: Stat, *, closely: bool = True, command: str = "") -> Portrait:
    wchan = stack = ""
    if closely and not stat.gone:
        # Out of descriptors, for one: a picture is worth less than what comes after it.
        with suppress(OSError):
            wchan = proc.text(f"{stat.pid}/wchan") or ""
            stack = proc.text(f"{stat.pid}/stack") or ""
    return Portrait(
        stat.pid,
        stat.start,
        stat.name,
        stat.state,
        parent=stat.parent,
        wchan="" if wchan == "0" else wchan,
        command=command,
        stack=tuple(stack.splitlines()[:_MAX_STACK]),
    )
