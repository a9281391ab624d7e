"""The engine's log, read from its end and followed, bounded, whatever bytes are in it."""

import os
import stat
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Self

import anyio

LIMIT = 1 << 20
"""Most bytes of a tail, and how far a follower may be behind before it skips."""
_BLOCK = 1 << 16
_POLL = 0.25
"""Seconds between looks at the file while nothing comes."""


def tail(path: str, lines: int, limit: int = LIMIT) -> bytes:
    """Return the last `lines` lines, at most `limit` bytes of them; empty where there is no such file yet.

    A last line that is not finished counts as one. Raises OSError when the file cannot be read.
    """
    with _Reader(path) as reader:
        return reader.last(lines, limit)


async def follow(path: str, lines: int = 0) -> AsyncGenerator[bytes, None]:
    """Yield the last `lines` lines, and then what is appended, for ever, without a gap between.

    Goes on across truncation, and across a rename with a new file in its place: the rest of the old one comes first.
    A missing file is waited for. A follower that falls far behind is told how much was skipped. Ended by closing it
    (`aclose`), or by cancelling. Raises OSError when the file cannot be read.
    """
    with _Reader(path) as reader:
        if last := reader.last(lines, LIMIT):
            yield last
        while True:
            for part in reader.appended():
                yield part
            if not reader.switched():
                await anyio.sleep(_POLL)


class _Reader:
    """A place in the file that a path named when it was last looked at."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._at = 0

    def __enter__(self) -> Self:
        self._fd = _open(self._path)
        if self._fd >= 0:
            self._at = os.fstat(self._fd).st_size
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def last(self, lines: int, limit: int) -> bytes:
        """Return the last lines before the place where reading goes on."""
        start = end = self._at
        found = b""
        # One newline more than lines: the one that ends the line before the first.
        while start > 0 and lines > 0 and end - start < limit and found.count(b"\n", 0, -1) < lines:
            size = min(_BLOCK, start, limit - (end - start))
            start -= size
            found = os.pread(self._fd, size, start) + found
        body = found[:-1] if found.endswith(b"\n") else found
        kept = body.split(b"\n")[-lines:] if lines > 0 else []
        return b"\n".join(kept) + found[len(body) :] if kept else b""

    def appended(self) -> Iterator[bytes]:
        """Yield what came since, up to the end as it was at this moment; from the start of a truncated file."""
        if self._fd < 0:
            return
        end = os.fstat(self._fd).st_size
        if end < self._at:
            self._at = 0
        behind = end - self._at
        if behind > LIMIT:
            self._at = end - _BLOCK
            yield b"\n[vllm-supervisor: %d bytes skipped]\n" % (behind - _BLOCK)
        while self._at < end:
            part = os.pread(self._fd, min(_BLOCK, end - self._at), self._at)
            if not part:
                return
            self._at += len(part)
            yield part

    def switched(self) -> bool:
        """Go over to the start of a new file under the path, once the old one has been read to its end."""
        try:
            named = Path(self._path).stat()
        except FileNotFoundError:
            return False
        if self._fd >= 0:
            ours = os.fstat(self._fd)
            if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino):
                return False
            if ours.st_size > self._at:
                return True  # written between the last look and the rename: read that first
        fd = _open(self._path)
        if fd < 0:
            return False
        self.__exit__()
        self._fd, self._at = fd, 0
        return True


def _open(path: str) -> int:
    """Open a regular file; -1 where there is none. Opening a FIFO must not wait for its writer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return -1
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return -1
