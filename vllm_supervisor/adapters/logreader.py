"""Reads a log, or one generation's part of it, in bounded memory."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from anyio import to_thread

from vllm_supervisor.domain.diagnosis import Context, Diagnoser, Diagnosis, Scanner
from vllm_supervisor.domain.spec import JOURNAL

CHUNK = 1024 * 1024
"""Bytes read at a time: large enough for disk speed, and with the carry of one line all that is held."""


def read_into(diagnoser: Diagnoser, stream: BinaryIO) -> None:
    """Feed `diagnoser` everything in `stream`, which may be a pipe. Raises OSError where it cannot be read."""
    scanner = Scanner(diagnoser)
    while chunk := stream.read(CHUNK):
        scanner.feed(chunk)
    scanner.finish()


class GenerationLog:
    """Implements `ports.PartOfLog` on the engine's log file. `mask` takes secrets out of what is quoted."""

    LIMIT = 64 * 1024 * 1024
    """Bytes read at most, the last ones: a cause stands where it ended."""
    SECONDS = 1.5
    TAIL = 1024 * 1024
    """Bytes at the end that are read even when time is up."""
    PIECE = 256 * 1024
    """Bytes looked at in one go: matching holds the interpreter, and the control socket waits for that long."""

    def __init__(self, path: str, mask: Callable[[str], str]) -> None:
        self._path = path
        self._mask = mask

    async def diagnose(self, start: int, context: Context) -> Diagnosis | None:
        """Name the cause that the log from byte `start` shows, None where it shows none. Raises OSError.

        Without a log to read (the journal has it), what is known beside it decides.
        """
        return await to_thread.run_sync(self._diagnose, start, context, abandon_on_cancel=True)

    def _diagnose(self, start: int, context: Context) -> Diagnosis | None:
        diagnoser = Diagnoser()
        if self._path != JOURNAL:
            with Path(self._path).open("rb", buffering=0) as stream:
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
