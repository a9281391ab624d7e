"""Reads files of which only a regular one is wanted: the reading of any other may never end."""

import os
import stat
from pathlib import Path

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
    # Without O_NONBLOCK a FIFO that took the file's place meanwhile would hold us until somebody writes into it.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(opened, "rb") as file:
        _check(os.fstat(opened))
        return file.read(limit)


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "something unknown")
        raise OSError(0, f"it is {kind}, not a regular file")
