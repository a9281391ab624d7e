"""Reads a log, or one generation's part of it, in bounded memory."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import BinaryIO, Protocol

from anyio import to_thread

from vllm_supervisor.config.regular import open_regular
from vllm_supervisor.domain.diagnosis import Context, Diagnoser, Diagnosis, Scanner


def read_into(diagnoser: Diagnoser, chunks: Iterable[bytes]) -> None:
    """Feed `diagnoser` a whole log in chunks, cut anywhere."""
    scanner = Scanner(diagnoser)
    for chunk in chunks:
        scanner.feed(chunk)
    scanner.finish()


class JournalPart(Protocol):
    """What reads parts of a log that is no file."""

    @property
    def unread(self) -> str | None:
        """Say in words why nothing can be read; None where it can be, or nobody knows yet."""
        ...

    def part(self, generation: int) -> Iterable[bytes]:
        """Yield what an engine that is gone wrote, in pieces, bounded in all."""
        ...


class GenerationLog:
    """Implements `ports.PartOfLog` on the engine's log file, or on what `journal` reads instead.

    `mask` takes secrets out of what is quoted.
    """

    LIMIT = 64 * 1024 * 1024
    """Bytes read at most, the last ones: a cause stands where it ended."""
    SECONDS = 1.5
    TAIL = 1024 * 1024
    """Bytes at the end that are read even when time is up."""
    PIECE = 256 * 1024
    """Bytes looked at in one go: matching holds the interpreter, and the control socket waits for that long."""

    def __init__(self, path: str, mask: Callable[[str], str], journal: JournalPart | None = None) -> None:
        self._path = path
        self._mask = mask
        self._journal = journal

    @property
    def unread(self) -> str | None:
        """Say in words why this log cannot be read; None where it can be, or nobody knows yet."""
        return None if self._journal is None else self._journal.unread

    async def diagnose(self, start: int, context: Context) -> Diagnosis | None:
        """Name the cause that the log from byte `start` shows, None where it shows none. Raises OSError.

        Without a log to read (a journal that is not ours to read), what is known beside it decides.
        """
        return await to_thread.run_sync(self._diagnose, start, context, abandon_on_cancel=True)

    def _diagnose(self, start: int, context: Context) -> Diagnosis | None:
        diagnoser = Diagnoser()
        if self._journal is not None:
            scanner = Scanner(diagnoser)
            for piece in self._journal.part(start):
                scanner.feed(piece)
            scanner.finish()
        else:
            with open_regular(self._path) as stream:
                self._feed(Scanner(diagnoser), stream, start)
        found = diagnoser.verdict(context)
        if found is None:
            return None
        evidence = None if found.evidence is None else self._mask(found.evidence)
        return replace(found, evidence=evidence, action=self._mask(found.action))

    def _feed(self, scanner: Scanner, stream: BinaryIO, start: int) -> None:
        deadline = time.monotonic() + self.SECONDS
        end = os.fstat(stream.fileno()).st_size
        # A file shorter than at the launch was truncated or begun anew since.
        place = max(start if start <= end else 0, end - self.LIMIT)
        stream.seek(place)
        while place < end and (piece := stream.read(self.PIECE)):
            scanner.feed(piece)
            place += len(piece)
            if time.monotonic() > deadline and end - place > self.TAIL:
                place = end - self.TAIL
                stream.seek(place)
                scanner.feed(b"\n")
        scanner.finish()
