"""Files of which only a regular one is wanted: to open or read any other may never end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def read_regular(path: Path, limit: int) -> bytes:
    """Return the first `limit` bytes of a file. Raises OSError; also for what is no regular file, named by its kind.

    ValueError for what cannot be a path.
    """
    _check(path.stat())
    with open_regular(path) as file:
        return file.read(limit)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file to read. Raises OSError; also for what is no regular file, named by its kind."""
    # Without O_NONBLOCK a FIFO would hold us until somebody writes into it.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check(os.fstat(opened))
        return open(opened, "rb")  # noqa: PTH123 - a descriptor has no Path
    except BaseException:
        os.close(opened)
        raise


def no_log(mode: int) -> str | None:
    """Say what a file is to which no log can be written, such as a FIFO; None for a regular one and a terminal."""
    return None if stat.S_ISREG(mode) or stat.S_ISCHR(mode) else f"it is {_kind(mode)}"


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"it is {_kind(found.st_mode)}, not a regular file")


def _kind(mode: int) -> str:
    return next((name for test, name in _KINDS if test(mode)), "something unknown")
