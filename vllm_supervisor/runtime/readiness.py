"""What a service manager is told of time: that the engine is ready, and how long a start or an end may still take."""

import math
from collections.abc import Callable

from vllm_supervisor.domain.messages import Event, Record
from vllm_supervisor.domain.model import Intent, Phase, State
from vllm_supervisor.ports import Note

INTERVAL = 10.0
EXTENSION = 60.0
"""Seconds asked for, and how often: a start may take an hour, and one that stalls is ended by its own deadline."""


class ReadinessNotice:
    """An Observer. Calls `ready` until it is taken, once the engine first is; until then `extend`, while one starts.

    `give_up` is called when none will be: whoever waits for it would wait until their own limit, learn nothing, and
    begin all over again.
    """

    def __init__(
        self, ready: Callable[[str], bool], extend: Callable[[float], object], give_up: Callable[[], object]
    ) -> None:
        self._ready = ready
        self._extend = extend
        self._give_up = give_up
        self._done = False
        self._extended_at = -math.inf

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:  # noqa: ARG002 -- Observer's shape
        """Tell of the engine's readiness, or ask for more time."""
        if self._done:
            return
        if after.phase is Phase.READY:
            # Not taken (the manager is behind with reading): the next probe brings another step.
            self._done = self._ready("ready")
        elif after.phase is Phase.FAILED and after.deadline is None and before.phase is not Phase.FAILED:
            self._give_up()
        elif _moves(after) and now - self._extended_at >= INTERVAL:
            self._extended_at = now
            self._extend(EXTENSION)

    def recorded(self, record: Record) -> None:
        """Ignore: `stepped` has the whole state."""

    def noted(self, note: Note) -> None:
        """Ignore notes: none is readiness."""


def _moves(state: State) -> bool:
    """Say whether an engine starts. One that fails to be launched lets the manager's limit pass."""
    return state.phase is Phase.STARTING and state.process is not None


class EndingNotice:
    """An Observer. While the daemon ends, calls `extend` with the seconds that the step under way may still take.

    A drain may be configured to last longer than the manager's own limit, which would cut it off with SIGKILL.
    """

    def __init__(self, extend: Callable[[float], object]) -> None:
        self._extend = extend
        self._deadline: float | None = None

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:  # noqa: ARG002 -- Observer's shape
        """Ask for time up to each new deadline, and a margin for what follows it."""
        if after.intent is Intent.EXIT and after.deadline is not None and after.deadline != self._deadline:
            self._deadline = after.deadline
            self._extend(max(0.0, after.deadline - now) + EXTENSION)

    def recorded(self, record: Record) -> None:
        """Ignore: `stepped` has the whole state."""

    def noted(self, note: Note) -> None:
        """Ignore notes: none takes time."""
