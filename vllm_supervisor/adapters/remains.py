"""Shared memory that a killed engine leaves in /dev/shm for ever: hundreds of megabytes each time (0.32, measured).

Only what is provably its own is removed: a file that a member had mapped while it lived, that is still that very file,
and that nobody alive has mapped.
"""

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from anyio import to_thread

_NAMES = re.compile(r"(?:psm_|sem\.mp-|sem\.loky-|torch_|nccl-|cuda\.shm\.|vllm)[\w.-]+\Z")
"""Names that Python's multiprocessing, torch, NCCL and CUDA give."""
_TRIES = 5
"""Looks at the members' maps for one file; whose it is, is clear by then."""
_MAX_FILES = 10_000

Key = tuple[str, int]
"""A file: its name and inode. Another file of the same name is another file."""


class SharedMemory:
    """Implements `ports.Remains` on /dev/shm.

    A look costs one listing of the folder as long as nothing new is in it.
    """

    def __init__(self, folder: Path = Path("/dev/shm"), proc: Path = Path("/proc")) -> None:  # noqa: S108 -- the place itself
        self._folder = folder
        self._proc = proc
        self._mapped: set[Key] = set()
        self._tried: dict[Key, int] = {}

    async def note(self, pids: Iterable[int]) -> None:
        """Look at what these living members have mapped. Never raises."""
        await to_thread.run_sync(self._note, tuple(pids), abandon_on_cancel=True)

    async def remove(self) -> tuple[str, ...]:
        """Remove what only the noted members used, now that they are gone, and return it. Never raises."""
        noted, self._mapped, self._tried = self._mapped, set(), {}
        if not noted:
            return ()
        return await to_thread.run_sync(self._remove, noted, abandon_on_cancel=True)

    def _note(self, pids: tuple[int, ...]) -> None:
        candidates = self._candidates()
        fresh = {key for key in candidates - self._mapped if self._tried.get(key, 0) < _TRIES}
        if not fresh:
            return
        found = {key for pid in pids for key in self._maps(pid)} & fresh
        self._mapped |= found
        self._tried = {key: self._tried.get(key, 0) + (key in fresh) for key in candidates - self._mapped}

    def _candidates(self) -> set[Key]:
        found: set[Key] = set()
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if _NAMES.match(entry.name) and len(found) < _MAX_FILES:
                    with suppress(OSError):
                        found.add((entry.name, entry.inode()))
        return found

    def _maps(self, pid: int) -> set[Key]:
        """Return the files of the folder that a process has mapped."""
        prefix = f"{self._folder}/"
        found: set[Key] = set()
        # A process of another user cannot be read; it cannot have mapped a file of mode 0600 that is not its own.
        with suppress(OSError), (self._proc / str(pid) / "maps").open(errors="surrogateescape") as lines:
            for line in lines:
                if prefix in line:
                    _, _, _, _, inode, path = line.rstrip("\n").split(None, 5)
                    if path.startswith(prefix) and not path.endswith(" (deleted)"):
                        found.add((path.removeprefix(prefix), int(inode)))
        return found

    def _remove(self, noted: set[Key]) -> tuple[str, ...]:
        left = noted & self._candidates()
        if not left:
            return ()
        for name in os.listdir(self._proc):  # noqa: PTH208 -- names are all that is wanted
            if name.isdecimal():
                left -= self._maps(int(name))
        removed = []
        for name, inode in sorted(left):
            path = self._folder / name
            with suppress(OSError):
                there = path.lstat()
                if there.st_ino == inode and stat.S_ISREG(there.st_mode) and os.geteuid() in (0, there.st_uid):
                    path.unlink()
                    removed.append(str(path))
        return tuple(removed)
