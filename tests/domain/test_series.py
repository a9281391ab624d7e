"""What an observation adds to a series, field by field: a verdict would hide which of them it rests on."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from vllm_supervisor.domain.engine import EngineMetrics, ProbeResult, Scrape
from vllm_supervisor.domain.liveness import Series, answered, asked, begin, loaded, looked, suspended
from vllm_supervisor.domain.liveness.series import Pending, Rank
from vllm_supervisor.domain.model import Outcome

STEPS = ("0", "steps")
OTHER = ("1", "steps")
RUNNING = ("0", "running")
FULL = "requests were turned away since the queue is full"


def figures(steps: float = 5, running: float | None = 0, **more: Any) -> EngineMetrics:
    """Return those of one rank; `running` None leaves its gauge away."""
    gauges = {} if running is None else {RUNNING: running}
    return EngineMetrics(running=int(running or 0), waiting=0, counters={STEPS: steps}, gauges=gauges, **more)


STILL = figures()
SPARSE = EngineMetrics(running=2, waiting=0)
"""Figures by which no step could be seen."""


def look(at: float, metrics: EngineMetrics) -> Callable[[Series], Series]:
    """Look at `at`; the answer takes a second."""
    return lambda series: looked(series, Scrape(Outcome.OK, metrics), at, at + 1)


def fail(at: float, outcome: Outcome = Outcome.TIMEOUT) -> Callable[[Series], Series]:
    return lambda series: looked(series, Scrape(outcome, detail="d"), at, at + 1)


def ask(at: float) -> Callable[[Series], Series]:
    return lambda series: asked(series, at)


def answer(at: float, outcome: Outcome = Outcome.OK, status: int | None = None) -> Callable[[Series], Series]:
    return lambda series: answered(series, ProbeResult(outcome, 0.1, f"HTTP {status}", status), at)


def load(at: float, count: int | None) -> Callable[[Series], Series]:
    """Ask for `/load` at `at`; the answer takes a second."""
    return lambda series: loaded(series, count, at, at + 1)


def pause(at: float, *, paused: bool) -> Callable[[Series], Series]:
    return lambda series: suspended(series, at, paused=paused)


TIMEOUT, ERROR, REFUSED, UNKNOWN = Outcome.TIMEOUT, Outcome.ERROR, Outcome.REFUSED, Outcome.UNKNOWN
FAILED = Scrape(TIMEOUT, detail="d")

CASES: dict[str, tuple[list[Callable[[Series], Series]], Mapping[str, object]]] = {
    "it has just served": (
        [],
        {
            "stepped_at": 0.0, "quiet_since": 0.0, "excused_at": 0.0, "resting": "", "metrics": None, "seen_at": None,
            "still_since": None, "ranks": {}, "failed": None, "failed_since": None, "asked_at": None,
            "answered_at": None, "silent": None, "rejected": None, "refusals": 0, "refusal": "", "load": None,
            "load_at": None, "load_since": None, "held_since": None, "countless": False, "start": 0.0,
        },
    ),
    # --- looks
    "a first look is no step": (
        [look(5, STILL)],
        {
            "metrics": STILL, "seen_at": 5, "still_since": 6, "stepped_at": 0, "quiet_since": 0,
            "ranks": {"0": Rank(6, None)}, "rejected": None, "countless": False,
        },
    ),
    "the same figures stand still since the first": (
        [look(5, STILL), look(10, STILL), look(15, STILL)],
        {"seen_at": 15, "still_since": 6, "stepped_at": 0, "ranks": {"0": Rank(6, None)}},
    ),
    "a step was made between the beginning of the look before and now": (
        [look(5, STILL), look(10, figures(6))],
        {"stepped_at": 11, "quiet_since": 5, "still_since": 11, "seen_at": 10, "ranks": {"0": Rank(11, None)}},
    ),
    "or after the canary that was answered since": (
        [look(5, STILL), ask(6), answer(8), look(10, figures(6))], {"stepped_at": 11, "quiet_since": 8},
    ),
    "a step takes back what was silent or turned away": (
        [look(5, STILL), ask(6), answer(7, TIMEOUT), look(8, figures(5, rejections=1)), look(10, figures(6))],
        {"silent": None, "rejected": None},
    ),
    "a counter set back is a new baseline": (
        [look(5, STILL), look(10, STILL), look(15, figures(0))],
        {"stepped_at": 0, "still_since": 16, "ranks": {"0": Rank(16, None)}},
    ),
    "so is a series that was not there": (
        [look(5, STILL), look(10, EngineMetrics(counters={STEPS: 5, OTHER: 1}, gauges={RUNNING: 0}))],
        {"stepped_at": 0, "still_since": 11, "ranks": {"0": Rank(6, None), "1": Rank(11, None)}},
    ),
    "a look that fails changes nothing of what is known": (
        [look(5, STILL), fail(10)],
        {
            "failed": FAILED, "failed_since": 10, "metrics": STILL, "seen_at": 5, "still_since": 6,
            "ranks": {"0": Rank(6, None)}, "countless": False,
        },
    ),
    "they fail since the first": ([fail(10), fail(20), fail(30)], {"failed_since": 10, "countless": False}),
    "until one succeeds": ([fail(10), look(20, STILL), fail(30)], {"failed_since": 30}),
    "which ends it": ([fail(10), look(20, STILL)], {"failed": None, "failed_since": None}),
    "an error means that there are no figures": (
        [look(5, STILL), fail(10, ERROR)],
        {"metrics": None, "still_since": None, "ranks": {}, "seen_at": 5, "failed_since": 10, "countless": True},
    ),
    "figures that show no step are none": ([look(5, SPARSE)], {"metrics": SPARSE, "countless": True}),
    "nor do they show more when a look fails": ([look(5, SPARSE), fail(10)], {"countless": True}),
    # --- ranks
    "a rank runs since the first look that shows it": (
        [look(5, figures(5, 1)), look(10, figures(5, 1)), look(15, figures(5, 1))],
        {"ranks": {"0": Rank(6, 6)}},
    ),
    "one that steps runs since then": (
        [look(5, figures(5, 1)), look(10, figures(6, 1))], {"ranks": {"0": Rank(11, 11)}},
    ),
    "a rank without a gauge has none running": ([look(5, figures(5, None))], {"ranks": {"0": Rank(6, None)}}),
    "nor has one whose gauge vanished, and its counter stands still": (
        [look(5, figures(5, 1)), look(10, figures(5, None))], {"ranks": {"0": Rank(6, None)}},
    ),
    "one whose gauge came runs since then": (
        [look(5, figures(5, None)), look(10, figures(5, 1))], {"ranks": {"0": Rank(6, 11)}},
    ),
    "one that has nothing but a gauge, and was not there": (
        [look(5, STILL), look(10, EngineMetrics(counters={STEPS: 5}, gauges={RUNNING: 0, ("1", "running"): 2}))],
        {"stepped_at": 0, "ranks": {"0": Rank(6, None), "1": Rank(11, 11)}},
    ),
    # --- turned away
    "requests turned away since the look before": (
        [look(5, figures(rejections=3)), look(10, figures(rejections=4))], {"rejected": Pending(11, 11, FULL)},
    ),
    "again: the stretch goes on": (
        [look(5, figures(rejections=3)), look(10, figures(rejections=4)), look(15, figures(rejections=5))],
        {"rejected": Pending(11, 16, FULL)},
    ),
    "no more of them: it ended": (
        [look(5, figures(rejections=3)), look(10, figures(rejections=4)), look(15, figures(rejections=4))],
        {"rejected": Pending(11, 11, FULL)},
    ),
    "the first that were ever counted": (
        [look(5, figures()), look(10, figures(rejections=1))], {"rejected": Pending(11, 11, FULL)},
    ),
    "a count that vanished": ([look(5, figures(rejections=3)), look(10, figures())], {"rejected": None}),
    "a count that was there at the first look": ([look(5, figures(rejections=3))], {"rejected": None}),
    "an engine that steps turns nobody away": (
        [look(5, figures(rejections=3)), look(10, figures(6, rejections=4))], {"rejected": None},
    ),
    # --- asleep and paused
    "asleep": (
        [look(5, STILL), look(10, figures(asleep=True))], {"resting": "asleep", "excused_at": 11, "start": 11},
    ),
    "awake again": (
        [look(5, figures(asleep=True)), look(10, STILL)], {"resting": "", "excused_at": 6, "start": 6},
    ),
    "paused": ([pause(10, paused=True)], {"resting": "paused", "excused_at": 10}),
    "a look says nothing of a pause": ([pause(10, paused=True), look(15, STILL)], {"resting": "paused"}),
    "no longer paused": ([pause(10, paused=True), pause(20, paused=False)], {"resting": "", "excused_at": 10}),
    "asleep is asleep, paused or not": (
        [look(5, figures(asleep=True)), pause(10, paused=True)], {"resting": "asleep", "excused_at": 10},
    ),
    "and goes on when the pause ends": (
        [look(5, figures(asleep=True)), pause(10, paused=False)], {"resting": "asleep", "excused_at": 6},
    ),
    "never paused": ([pause(10, paused=False)], {"resting": "", "excused_at": 0}),
    "a stretch begins with the step, where that is the later": (
        [pause(10, paused=True), ask(15), answer(20)], {"start": 20},
    ),
    # --- load
    "requests of others": ([load(5, 3)], {"load": 3, "load_at": 5, "load_since": 6, "held_since": 6}),
    "there since the first": ([load(5, 3), load(10, 3)], {"load_at": 10, "load_since": 6, "held_since": 6}),
    "more of them, none of which ended": ([load(5, 3), load(10, 4)], {"load": 4, "load_since": 6, "held_since": 6}),
    "fewer: one ended": ([load(5, 3), load(10, 2)], {"load": 2, "load_since": 6, "held_since": 11}),
    "our canary is not among them": ([ask(4), load(5, 3)], {"load": 2, "load_since": 6, "held_since": 6}),
    "nothing but our canary": ([ask(4), load(5, 1)], {"load": 0, "load_since": None, "held_since": 6}),
    "and again": ([ask(4), load(5, 1), load(10, 1)], {"load": 0, "load_since": None, "held_since": 6}),
    "which it may not have counted yet": ([ask(4), load(5, 0)], {"load": 0, "load_since": None, "held_since": None}),
    "none": ([load(5, 0)], {"load": 0, "load_at": 5, "load_since": None, "held_since": None}),
    "none any more": ([load(5, 3), load(10, 0)], {"load": 0, "load_since": None, "held_since": None}),
    "some after none": ([load(5, 0), load(10, 1)], {"load": 1, "load_since": 11, "held_since": 11}),
    "a server that does not say so": (
        [load(5, 3), load(10, None)], {"load": None, "load_at": None, "load_since": None, "held_since": None},
    ),
    "which says so again": (
        [load(5, 3), load(10, None), load(15, 3)], {"load": 3, "load_at": 15, "load_since": 16, "held_since": 16},
    ),
    # --- canaries
    "one is in flight": ([ask(5)], {"asked_at": 5, "answered_at": None}),
    "it was answered: a step": (
        [ask(5), answer(8)], {"asked_at": None, "answered_at": 8, "stepped_at": 8, "quiet_since": 8, "refusals": 0},
    ),
    "an answer ends a row of refusals": (
        [ask(5), answer(6, ERROR, 401), ask(7), answer(8)], {"refusals": 0, "refusal": ""},
    ),
    "and whatever waited": (
        [ask(5), answer(6, TIMEOUT), look(7, figures(5, 1)), ask(8), answer(9, ERROR, 503), ask(10), answer(12)],
        {"silent": None, "rejected": None},
    ),
    "it was given up": (
        [ask(5), answer(8, TIMEOUT)],
        {
            "asked_at": None, "answered_at": 8, "stepped_at": 0,
            "silent": Pending(5, 8, "a canary was not answered"), "refusals": 0,
        },
    ),
    "an end without a beginning has no length": (
        [answer(8, TIMEOUT)], {"silent": Pending(8, 8, "a canary was not answered")},
    ),
    "it was refused": (
        [ask(5), answer(8, ERROR, 401)],
        {"asked_at": None, "answered_at": 8, "refusals": 1, "refusal": "HTTP 401", "stepped_at": 0, "rejected": None},
    ),
    "in a row": (
        [ask(5), answer(6, ERROR, 401), ask(7), answer(8, ERROR, 404)], {"refusals": 2, "refusal": "HTTP 404"},
    ),
    "503 while requests run: the queue is full": (
        [look(5, figures(5, 2)), ask(7), answer(8, ERROR, 503)], {"rejected": Pending(8, 8, FULL), "refusals": 0},
    ),
    "429, too": ([look(5, figures(5, 2)), ask(7), answer(8, ERROR, 429)], {"rejected": Pending(8, 8, FULL)}),
    "or while they wait": (
        [look(5, EngineMetrics(running=0, waiting=1, counters={STEPS: 5})), ask(7), answer(8, ERROR, 503)],
        {"rejected": Pending(8, 8, FULL), "refusals": 0},
    ),
    "503 of an engine at rest means something else": (
        [look(5, STILL), ask(7), answer(8, ERROR, 503)],
        {"rejected": None, "refusals": 1, "refusal": "HTTP 503"},
    ),
    "503 before anything was seen, too": ([ask(7), answer(8, ERROR, 503)], {"rejected": None, "refusals": 1}),
    "503 of a server that counts them: the next look will tell": (
        [look(5, figures(5, 2, rejections=0)), ask(7), answer(8, ERROR, 503)],
        {"rejected": None, "refusals": 0, "asked_at": None, "answered_at": 8},
    ),
    "401 is no full queue, whatever runs": (
        [look(5, figures(5, 2)), ask(7), answer(8, ERROR, 401)], {"rejected": None, "refusals": 1},
    ),
    "nobody listened": (
        [ask(5), answer(8, REFUSED)],
        {"asked_at": None, "answered_at": 8, "silent": None, "rejected": None, "refusals": 0, "stepped_at": 0},
    ),
    "we could not ask": (
        [ask(5), answer(8, UNKNOWN)], {"asked_at": None, "answered_at": 8, "silent": None, "refusals": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_it_comes_to(name: str) -> None:
    """Each field that an observation is about, and those that it must leave alone."""
    observed, expected = CASES[name]
    series = begin(0.0)
    for observe in observed:
        series = observe(series)
    assert {field: getattr(series, field) for field in expected} == expected
