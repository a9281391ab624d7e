"""Small facts that the kernel tells: shared memory, the clock."""

import ctypes
import os
from pathlib import Path

from vllm_supervisor.domain.doctor.facts import Shm, Unknown

_UNSYNCHRONIZED = 0x40
"""STA_UNSYNC of linux/timex.h."""
_STATUS_AT = 40
"""Where `status` stands in struct timex on 64-bit Linux; the structure has 208 bytes."""
_TIMEX = 208


def shared_memory(folder: Path = Path("/dev/shm")) -> Shm | Unknown:  # noqa: S108 - looked at, not written
    """Return the size of `folder`'s file system."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Unknown(f"{folder} cannot be looked at: {error.strerror}")
    return Shm(total=found.f_blocks * found.f_frsize, free=found.f_bavail * found.f_frsize)


def clock_synchronized() -> bool | None:
    """Say whether something (NTP, PTP, the hypervisor) keeps the kernel's clock in step; None where it cannot be asked.

    adjtimex(2) with no modes set reads and changes nothing.
    """
    if ctypes.sizeof(ctypes.c_long) != 8:  # noqa: PLR2004 - the layout below is that of 64-bit kernels
        return None
    answer = ctypes.create_string_buffer(_TIMEX)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(answer)
    except (OSError, AttributeError):
        return None
    status = int.from_bytes(answer.raw[_STATUS_AT : _STATUS_AT + 4], "little")
    return None if state < 0 else not status & _UNSYNCHRONIZED
