"""The engine's log in the journal, read back by `journalctl`.

Each engine writes into a stream of its own, whose id journald puts beside each line (`_STREAM_ID`, systemd 235 and
later). The daemon writes the first line of the stream and its last one, and finds the stream by the former: so a
generation's part is found whatever the clock did, whoever else is called vllm, and nothing is missing at its end.

journalctl runs as a child in the daemon's own session, where it cannot be taken for a process of the engine, for a
bounded time. One that follows ends when nobody reads its pipe any more, also after a SIGKILL of the daemon.
"""

import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager

import anyio
from anyio import to_thread

from vllm_supervisor.domain.spec import end_mark, journal_mark

LINES = 20_000
"""Most lines of a part: its last ones, as of a flood. vLLM prints some hundreds in a start."""
LIMIT = 1 << 20
"""Most bytes of a tail."""
SECONDS = 1.5
"""For reading a part, which the next launch waits for."""
_SETTLES = 1.0
"""Seconds for journald to take in the last lines of an engine that is gone; milliseconds are usual."""
_AGAIN = 0.05
_APPEARS = 10.0
"""Seconds after which a first line that cannot be found shows that we may not read."""
_PAUSE, _LONGEST_PAUSE = 3.0, 2.0
"""How many times its own duration follows a look at a start, and seconds at most: each look is a process."""
_PROVES = 3.0
"""Seconds for a line of our own to come back from the journal, below those for which a client waits for an answer."""
_JOURNALD = "/run/systemd/journal/socket"
_LOOK = 500
"""Lines of one look. After as many the rest is skipped: a flood is not read, its end is."""
_LOOK_SECONDS = 3.0
_CHUNK = 1 << 16
_STREAM = b"_STREAM_ID="
_CURSOR = b"-- cursor: "
_IDENTIFIER = "SYSLOG_IDENTIFIER=vllm"

UNREADABLE = (
    "this user may not read the journal: phases are not known, and a diagnosis rests on the exit code alone; "
    "give the service SupplementaryGroups=systemd-journal, or set engine.vllm.log_file to a file"
)
MISSING = "journalctl is not installed: a diagnosis rests on the exit code alone; set engine.vllm.log_file to a file"


class Journal:
    """The journal, as this process may read it. `instance` is in first lines; `environ` says where journalctl is.

    Implements `api.LogReader` too: what all engines of this invocation of the service wrote, else all of this user's.
    """

    def __init__(self, environ: Mapping[str, str], instance: str, journald: str = _JOURNALD) -> None:
        self._program = shutil.which("journalctl", path=environ.get("PATH"))
        self._env = {"PATH": environ.get("PATH", os.defpath), "LC_ALL": "C"}
        self._instance = instance
        invocation = environ.get("INVOCATION_ID")
        self._ours = f"_SYSTEMD_INVOCATION_ID={invocation}" if invocation else f"_UID={os.geteuid()}"
        self._streams: dict[int, str] = {}
        """Generation -> its stream, of the last one."""
        self._journald = journald
        self._may_read: bool | None = None
        self._proving = anyio.Lock()
        self._expected = -1

    @property
    def unread(self) -> str | None:
        """Say in words why nothing can be read; None where it can be, or nobody knows yet."""
        if self._program is None:
            return MISSING
        return UNREADABLE if self._may_read is False else None

    def expect(self, generation: int) -> None:
        """Take note that this daemon launched `generation`: its first line must be there to be read."""
        self._expected = generation

    def missed(self, generation: int) -> None:
        """Take note that its first line is not to be seen: then nothing can be read, until something is."""
        if generation == self._expected:
            self._may_read = False

    async def why_unread(self) -> str | None:
        """Say in words why nothing can be read, after an attempt where nobody knows yet; None where it can be."""
        async with self._proving:
            if self.unread is None and self._may_read is None:
                await to_thread.run_sync(self._prove, abandon_on_cancel=True)
        return self.unread

    def _prove(self) -> None:
        """Find out whether what this user writes into the journal comes back."""
        text = f"[vllm-supervisor] instance {self._instance} looks whether it may read this ({os.getpid()})"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.sendto(f"MESSAGE={text}\nSYSLOG_IDENTIFIER=vllm-supervisor\n".encode(), self._journald)
        except OSError:
            return
        deadline = time.monotonic() + _PROVES
        wanted = (f"_UID={os.geteuid()}", f"MESSAGE={text}")
        while not (found := self._collect("-o", "cat", "-n", "1", *wanted)) and time.monotonic() < deadline:
            time.sleep(_AGAIN)
        if self._may_read is None:
            self._may_read = bool(found)

    # --- one generation's part; blocking

    def stream(self, generation: int) -> str | None:
        """Return the match for this generation's lines; None while its first line is not to be seen."""
        known = self._streams.get(generation)
        if known is not None:
            return known
        # Of this user: everybody may write such lines.
        wanted = (f"_UID={os.geteuid()}", f"MESSAGE={journal_mark(generation, self._instance)}")
        found = self._collect("-o", "export", "--output-fields=_STREAM_ID", "-n", "1", *wanted)
        for line in found.splitlines():
            if line.startswith(_STREAM):
                self._may_read = True
                self._streams = {generation: line.decode()}
        return self._streams.get(generation)

    def part(self, generation: int) -> Iterator[bytes]:
        """Yield what an engine that is gone wrote, in pieces, but for our first line; nothing where we may not read."""
        deadline = time.monotonic() + (_SETTLES if self.unread is None else 0.0)
        while (stream := self.stream(generation)) is None:
            if time.monotonic() > deadline:
                self.missed(generation)
                return
            time.sleep(_AGAIN)
        while not self._collect("-n", "1", "-o", "cat", stream, f"MESSAGE={end_mark(generation)}"):
            if time.monotonic() > deadline:
                break
            time.sleep(_AGAIN)
        ours = f"{journal_mark(generation, self._instance)}\n".encode()
        head: bytes | None = b""
        for piece in self._pieces(SECONDS, "-a", "-o", "cat", "-n", str(LINES), stream):
            if head is None:
                yield piece
            elif len(head + piece) >= len(ours):
                yield (head + piece).removeprefix(ours)
                head = None
            else:
                head += piece
        if head:
            yield head

    def since(self, stream: str, cursor: str | None) -> tuple[list[bytes], str | None]:
        """Return the lines after `cursor` (None: from the first), at most so many, and the cursor after them."""
        place = [] if cursor is None else [f"--after-cursor={cursor}"]
        lines, last = self._look(*place, "-n", str(_LOOK), stream)
        if place and len(lines) >= _LOOK:
            lines, last = self._look("-n", str(_LOOK), stream)
        return lines, last or cursor

    def _look(self, *arguments: str) -> tuple[list[bytes], str | None]:
        found = self._collect("-a", "-o", "cat", "--show-cursor", *arguments)
        lines = found.split(b"\n")[:-1]
        if not lines or not lines[-1].startswith(_CURSOR):
            return lines, None
        return lines[:-1], lines[-1].removeprefix(_CURSOR).decode()

    # --- all of it, for clients

    async def tail(self, lines: int) -> bytes:
        """Return the last `lines` lines, at most LIMIT bytes of them."""
        return await to_thread.run_sync(self._tail, lines, abandon_on_cancel=True)

    def _tail(self, lines: int) -> bytes:
        return self._collect("-a", "-o", "cat", "-n", str(lines), _IDENTIFIER, self._ours)

    async def follow(self, lines: int) -> AsyncGenerator[bytes, None]:
        """Yield the last `lines` lines and what comes. A reader that is slow holds up journalctl, and nobody else."""
        if self._program is None:
            return
        # Without --merge it would show this boot's lines only, and a container's service sees another boot's id.
        with self._running("--merge", "-f", "-a", "-o", "cat", "-n", str(lines), _IDENTIFIER, self._ours) as fd:
            while True:
                await anyio.wait_readable(fd)
                piece = os.read(fd, _CHUNK)
                if not piece:
                    return
                yield piece

    # --- journalctl

    def _collect(self, *arguments: str) -> bytes:
        """Return the end of what journalctl prints."""
        found = b""
        for piece in self._pieces(_LOOK_SECONDS, *arguments):
            found = (found + piece)[-LIMIT:]
        return found

    def _pieces(self, seconds: float, *arguments: str) -> Iterator[bytes]:
        """Yield what journalctl prints within so many seconds."""
        if self._program is None:
            return
        deadline = time.monotonic() + seconds
        with self._running(*arguments) as fd:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while poll.poll(max(0.0, deadline - time.monotonic()) * 1000) and (piece := os.read(fd, _CHUNK)):
                yield piece

    @contextmanager
    def _running(self, *arguments: str) -> Iterator[int]:
        child = subprocess.Popen(  # noqa: S603 -- found on our own PATH, without a shell
            [self._program or "journalctl", "-q", "--no-pager", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._env,
        )
        try:
            if child.stdout is None:
                raise TypeError(child)
            yield child.stdout.fileno()
        finally:
            child.kill()
            child.communicate()


class JournalLog:
    """Implements `ports.StartLog` on one generation's part of the journal."""

    def __init__(self, journal: Journal, generation: int) -> None:
        self._journal = journal
        self._generation = generation
        journal.expect(generation)
        self._began = time.monotonic()
        self._next = self._began
        self._cursor: str | None = None
        self._limiter = anyio.CapacityLimiter(1)

    @property
    def unread(self) -> str | None:
        """Say in words why this log cannot be read; None where it can be, or nobody knows yet."""
        return self._journal.unread

    async def read(self) -> list[str]:
        """Return the lines that came since the last call. Raises OSError."""
        begun = time.monotonic()
        if begun < self._next:
            return []
        # A limiter of our own: a journal that hangs shall cost one thread, not the daemon all of its own.
        found = await to_thread.run_sync(self._take, abandon_on_cancel=True, limiter=self._limiter)
        now = time.monotonic()
        self._next = now + min(_LONGEST_PAUSE, _PAUSE * (now - begun))
        return found

    def _take(self) -> list[str]:
        stream = self._journal.stream(self._generation)
        if stream is None:
            if time.monotonic() - self._began > _APPEARS:
                self._journal.missed(self._generation)
            return []
        lines, self._cursor = self._journal.since(stream, self._cursor)
        pieces = (piece for line in lines for piece in line.split(b"\r"))
        return [piece.decode(errors="replace") for piece in pieces if piece.strip()]
