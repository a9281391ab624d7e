"""The judge can find fault: each promise, broken by what was seen, is told, and what is excused is not."""

from dataclasses import replace

import pytest

from tests.chaos.judge import Judge, Window
from tests.chaos.sight import Answer, Health, Look, Sight, read, write


def look(at: float, *, engines: dict[str, list[int]] | None = None, daemon: str = "S", late: float = 0.0) -> Look:
    living = {"7": [7, 8]} if engines is None else engines
    return Look(at, living, sorted(living) if len(living) > 1 else [], daemon, late)


def frozen(at: float) -> Look:
    return replace(look(at), frozen=True)


def answer(at: float, state: str = "ready", *, took: float = 0.001, waited: float = 0.0, pid: int = 7) -> Answer:
    return Answer(at - took, at, 200, "", state, 1, pid, waited)


def silence(at: float) -> Answer:
    return Answer(at - 3, at, 0, "TimeoutError", "", 0, 0, 0.0)


def every(
    seconds: float, sight: str, *, pid: int = 7, health: str = "ok", engines: dict[str, list[int]] | None = None
) -> list[Sight]:
    """Return looks and answers, ten a second, that tell the same all the time."""
    seen: list[Sight] = []
    for tick in range(int(seconds * 10)):
        at = 1 + tick / 10
        seen += [look(at, engines=engines), Health(at, health), answer(at + 0.05, sight, pid=pid)]
    return seen


BROKEN: dict[str, tuple[list[Sight], str]] = {
    "two engines": ([look(1, engines={"7": [7], "9": [9]})], "one engine"),
    "no daemon": ([look(1, daemon="")], "the daemon lives"),
    "no answer": ([look(1), silence(4), look(5)], "the socket answers"),
    "a slow answer": ([look(1), answer(2, took=0.2), look(3)], "the socket answers within 100 ms"),
    "a stray": (
        [answer(1, "stopped", pid=0), look(1.1, engines={"": [8]}), answer(1.2, "stopped", pid=0)],
        "no process is left",
    ),
    "ready without an engine": (every(3, "ready", pid=0, engines={}), "what is told is true within 2 s"),
    "a pid that is gone": (every(3, "starting", pid=6, health="dead"), "what is told is true within 2 s"),
    "ready and ill": (every(3, "ready", health="dead"), "what is told is true within 2 s"),
    "starting though it serves": (every(3, "starting"), "what is told is true within 2 s"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_told_once(name: str) -> None:
    """What breaks a promise is told, and an untruth that goes on is told once."""
    seen, promise = BROKEN[name]
    judge = Judge([Window("calm", 0)])
    judge.take(seen)
    assert [broken.promise for broken in judge.broken] == [promise]


FINE: dict[str, tuple[list[Sight], list[Window]]] = {
    "all is well": (every(3, "ready"), []),
    "down on purpose": ([look(1, daemon=""), silence(4), look(5)], [Window("down", 0.5)]),
    "stopped on purpose": ([look(1), answer(2, took=0.5), look(3)], [Window("stopped", 1.9, 2.1)]),
    "no processor for the daemon": ([look(1), answer(2, took=0.2, waited=0.15), look(3)], []),
    "hardly a processor for anybody": (
        [look(1), Answer(1.8, 2, 200, "", "ready", 1, 7, 0.01, pressed=0.9), look(3)],
        [],
    ),
    "no processor for the observer": ([look(1), answer(2, took=0.2), look(2.01, late=0.2)], []),
    "ill for a second": (every(1, "ready", health="dead"), []),
    "late is not dead": (every(3, "ready", health="late"), []),
    "starting amid a fault": (every(3, "starting"), []),
    "starting with a member that a signal stopped": (
        [sight if isinstance(sight, Answer | Health) else frozen(sight.at) for sight in every(3, "starting")],
        [Window("calm", 0)],
    ),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_excused_breaks_nothing(name: str) -> None:
    """What was done on purpose, what lasted shorter than allowed, and what the machine did, is no accusation."""
    seen, windows = FINE[name]
    judge = Judge(windows)
    judge.take(seen)
    assert judge.broken == []


def test_sights_travel() -> None:
    """What is written is read."""
    for sight in (look(1.5), answer(2.5), Health(3.5, "ok")):
        assert read(write(sight)) == sight
