"""Rotation of a log file that somebody else writes to, by size, without a signal to the writer.

vLLM holds the file open for append and cannot be told to open another. So what is there is copied to `NAME.1` and then
taken out of the file's head while the writer goes on appending at its end. On ext4 and XFS the kernel does that in one
step (FALLOC_FL_COLLAPSE_RANGE) and not a byte is lost. Elsewhere the file is truncated, which loses what was written
since the last byte that was copied; those bytes are counted. While nobody writes (`at_rest`), the file is renamed.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COLLAPSE = 0x08
"""FALLOC_FL_COLLAPSE_RANGE of linux/falloc.h."""
_MODE = 0o640
_CHUNK = 1 << 20
_ROUNDS = 64
"""Rounds of catching up with the writer. Each is shorter than the one before, unless it outruns us."""


@dataclass(frozen=True, slots=True)
class Rotated:
    """What a rotation did: bytes moved to `NAME.1`, and bytes that could not be saved (known ones; usually 0)."""

    moved: int
    lost: int
    how: str


class Rotation:
    """Keeps `keep` older files beside `path`, each of about `max_bytes`. All calls block while they copy."""

    def __init__(self, path: str, max_bytes: int, keep: int) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._keep = keep

    def due(self) -> bool:
        """Say whether the file has grown to its limit. A missing file has not."""
        try:
            return self._path.stat().st_size >= self._max_bytes > 0
        except OSError:
            return False

    def at_rest(self) -> Rotated | None:
        """Rename the file if it is due and nobody writes to it: nothing can be lost. Raises OSError."""
        if not self.due():
            return None
        moved = self._path.stat().st_size
        self._make_room()
        if self._keep > 0:
            self._path.rename(self._older(1))
        else:
            self._path.unlink()
        return Rotated(moved, 0, "rename")

    def while_written(self) -> Rotated | None:
        """Move what is there to `NAME.1` if the file is due, whoever writes to it. Raises OSError.

        Where the copy cannot be written (a full disk), nothing is taken out of the file and no older one is lost.
        """
        if not self.due():
            return None
        with _opened(self._path, os.O_RDWR | os.O_NOFOLLOW) as source:
            if self._keep == 0:
                return self._cut(source, os.fstat(source).st_size)
            fresh = self._path.with_name(self._path.name + ".new")
            try:
                with _opened(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as copy:
                    copied = _catch_up(source, copy, 0)
                    os.fchmod(copy, _MODE)
                    rotated = self._cut_after_copy(source, copy, copied)
            except OSError:
                with contextlib.suppress(OSError):
                    fresh.unlink()
                raise
            self._make_room()
            fresh.rename(self._older(1))
        return rotated

    def _cut_after_copy(self, source: int, copy: int, copied: int) -> Rotated:
        block = os.fstatvfs(source).f_bsize
        whole = copied - copied % block
        if whole > 0 and _collapse(source, whole):
            os.ftruncate(copy, whole)
            return Rotated(whole, 0, "collapse")
        copied = _catch_up(source, copy, copied)
        return self._cut(source, copied)

    def _cut(self, source: int, copied: int) -> Rotated:
        # What comes between this look and the next call cannot be counted: microseconds.
        lost = max(0, os.fstat(source).st_size - copied)
        os.ftruncate(source, 0)
        return Rotated(copied, lost, "truncate")

    def _make_room(self) -> None:
        """Shift the older files by one; the oldest goes."""
        if self._keep == 0:
            return
        with contextlib.suppress(FileNotFoundError):
            self._older(self._keep).unlink()
        for number in range(self._keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._older(number).rename(self._older(number + 1))

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, _MODE)
    try:
        yield fd
    finally:
        os.close(fd)


def _catch_up(source: int, copy: int, at: int) -> int:
    """Copy from `at` until there is no more, or the writer is faster than we are. Returns how far it got."""
    for _ in range(_ROUNDS):
        end = os.fstat(source).st_size
        if end <= at:
            break
        while at < end:
            part = os.pread(source, min(_CHUNK, end - at), at)
            if not part:
                return at
            written = 0
            while written < len(part):
                written += os.pwrite(copy, part[written:], at + written)
            at += len(part)
    return at


def _collapse(fd: int, length: int) -> bool:
    """Take `length` bytes (whole blocks) out of the file's head in one step; False where that cannot be done."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        return False
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(fallocate(fd, _COLLAPSE, 0, length) == 0)
