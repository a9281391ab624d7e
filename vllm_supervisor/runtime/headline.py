"""The public state in words, for systemd's STATUS: an observer that tells it whenever it changes."""

import math
from collections.abc import Callable
from typing import assert_never

from vllm_supervisor.domain.messages import Event, Record
from vllm_supervisor.domain.model import Phase, State
from vllm_supervisor.ports import Note
from vllm_supervisor.runtime.facts import Facts

INTERVAL = 1.0
"""Seconds between two lines about the same start."""


class Headline:
    """An Observer. `tell` gets one line, when it differs from the one before; of a start's progress, one a second.

    A line that `tell` answers with False is told again.

    `facts` returns what is known now. While an engine starts, probes bring a step several times a second.
    """

    def __init__(self, tell: Callable[[str], object], facts: Callable[[], Facts] = Facts) -> None:
        self._tell = tell
        self._facts = facts
        self._text = ""
        self._remark = ""
        self._told = ""
        self._told_at = -math.inf
        self._failed = False

    @property
    def text(self) -> str:
        """What was told last of the state."""
        return self._text

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:  # noqa: ARG002 -- Observer's shape
        """Tell the state that a step led to."""
        starting = before.phase is after.phase is Phase.STARTING
        if starting and now - self._told_at < INTERVAL:
            return
        if self._failed and after.phase is Phase.EXITED:
            return  # the cause is what whoever looks at a daemon that gave up wants to read
        text = headline(after, now)
        if after.phase is Phase.STARTING and after.process is not None:
            text = ": ".join(part for part in (text, progress_text(self._facts(), now)) if part)
        self._text = text
        if self._say():
            self._told_at = now

    def _say(self) -> bool:
        """Tell what there is to tell; False where that is no news."""
        text = "; ".join(part for part in (self._text, self._remark) if part)
        if text == self._told:
            return False
        # Not taken (the manager is behind with reading): the next step tries again.
        if self._tell(text) is not False:
            self._told = text
        return True

    def recorded(self, record: Record) -> None:
        """Take note of a failure: where the daemon ends with it, no step shows a state that has it."""
        if record.after is Phase.FAILED:
            self._failed, self._text = True, f"failed: {record.detail}"
            self._say()
        elif record.after is not Phase.EXITED:
            self._failed = False

    def noted(self, note: Note) -> None:
        """Say what is wrong with a configuration that was refused, until the next one that is not."""
        if note.kind == "config_refused":
            problems = note.fields.get("problems")
            first, *more = problems if isinstance(problems, list) and problems else ["no reason is known"]
            self._remark = f"reload refused: {first}" + (f" (and {len(more)} more)" if more else "")
        elif note.kind == "config_reloaded":
            self._remark = ""
        self._say()


def progress_text(facts: Facts, now: float) -> str:
    """Return where a start stands: phase, percent, what holds it up, and about how long it still takes."""
    moved, progress = facts.moved, facts.progress
    name = progress.name if progress else moved.name if moved else ""
    same = moved is not None and moved.name == name
    percent = f"{moved.progress:.0%}" if moved and same and moved.progress is not None else ""
    detail = progress.detail if progress and progress.detail else moved.detail if moved and same else ""
    left = f"about {about(moved.ready_by - now)} left" if moved and moved.ready_by is not None else ""
    return ", ".join(part for part in (" ".join(part for part in (name, percent) if part), detail, left) if part)


def about(seconds: float) -> str:
    """Return a length of time that is only a guess, and that should not change with every look."""
    if seconds < 60:  # noqa: PLR2004 -- a minute
        return f"{max(1, math.ceil(seconds / 5)) * 5} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"  # noqa: PLR2004 -- two hours


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
