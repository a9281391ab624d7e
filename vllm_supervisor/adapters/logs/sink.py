"""Where lines go: a stream whose reader may be gone, stalled or out of space, which must not matter to the daemon."""

import os
import select
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

_PIPE_BUF = 4096
"""What a pipe or stream socket that polls as writable takes without blocking."""


class Sink:
    """Writes lines without ever blocking or raising; what cannot be written at once is dropped and counted.

    Regular files may block on their disk, as everything else of the daemon's may.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._write = _writer(stream)
        self._torn = False
        self.dropped = 0
        """Lines lost so far, whole or in part."""

    def write(self, text: str) -> bool:
        """Write `text` and a newline. False when some of it was lost."""
        data = text.encode(errors="backslashreplace") + b"\n"
        if self._torn:
            data = b"\n" + data
        try:
            written = self._write(data)
        except (OSError, ValueError):  # ValueError: a stream that was closed under us
            written = 0
        if written:
            self._torn = written < len(data)
        if written < len(data):
            self.dropped += 1
        return written == len(data)


def descriptor(stream: TextIO | None) -> int | None:
    """Return the stream's descriptor, where it has one."""
    with suppress(OSError, ValueError, AttributeError):
        return stream.fileno() if stream is not None else None
    return None


def _writer(stream: TextIO | None) -> Callable[[bytes], int]:
    """Choose how to write without blocking. O_NONBLOCK on the stream itself would hit all who share it, a shell say."""
    if stream is None:  # Python's stderr, where descriptor 2 is closed
        return len
    fd = descriptor(stream)
    if fd is None:
        return lambda data: _write_text(stream, data)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return lambda data: os.write(fd, data)
    if stat.S_ISSOCK(mode):  # what systemd gives; a socket cannot be opened by its path
        return lambda data: _write_when_ready(fd, data)
    try:
        # Opened anew, a pipe or terminal has flags of its own.
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # a terminal of another user, for one
        return lambda data: _write_when_ready(fd, data)
    return lambda data: os.write(own, data)


def _write_text(stream: TextIO, data: bytes) -> int:
    stream.write(data.decode())
    stream.flush()
    return len(data)


def _write_when_ready(fd: int, data: bytes) -> int:
    written = 0
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    with suppress(OSError):
        while written < len(data) and poller.poll(0):
            written += os.write(fd, data[written : written + _PIPE_BUF])
    return written
