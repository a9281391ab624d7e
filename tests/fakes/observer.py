"""An observer that keeps everything and wakes those who wait for it."""

from collections.abc import Callable
from typing import TypeVar

import anyio
import pytest

from vllm_supervisor.domain.messages import Event, Record
from vllm_supervisor.domain.model import Phase, State
from vllm_supervisor.ports import Note

T = TypeVar("T")


class RecordingObserver:
    """Implements `ports.Observer`."""

    def __init__(self) -> None:
        self.steps: list[tuple[State, Event, State, float]] = []
        self.records: list[Record] = []
        self.notes: list[tuple[float, Note]] = []
        self.order: list[str] = []
        """Names of what was told, in the order of telling."""
        self._changed = anyio.Event()

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:
        self.steps.append((before, event, after, now))
        self._tell(type(event).__name__)

    def recorded(self, record: Record) -> None:
        self.records.append(record)
        self._tell(f"{record.before}>{record.after}")

    def noted(self, note: Note) -> None:
        self.notes.append((anyio.current_time(), note))
        self._tell(note.kind)

    def _tell(self, what: str) -> None:
        self.order.append(what)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    @property
    def phases(self) -> list[Phase]:
        """The phases entered, in order."""
        return [record.after for record in self.records]

    def noticed(self, kind: str) -> list[Note]:
        """Return the notes of one kind."""
        return [note for _, note in self.notes if note.kind == kind]

    async def until(self, check: Callable[[], T], within: float = 1000.0) -> T:
        """Return the first truthy result of `check`, looked at after whatever is told and ten times a second.

        Fails after `within` seconds.
        """
        with anyio.move_on_after(within):
            while not (result := check()):
                with anyio.move_on_after(0.1):
                    await self._changed.wait()
            return result
        pytest.fail(f"not within {within} s; told last: {self.order[-30:]}; last result: {check()!r}")
