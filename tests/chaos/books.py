"""Counters add up: the daemon's metrics, status and recorder against each other, and against what others counted."""

import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.rig import Rig

PREFIX = "vllm_supervisor_"
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_DRIFT = 0.5
"""Seconds by which the time in all states may differ from the time that passed: two questions are asked, one by one."""
_FAULTY = frozenset({"crash", "hang", "unhealthy", "startup_stall"})
_MORE_DESCRIPTORS = 12
"""What probes, a canary and clients of the moment may hold beside what a ready daemon holds."""

Samples = dict[tuple[str, str], float]
Event = dict[str, Any]


def samples(text: str) -> Samples:
    """Return the samples of an exposition, by name and labels as written."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#") and (match := _SAMPLE.match(line)):
            found[match[1].removeprefix(PREFIX), match[2] or ""] = float(match[3])
    return found


def total(figures: Samples, name: str) -> float:
    """Return the sum over all labels."""
    return sum(value for (family, _), value in figures.items() if family == name)


@dataclass
class Story:
    """What the recorder told of one daemon's life, over several questions."""

    last: int = 0
    gap: bool = False
    events: list[Event] = field(default_factory=list)

    def take(self, events: list[Event]) -> list[Event]:
        """Add what is new, and return it."""
        fresh = [event for event in events if event["seq"] > self.last]
        if fresh:
            self.gap = self.gap or fresh[0]["seq"] != self.last + 1
            self.last = fresh[-1]["seq"]
            self.events += fresh
        return fresh

    def named(self, *names: str) -> list[Event]:
        """Return the events of these names."""
        return [event for event in self.events if event["event"] in names]


class Books:
    """One daemon's life. `launched_before`: how many engines had been launched when it began, by their own count."""

    def __init__(self, launched_before: int) -> None:
        self._launched_before = launched_before
        self._story = Story()
        self._figures: Samples = {}
        self._at = 0.0
        self._descriptors: int | None = None

    def audit(self, rig: Rig, launched: list[int], *, starved: bool) -> list[str] | None:
        """Ask and compare; return what does not add up, or None where something happened meanwhile.

        `launched` are the pids of all engines launched ever.
        """
        before = rig.status()
        at = time.monotonic()
        figures = samples(rig.request("GET", "/metrics")[1].decode())
        after = time.monotonic()
        status = rig.status()
        events = _events(rig)
        if not status["ready"] or status["generation"] != before["generation"]:
            return None
        fresh = self._story.take(events)
        wrong = [
            *self._time(figures, at, after),
            *self._states(figures),
            *self._restarts(figures, status),
            *_chain(fresh, self._story.events),
            *_never_ready_after_stop(self._story.events),
            *([] if starved else _own_failures(fresh)),
        ]
        if not self._story.gap:
            wrong += self._starts(figures, launched[self._launched_before :])
            wrong += self._ends(figures, status["generation"])
        wrong += [f"{name}{{{labels}}} went back" for (name, labels), value in self._figures.items()
                  if name.endswith(("_total", "_count")) and figures.get((name, labels), 0) < value]  # fmt: skip
        self._figures, self._at = figures, at
        return wrong

    def _time(self, figures: Samples, at: float, after: float) -> list[str]:
        if not self._figures:
            return []
        passed, booked = (
            at - self._at,
            total(figures, "state_seconds_total") - total(self._figures, "state_seconds_total"),
        )
        if abs(passed - booked) > _DRIFT + (after - at):
            return [f"{passed:.2f} s passed, and {booked:.2f} s are booked in state_seconds_total"]
        return []

    def _states(self, figures: Samples) -> list[str]:
        states = {labels: value for (name, labels), value in figures.items() if name == "state"}
        wrong = [] if sorted(states.values()) == [0.0] * (len(states) - 1) + [1.0] else [f"not one state: {states}"]
        if figures["ready", ""] != states.get('state="ready"'):
            wrong.append(f"ready is {figures['ready', '']}, and the states {states}")
        return wrong

    def _restarts(self, figures: Samples, status: dict[str, Any]) -> list[str]:
        told = {reason: float(count) for reason, count in status["restarts"]["by_reason"].items()}
        counted = {
            labels.partition('"')[2].rstrip('"'): value
            for (name, labels), value in figures.items()
            if name == "restarts_total"
        }
        wrong = []
        if status["restarts"]["total"] != sum(told.values()):
            wrong.append(f"restarts.total is not the sum: {status['restarts']}")
        if {reason for reason in told.keys() | counted.keys() if told.get(reason, 0.0) != counted.get(reason, 0.0)}:
            wrong.append(f"status tells {told}, the metrics {counted}")
        if sum(counted.values()) > total(figures, "starts_total"):
            wrong.append(f"more restarts than starts: {counted}, {total(figures, 'starts_total')}")
        return wrong

    def _starts(self, figures: Samples, launched: list[int]) -> list[str]:
        """Compare with the launch scripts' own list; one that was ended before its first line is not in it."""
        starts = total(figures, "starts_total")
        spawned = Counter(event["pid"] for event in self._story.named("spawned"))
        exits = {event["generation"]: event for event in self._story.named("leader_exited")}
        silent = [
            event
            for event in self._story.named("spawned")
            if event["pid"] not in launched and event["generation"] in exits
        ]
        undone = [
            event for event in self._story.named("launch_blocked") if event["kind"] in ("launcher", "spawn", "internal")
        ]
        wrong = []
        if starts != sum(spawned.values()):
            wrong.append(f"starts_total is {starts}, and {sum(spawned.values())} launches are recorded")
        if not starts - len(silent) <= len(launched) <= starts + len(undone):
            wrong.append(
                f"starts_total is {starts}, and {len(launched)} launch scripts ran ({len(silent)} ended at once)"
            )
        return wrong

    def _ends(self, figures: Samples, now: int) -> list[str]:
        exits = total(figures, "engine_exits_total")
        diagnosed = len(self._story.named("engine_diagnosed"))
        faulty = {
            e["generation"]
            for e in self._story.named("phase_changed")
            if e["cause"] in _FAULTY and e["generation"] < now
        }
        wrong = []
        if exits != diagnosed:
            wrong.append(f"engine_exits_total is {exits}, and {diagnosed} diagnoses are recorded")
        if exits != len(faulty):
            wrong.append(f"engine_exits_total is {exits}, and the generations that failed are {sorted(faulty)}")
        return wrong

    def descriptors(self, count: int) -> list[str]:
        """Compare the descriptors of a daemon whose engine is ready with those of the first time."""
        if self._descriptors is None:
            self._descriptors = count
        if count > self._descriptors + _MORE_DESCRIPTORS:
            return [f"{count} descriptors, and {self._descriptors} at first"]
        return []


def _events(rig: Rig) -> list[Event]:
    return [json.loads(line) for line in rig.request("GET", "/v1/events")[1].splitlines()]


def _chain(fresh: list[Event], events: list[Event]) -> list[str]:
    wrong = [f"the recorder goes from {a['seq']} to {b['seq']}" for a, b in pairwise(fresh) if a["seq"] + 1 != b["seq"]]
    for one, other in pairwise(events[-len(fresh) - 1 :]):
        if other["generation"] < one["generation"]:
            wrong.append(f"the generation goes from {one['generation']} to {other['generation']}")
    return wrong


def _never_ready_after_stop(events: list[Event]) -> list[str]:
    wanted, wrong = True, []
    for event in events:
        name = event["event"]
        if name in ("stop_asked", "shutdown_asked"):
            wanted = False
        elif name in ("start_asked", "restart_asked") and event["intent"] == "up":
            wanted = True
        elif name == "phase_changed" and event["after"] == "ready" and not wanted:
            wrong.append(f"ready after a stop was asked for, event {event['seq']}")
    return wrong


def _own_failures(fresh: list[Event]) -> list[str]:
    return [f"told of itself: {event}" for event in fresh if event["event"] in ("internal_error", "request_failed")]
