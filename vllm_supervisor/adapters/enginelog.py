"""One generation's part of the engine's log, read as it grows, with bounded work however much is written."""

import os
import re
import stat

import anyio
from anyio import to_thread

PART = 1 << 16
"""Most bytes of one look: about 500 lines, which take the loop some milliseconds."""
BEHIND = 1 << 20
"""Bytes behind from which on the rest is skipped: a flood is not read, its end is."""
CARRY = 1 << 14
"""Most bytes of a line that is not finished."""

_BREAK = re.compile(rb"[\r\n]+")


class EngineLog:
    """Implements `ports.StartLog` on a file, from byte `start` on.

    Goes on across truncation and across a rename with a new file in its place. A progress bar, which ends its line
    only when it is full, is told as it stands once it has stood for two looks.
    """

    unread: str | None = None

    def __init__(self, path: str, start: int) -> None:
        self._path = path
        self._at = start
        self._inode: tuple[int, int] | None = None
        self._carry = b""
        self._told = b""
        self._limiter = anyio.CapacityLimiter(1)

    async def read(self) -> list[str]:
        """Return the lines that came since the last call. Raises OSError where the file cannot be read."""
        # A limiter of our own: a file system that hangs shall cost one thread, not the daemon all of its own.
        return await to_thread.run_sync(self.take, abandon_on_cancel=True, limiter=self._limiter)

    def take(self) -> list[str]:
        """Do the work of `read`. Blocking."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not be waited for
        except FileNotFoundError:
            return []
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return []
            self._find_place((found.st_dev, found.st_ino), found.st_size)
            data = os.pread(fd, PART, self._at)
        finally:
            os.close(fd)
        self._at += len(data)
        return self._lines(data)

    def _find_place(self, inode: tuple[int, int], size: int) -> None:
        replaced = self._inode is not None and inode != self._inode
        self._inode = inode
        if replaced or size < self._at:
            self._at = 0
            self._carry = b""
        if size - self._at > BEHIND:
            self._at = size - PART
            self._carry = b""

    def _lines(self, data: bytes) -> list[str]:
        if not data:
            standing = self._carry if self._carry != self._told else b""
            self._told = self._carry
            return [standing.decode(errors="replace")] if standing.strip() else []
        pieces = _BREAK.split(self._carry + data)
        self._carry = pieces.pop()
        if len(self._carry) > CARRY:
            pieces.append(self._carry)
            self._carry = b""
        self._told = b""
        return [piece.decode(errors="replace") for piece in pieces if piece.strip()]
