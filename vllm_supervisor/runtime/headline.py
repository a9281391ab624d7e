"""The public state in words, for systemd's STATUS: an observer that tells it whenever it changes."""

from collections.abc import Callable
from typing import assert_never

from vllm_supervisor.domain.messages import Event, Record
from vllm_supervisor.domain.model import Phase, State
from vllm_supervisor.ports import Note


class Headline:
    """An Observer. `tell` gets one line, when it differs from the one before."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._told = ""

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:  # noqa: ARG002 -- Observer's shape
        """Tell the state that a step led to."""
        text = headline(after, now)
        if text != self._told:
            self._told = text
            self._tell(text)

    def recorded(self, record: Record) -> None:
        """Ignore: `stepped` has the whole state."""

    def noted(self, note: Note) -> None:
        """Ignore notes: none changes the state."""


def headline(state: State, now: float) -> str:
    """Return the state in words. The text is the same for as long as the state is."""
    match state.phase:
        case Phase.STARTING:
            return f"starting, generation {state.generation}"
        case Phase.READY:
            return f"ready, generation {state.generation}"
        case Phase.UNHEALTHY:
            return f"unhealthy, {state.probe_failures} probes failed"
        case Phase.STOPPING:
            return "stopping, waiting for running requests" if state.draining else "stopping, SIGTERM sent"
        case Phase.KILLING:
            return "stopping, SIGKILL sent"
        case Phase.REAPING:
            return "stopping, ending what the engine left"
        case Phase.BACKOFF if state.blocker is not None:
            return f"cannot launch: {state.blocker.why}; {state.blocker.remedy}"
        case Phase.BACKOFF:
            wait = max(0.0, (state.deadline or now) - state.since)
            return f"restart {state.failures} follows {wait:.0f} s after the last failure"
        case Phase.FAILED:
            return f"failed: {state.fail_why}"
        case Phase.STOPPED:
            return "stopped by an operator"
        case Phase.EXITED:
            return "ending"
        case _:
            assert_never(state.phase)
