"""Transcripts: a story of events with the machine's answers, in plain text, replayed and compared.

A line `at 12.0 probed refused` is an event at that second; `until 75` lets time pass and wakes the machine whenever it
asked for it; `policy stop_grace=10` and `u 0.5` set what the story needs; `#` and empty lines are kept. Lines that
begin with two spaces are the machine's answers, in the words of `telling.tell`, and after `->` the phase, the intent
and the time of the next wake-up. Time and events are those of the file: nothing here decides.
"""

from collections.abc import Iterator
from dataclasses import replace

from tests.domain.situations import BLOCKER, PID
from tests.domain.telling import tell
from vllm_supervisor.domain.machine import needs, step
from vllm_supervisor.domain.messages import (
    Adopted,
    Blocked,
    Cleared,
    DeadlinePassed,
    Drained,
    Event,
    GroupEmpty,
    LeaderExited,
    Probed,
    RestartAsked,
    Served,
    ShutdownAsked,
    Spawned,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import Cause, ExitStatus, Outcome, Policy, State


def replay(text: str) -> str:
    """Return the story of `text` with the answers that the machine gives now."""
    return "\n".join(_Story().lines(text)) + "\n"


class _Story:
    def __init__(self) -> None:
        self._state = State()
        self._policy = Policy()
        self._u = 0.5
        self._now = 0.0

    def lines(self, text: str) -> Iterator[str]:
        for line in text.splitlines():
            if line.startswith("  "):
                continue
            yield line
            match line.split():
                case ["policy", *pairs]:
                    changes = {name: float(value) for name, value in (pair.split("=") for pair in pairs)}
                    self._policy = replace(self._policy, **changes)  # type: ignore[arg-type]
                case ["u", value]:
                    self._u = float(value)
                case ["until", at]:
                    yield from self._wait(float(at))
                case ["at", at, *words] if float(at) >= self._now:
                    self._now = float(at)
                    yield self._hear(event_of(words, self._state.generation))
                case [] | ["#", *_]:
                    pass
                case _:
                    raise AssertionError(f"not a line of a transcript: {line!r}")

    def _wait(self, until: float) -> Iterator[str]:
        while (wake_at := needs(self._state, self._policy).wake_at) is not None and wake_at <= until:
            self._now = max(self._now, wake_at)
            yield self._hear(DeadlinePassed(), f"{self._now:g}: ")
        self._now = until

    def _hear(self, event: Event, prefix: str = "") -> str:
        before = self._state
        self._state, effects = step(before, event, self._now, self._policy, self._u)
        told = tell(before, self._state, effects, self._now, absolute=True)
        wake_at = needs(self._state, self._policy).wake_at
        wake = "" if wake_at is None else f" wake={wake_at:g}"
        return f"  {prefix}{told} -> {self._state.phase} {self._state.intent}{wake}"


def event_of(words: list[str], current: int) -> Event:
    """Return the event that `words` name; a trailing `of N` makes it about generation N instead of the current one."""
    match words:
        case [*rest, "of", number]:
            return event_of(rest, int(number))
        case ["start"]:
            return StartAsked()
        case ["stop"]:
            return StopAsked()
        case ["stop", "--no-drain"]:
            return StopAsked(drain=False)
        case ["restart"]:
            return RestartAsked()
        case ["restart", "--no-drain"]:
            return RestartAsked(drain=False)
        case ["reload"]:
            return RestartAsked(Cause.CONFIG)
        case ["shutdown"]:
            return ShutdownAsked()
        case _:
            return _fact_of(words, current)


def _fact_of(words: list[str], generation: int) -> Event:
    match words:
        case ["adopted", number]:
            return Adopted(int(number), PID, leader_alive=True)
        case ["adopted", number, "orphans"]:
            return Adopted(int(number), PID, leader_alive=False)
        case ["cleared"]:
            return Cleared(generation)
        case ["blocked"]:
            return Blocked(generation, BLOCKER)
        case ["spawned"]:
            return Spawned(generation, PID)
        case ["exited", "signal", number]:
            return LeaderExited(generation, ExitStatus(signal=int(number)))
        case ["exited", code]:
            return LeaderExited(generation, ExitStatus(code=int(code)))
        case ["empty"]:
            return GroupEmpty(generation)
        case ["probed", outcome]:
            return Probed(generation, Outcome(outcome), 0.01)
        case ["served"]:
            return Served(generation)
        case ["drained"]:
            return Drained(generation)
        case _:
            raise AssertionError(f"no such event: {' '.join(words)}")
