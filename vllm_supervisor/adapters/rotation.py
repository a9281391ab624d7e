"""Rotation of a log file that somebody else writes to, by size, without a signal to the writer.

vLLM holds the file open for append and cannot be told to open another. So what is there is copied to `NAME.1` and then
taken out of the file's head while the writer goes on appending at its end. On ext4 and XFS the kernel does that in one
step (FALLOC_FL_COLLAPSE_RANGE) and not a byte is lost. Elsewhere the file is truncated, which loses what was written
since the last byte that was copied. Of that, what was there at the last look is counted; what arrives between that look
and the cut, two system calls later, is seen by nobody. While nobody writes (`at_rest`), the file is renamed.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio import to_thread

from vllm_supervisor.ports import Level, LogProblem, Note, log_problem

_COLLAPSE = 0x08
"""FALLOC_FL_COLLAPSE_RANGE of linux/falloc.h."""
_MODE = 0o640
_CHUNK = 1 << 20
_ROUNDS = 64
"""Rounds of catching up with the writer. Each is shorter than the one before, unless it outruns us."""


_SOONEST = 0.5
_LATEST = 2.0
"""Seconds between looks: so many that the file would grow by half of what is left of its limit, within these."""


_FAILED = "log_rotation_failed"
_LOST_UNTIL_RESTART = "what the engine prints is lost until its restart"
_LOST_UNTIL_ROOM = "no room is left where the log is: what the engine prints is lost until there is"


@dataclass(frozen=True, slots=True)
class Rotated:
    """What a rotation did: bytes moved to `NAME.1`, and bytes known to be lost (usually 0), never more than were."""

    moved: int
    lost: int
    how: str


class Rotation:
    """Keeps `keep` older files beside `path`, each of about `max_bytes`. All calls block while they copy."""

    def __init__(self, path: str, max_bytes: int, keep: int) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._keep = keep
        self._one = threading.Lock()
        """A launch and the daemon's own watch may want to rotate at the same time."""

    def limit(self, max_bytes: int, keep: int) -> None:
        """Rotate by other limits from now on. Older files beyond `keep` go with the next rotation."""
        self._max_bytes = max_bytes
        self._keep = keep

    def size(self) -> int | None:
        """Return the file's size; None when it is missing."""
        try:
            return self._path.stat().st_size
        except OSError:
            return None

    def disk_full(self) -> bool:
        """Say whether nothing more can be written where the file is."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return False
        return found.f_blocks > 0 and (found.f_bfree if os.geteuid() == 0 else found.f_bavail) == 0

    def due(self, size: int | None) -> bool:
        """Say whether a file of `size` bytes has grown to its limit. A missing one (None) has not."""
        return (size or 0) >= self._max_bytes > 0

    def pause(self, size: int | None, growth: float) -> float:
        """Return how long to wait before the next look at a file of `size` that grows by `growth` bytes a second."""
        left = max(0, self._max_bytes - (size or 0))
        return min(_LATEST, max(_SOONEST, left / 2 / growth)) if growth > 0 else _LATEST

    def at_rest(self) -> Rotated | None:
        """Rename the file if it is due and nobody writes to it: nothing can be lost. Raises OSError."""
        with self._one:
            return self._rename() if self.due(self.size()) else None

    def _rename(self) -> Rotated:
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
        with self._one:
            return self._take_out() if self.due(self.size()) else None

    def _take_out(self) -> Rotated:
        with _opened(self._path, os.O_RDWR | os.O_NOFOLLOW) as source:
            if self._keep == 0:
                self._make_room()
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
        # What comes between this look and the next call cannot be counted: microseconds, or, where this thread has to
        # wait for a core in between, as much as is written meanwhile.
        lost = max(0, os.fstat(source).st_size - copied)
        os.ftruncate(source, 0)
        return Rotated(copied, lost, "truncate")

    def _make_room(self) -> None:
        """Shift the older files by one; the oldest goes, and those that a higher limit has left."""
        for number in self._numbers():
            if number >= self._keep:
                with contextlib.suppress(FileNotFoundError):
                    self._older(number).unlink()
        for number in range(self._keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._older(number).rename(self._older(number + 1))

    def _numbers(self) -> list[int]:
        """Return the numbers of the older files that are there."""
        prefix = self._path.name + "."
        found = (path.name.removeprefix(prefix) for path in self._path.parent.iterdir() if path.name.startswith(prefix))
        # Written as we write them: `.01` and `.1.gz` are somebody else's.
        return [int(text) for text in found if text.isascii() and text.isdigit() and text[0] != "0"]

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


async def keep(rotation: Rotation, expected: Callable[[], bool], note: Callable[[Note], None]) -> None:
    """Rotate whenever it is due, for ever. What goes wrong is told when it begins, and never ends anything.

    `expected` says whether there has to be a file: whether an engine writes to it.
    """
    trouble = _Trouble(note)
    size, looked_at, growth = rotation.size(), anyio.current_time(), 0.0
    while True:
        await anyio.sleep(rotation.pause(size, growth))
        before, size = size or 0, rotation.size()
        now, written = anyio.current_time(), expected()
        growth = ((size or 0) - before) / (now - looked_at) if now > looked_at else 0.0
        looked_at = now
        trouble.look("log_file_missing", LogProblem.MISSING, _LOST_UNTIL_RESTART, on=written and size is None)
        trouble.look("log_disk_full", LogProblem.DISK_FULL, _LOST_UNTIL_ROOM, on=written and rotation.disk_full())
        if rotation.due(size):
            await _rotate(rotation, note, trouble)
            size, looked_at = rotation.size(), anyio.current_time()


async def _rotate(rotation: Rotation, note: Callable[[Note], None], trouble: "_Trouble") -> None:
    try:
        rotated = await to_thread.run_sync(rotation.while_written)
    except OSError as error:
        detail = f"{error.filename or 'the log'}: {error.strerror or error}"
        trouble.look(_FAILED, log_problem(error.errno), detail, on=True)
    else:
        trouble.over(_FAILED)
        if rotated is not None:
            level = Level.WARNING if rotated.lost else Level.INFO
            note(Note("log_rotated", level, {"moved": rotated.moved, "lost": rotated.lost, "how": rotated.how}))


class _Trouble:
    """Tells each trouble once, when it begins; it begins anew when it has been over meanwhile."""

    def __init__(self, note: Callable[[Note], None]) -> None:
        self._note = note
        self._on: set[tuple[str, LogProblem]] = set()

    def look(self, kind: str, problem: LogProblem, detail: str, *, on: bool) -> None:
        if not on:
            self._on.discard((kind, problem))
        elif (kind, problem) not in self._on:
            self._on.add((kind, problem))
            self._note(Note(kind, Level.WARNING, {"problem": problem.value, "detail": detail}))

    def over(self, kind: str) -> None:
        self._on = {(other, problem) for other, problem in self._on if other != kind}


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, _MODE)
    try:
        yield fd
    finally:
        os.close(fd)


def _catch_up(source: int, copy: int, at: int) -> int:
    """Copy from `at` until there is no more, or the writer is faster than we are. Returns how far it got."""
    held = memoryview(bytearray(_CHUNK))  # one for all: each of its own would be a megabyte to and from the kernel
    for _ in range(_ROUNDS):
        end = os.fstat(source).st_size
        if end <= at:
            break
        while at < end:
            count = os.preadv(source, [held[: end - at]], at)
            if not count:
                return at
            written = 0
            while written < count:
                written += os.pwrite(copy, held[written:count], at + written)
            at += count
    return at


def _collapse(fd: int, length: int) -> bool:
    """Take `length` bytes (whole blocks) out of the file's head in one step; False where that cannot be done."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        return False
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(fallocate(fd, _COLLAPSE, 0, length) == 0)
