"""`systemd.ready_when: engine`: the service counts as started once the engine is ready."""

import math
from collections.abc import Callable

from vllm_supervisor.domain.messages import Event, Record
from vllm_supervisor.domain.model import Phase, State
from vllm_supervisor.ports import Note

INTERVAL = 10.0
EXTENSION = 60.0
"""Seconds asked for, and how often: a start may take an hour, and one that stalls is ended by its own deadline."""


class ReadinessNotice:
    """An Observer. Calls `ready` until it is taken, once the engine first is; until then `extend`, while one starts."""

    def __init__(self, ready: Callable[[str], bool], extend: Callable[[float], object]) -> None:
        self._ready = ready
        self._extend = extend
        self._done = False
        self._extended_at = -math.inf

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:  # noqa: ARG002 -- Observer's shape
        """Tell of the engine's readiness, or ask for more time."""
        if self._done:
            return
        if after.phase is Phase.READY:
            # Not taken (the manager is behind with reading): the next probe brings another step.
            self._done = self._ready("ready")
        elif after.phase is Phase.STARTING and after.process is not None and now - self._extended_at >= INTERVAL:
            self._extended_at = now
            self._extend(EXTENSION)

    def recorded(self, record: Record) -> None:
        """Ignore: `stepped` has the whole state."""

    def noted(self, note: Note) -> None:
        """Ignore notes: none is readiness."""
