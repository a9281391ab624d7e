"""Where an environment lives: `DIR`, a link, and `DIR.builds`, what it pointed and points to."""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from vllm_supervisor.errors import SupervisorError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_RECORD = "record.json"
_LOCK = "lock"


class Place:
    """The link, the builds and their lock. Construction changes nothing."""

    def __init__(self, link: Path) -> None:
        """Look at `link`; raises SupervisorError where it is something that was not made here."""
        self.link = link
        self.builds = link.with_name(f"{link.name}.builds")
        if link.is_symlink():
            if link.readlink().parent not in (Path(self.builds.name), self.builds):
                raise _not_ours(link, f"a link to {link.readlink()}")
        elif link.exists() and not (link.is_dir() and not any(link.iterdir())):
            raise _not_ours(link, "a directory with something in it" if link.is_dir() else "a file")

    @property
    def current(self) -> Path | None:
        """The build in use; None before the first."""
        return self.builds / self.link.readlink().name if self.link.is_symlink() else None

    @property
    def previous(self) -> Path | None:
        """The build that was in use before; None where there was none or it was removed."""
        name = _read(self.current).get("previous") if self.current else None
        path = self.builds / str(name)
        return path if name and path.is_dir() else None

    def open_to(self) -> tuple[Path, int] | None:
        """Return a directory on the way to it that others than root and we may write to, and its owner's uid."""
        for directory in self.link.parents:
            with contextlib.suppress(FileNotFoundError):
                found = directory.stat()
                sticky = found.st_mode & stat.S_ISVTX
                if found.st_uid not in (0, os.geteuid()) or (found.st_mode & _OTHERS_WRITE and not sticky):
                    return directory, found.st_uid
        return None

    def new(self) -> Path:
        """Return a path for the next build. Nothing is made."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        free = (f"{stamp}{suffix}" for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
        return self.builds / next(name for name in free if not (self.builds / name).exists())

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock and give its descriptor; afterwards leave no trace where nothing was built.

        Raises SupervisorError where another run holds it, or where the directory cannot be written.
        """
        try:
            made = [parent for parent in self.builds.parents if not parent.exists()]
            fd = self._take()
        except OSError as error:
            why = f"{self.builds} cannot be written: {error.strerror}"
            raise SupervisorError("install-vllm", why, "run it as root, or name another --into") from error
        try:
            yield fd
        finally:
            with contextlib.suppress(OSError):
                # While it is held: whoever opens it later finds that it is not the one in the directory any more.
                (self.builds / _LOCK).unlink()
                for directory in (self.builds, *made):
                    directory.rmdir()
            os.close(fd)

    def _take(self) -> int:
        while True:
            try:
                if not self.builds.is_dir():
                    self.builds.mkdir(parents=True, exist_ok=True)
                    self.builds.chmod(0o755)  # whatever our umask is: the service's user must get through
                fd = os.open(self.builds / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # another run, which built nothing, removed the directory just now
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), (self.builds / _LOCK).stat()):
                    os.truncate(fd, 0)
                    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                    return fd
            except BlockingIOError:
                pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
                os.close(fd)
                who = f"process {pid}" if pid.isdecimal() else "another process"
                why = f"{who} is building in {self.builds}"
                raise SupervisorError("install-vllm", why, "wait for it, or end it, and try again") from None
            except FileNotFoundError:
                pass  # removed by the one who held it: there is a new one, or none
            os.close(fd)

    def clean(self) -> tuple[Path, ...]:
        """Remove all builds but the one in use and the one before it, and return them. The lock is held.

        One that a process still has mapped (an engine that was not restarted since) stays until a later run.
        """
        kept = {self.current, self.previous}
        removed = []
        for path in sorted(self.builds.iterdir()) if self.builds.is_dir() else ():
            if path.name == _LOCK or path in kept or (_read(path) and _in_use(path)):
                continue
            _remove(path)
            removed.append(path)
        return tuple(removed)

    def switch(self, build: Path, facts: Mapping[str, object]) -> None:
        """Put a build into use: afterwards `DIR` is the new one, or still the old one, never neither.

        Raises SupervisorError where that cannot be done; then the old one is in use.
        """
        record = {**facts, "previous": self.current.name if self.current else None}
        aside = self.builds / f".{self.link.name}"
        try:
            (build / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            os.sync()  # after a power failure the link must not be newer than what it points to
            aside.unlink(missing_ok=True)
            aside.symlink_to(Path(self.builds.name, build.name))
            if self.link.is_dir() and not self.link.is_symlink():
                self.link.rmdir()  # empty: packages make it
            aside.replace(self.link)
        except OSError as error:
            why = f"{self.link} cannot be switched: {error.strerror}"
            raise SupervisorError("install-vllm", why, "the one in use was not changed; see the directory") from error
        os.sync()

    def discard(self, build: Path) -> None:
        """Remove a build as far as possible, unless it is in use: an interruption may come after the switch."""
        if build == self.current:
            return
        _remove(build)


def _remove(path: Path) -> None:
    """Remove a build, or whatever else is there, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):
            # The record goes first: half a build must not look like a whole one.
            (path / _RECORD).unlink()
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _read(build: Path) -> dict[str, object]:
    try:
        record = json.loads((build / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _in_use(build: Path) -> bool:
    mark = f"{build}/".encode()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if mark in maps.read_bytes():
                return True
    return False


def _not_ours(link: Path, what: str) -> SupervisorError:
    return SupervisorError("install-vllm", f"{link} is {what}", "name another --into, or move it away")
