"""Processes held by descriptor: a signal that cannot hit a later process with the same pid, an exit seen at once."""

import os
import signal

import anyio

from vllm_supervisor.adapters.process.procfs import Proc
from vllm_supervisor.domain.model import ExitStatus


def hold(proc: Proc, pid: int, start: int) -> int | None:
    """Open a pidfd on the process that has `pid` and `start`; None when it is gone. Raises OSError out of descriptors.

    The start is compared after the opening: what the descriptor refers to can no longer change.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        stat = proc.stat(pid)
    except OSError:
        os.close(fd)
        raise
    if stat is None or stat.start != start:
        os.close(fd)
        return None
    return fd


def send(proc: Proc, pid: int, start: int, number: signal.Signals) -> bool:
    """Signal one process and say whether it was reached: not when it is gone, nor when it is another user's."""
    try:
        fd = hold(proc, pid, start)
    except OSError:
        # Out of descriptors a member must still die; the start read just before is all the proof there is.
        return _send_by_number(pid, number)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


def _send_by_number(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


async def ended(pidfd: int) -> None:
    """Return when the process has ended, all its threads included; the kernel wakes us. Several may wait."""
    mine = os.dup(pidfd)  # the loop allows one reader for each descriptor
    try:
        await anyio.wait_readable(mine)
    finally:
        os.close(mine)


def status(pidfd: int) -> ExitStatus:
    """Return how a child ended, and leave its zombie; unknown when it is not our child or still runs."""
    return _status(os.P_PIDFD, pidfd, os.WNOWAIT)


def reap(pid: int) -> ExitStatus:
    """Take the status of a child that ended, and let its pid go. Only for pids that are known to be our children."""
    return _status(os.P_PID, pid, 0)


def _status(kind: int, which: int, flags: int) -> ExitStatus:
    try:
        result = os.waitid(kind, which, os.WEXITED | os.WNOHANG | flags)
    except ChildProcessError:
        return ExitStatus()
    if result is None:
        return ExitStatus()
    if result.si_code == os.CLD_EXITED:
        return ExitStatus(code=result.si_status)
    return ExitStatus(signal=result.si_status)
