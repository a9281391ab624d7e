"""One daemon for each state directory."""

import errno
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from vllm_supervisor.errors import AlreadyRunningError, ConfigError, Problem

_NAME = "lock"


class StateLock:
    """The held lock. It ends with `release`, or with the process, however that ends; children do not inherit it."""

    def __init__(self, state_dir: Path, fd: int) -> None:
        self._state_dir = state_dir
        self._fd: int | None = fd
        self._turn = threading.Lock()
        """A look that nobody waits for any more may still be under way in its thread."""

    def renew(self) -> bool:
        """Lock the directory anew where what we locked is not there any more, and return whether that was so.

        Whoever removes it under a living daemon lets another one in, which would launch a second engine.
        Raises as `lock_state_dir`: AlreadyRunningError where that has happened.
        """
        with self._turn:
            if self._fd is None or _is_at(self._fd, self._state_dir / _NAME):
                return False
            fd = _lock(self._state_dir)
            os.close(self._fd)
            self._fd = fd
            return True

    def release(self) -> None:
        """Let another daemon in. Harmless a second time."""
        with self._turn:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_state_dir(state_dir: Path) -> StateLock:
    """Make the directory where missing and lock it.

    Raises AlreadyRunningError where another daemon holds it, which is then left untouched, and ConfigError where it
    cannot be written.
    """
    return StateLock(state_dir, _lock(state_dir))


def _lock(state_dir: Path) -> int:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(state_dir / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        taken = exc.errno in {errno.EEXIST, errno.ENOTDIR}
        why = f"{state_dir} cannot be used: {'something else is in its place' if taken else exc.strerror}"
        remedy = f"{'remove that' if taken else 'make it writable for this user'}, or set another directory"
        problem = Problem("state directory", "state_dir", why, remedy)
        raise ConfigError((problem,)) from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        who = f"pid {holder}" if holder.isdecimal() else "another daemon"
        what, why = f"state directory {state_dir}", f"in use by {who}"
        raise AlreadyRunningError(what, why, "stop that daemon, or set another state_dir") from exc
    # The pid is for the message only: the lock is what counts, and it cannot be left behind by a crash.
    with suppress(OSError):  # nor does a full disk keep a service down for it
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False
