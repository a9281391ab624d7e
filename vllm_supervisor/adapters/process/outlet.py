"""Where engines write: one file for all, or the journal, where each has a stream of its own."""

import errno
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vllm_supervisor.config.regular import no_log
from vllm_supervisor.domain.spec import JOURNAL, begin_mark, end_mark, journal_mark

# O_NONBLOCK: the open of a FIFO that nobody reads would hold the launch, and then the daemon's end, for ever.
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_JOURNALD = "/run/systemd/journal/stdout"
_JOURNAL_HEADER = b"vllm\n\n6\n0\n0\n0\n0\n"
"""As sd_journal_stream_fd(3) writes it: identifier, unit (journald knows it from the cgroup), priority info, no
priority prefixes in lines, forwarded nowhere."""


def open_log(path: str, journal: str = _JOURNALD) -> int:
    """Open the log for append, with its directories made, or a stream into the journal; raises OSError.

    Also, with EINVAL, for what is neither a regular file nor a device that takes characters: nobody might read a FIFO.
    The engine writes into the file itself: a pipe through the daemon would break vLLM when the daemon dies.
    """
    if path == JOURNAL:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.connect(journal)
            stream.shutdown(socket.SHUT_RD)
            stream.sendall(_JOURNAL_HEADER)
            return stream.detach()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        log = os.open(path, _LOG_FLAGS, 0o640)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise _no_log(os.stat(path).st_mode, path) from error  # noqa: PTH116 - as in `begin`
    mode = os.fstat(log).st_mode
    if no_log(mode) is not None:
        os.close(log)
        raise _no_log(mode, path)
    os.set_blocking(log, True)  # the engine's writes are not to fail where a terminal is slow
    return log


def _no_log(mode: int, path: str) -> OSError:
    return OSError(errno.EINVAL, no_log(mode) or "it cannot be opened", path)


class Outlet:
    """What the engines of one daemon write to.

    `instance` is its name in the journal. `rotate` makes room in the file, to which nobody writes at the time.
    Lines from us mark where a generation's part begins, and in the journal where it ends: journald takes in what is
    written to it some milliseconds later, and a reader has to know when it has seen all.
    """

    def __init__(
        self, path: str, instance: str, rotate: Callable[[], object] = lambda: None, journal: str = _JOURNALD
    ) -> None:
        self._path = path
        self._instance = instance
        self._rotate = rotate
        self._journal = journal
        self._stream: socket.socket | None = None

    def prepare(self, generation: int) -> None:
        """Begin this generation's part of the file. Raises OSError, and the engine can write to it all the same."""
        if self._path == JOURNAL:
            return
        self._rotate()
        log = open_log(self._path)
        try:
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            os.write(log, f"{begin_mark(generation)} at {moment}\n".encode())
        finally:
            os.close(log)

    def begin(self, generation: int) -> int:
        """Return the place of this generation's part, as `ports.Engine.log_start` has it."""
        if self._path == JOURNAL:
            return generation
        try:
            return os.stat(self._path).st_size  # noqa: PTH116 - a string, as the rest of this module
        except OSError:
            return 0

    def open(self, generation: int) -> int:
        """Return a descriptor for the engine to write to, which the caller closes. Raises OSError."""
        log = open_log(self._path, self._journal)
        if self._path == JOURNAL:
            self._forget_stream()
            self._stream = socket.socket(fileno=os.dup(log))
            self._tell(journal_mark(generation, self._instance))
        return log

    def ended(self, generation: int) -> None:
        """Mark that no process of this generation is left to write."""
        self._tell(end_mark(generation))
        self._forget_stream()

    def _tell(self, line: str) -> None:
        if self._stream is not None:
            with suppress(OSError):  # a journal that takes nothing must not hold us up
                self._stream.send(f"{line}\n".encode(), socket.MSG_DONTWAIT)

    def _forget_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
