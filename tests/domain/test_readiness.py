"""From a probe's answer to ready, unhealthy, and the end."""

from dataclasses import replace

import pytest

from tests.domain.situations import NOW, POLICY, Word, go, leader_exited, probed, served, situation
from vllm_supervisor.domain.machine import needs, step
from vllm_supervisor.domain.messages import DeadlinePassed, Probed, Served
from vllm_supervisor.domain.model import Intent, Outcome, Phase, Policy

REFUSED, ERROR, TIMEOUT = probed(Outcome.REFUSED), probed(Outcome.ERROR), probed(Outcome.TIMEOUT)
OK, BUSY, UNKNOWN = probed(Outcome.OK), probed(Outcome.BUSY), probed(Outcome.UNKNOWN)


@pytest.mark.parametrize("outcome", Outcome)
def test_health_alone_never_makes_a_start_ready(outcome: Outcome) -> None:
    """While starting, `/health` 200 says little: ready means it served."""
    state = situation("starting")
    assert go(state, *[probed(outcome)] * 10) == state


def test_served_is_not_believed_when_nobody_wants_the_engine() -> None:
    """Ready is never reported once the intent is another, whatever else happened."""
    state = replace(situation("starting"), intent=Intent.DOWN)
    assert go(state, served) == state


@pytest.mark.parametrize(
    ("words", "phase", "failures"),
    [
        pytest.param((TIMEOUT, TIMEOUT), Phase.READY, 2, id="two failures are not three"),
        pytest.param((TIMEOUT, TIMEOUT, TIMEOUT), Phase.UNHEALTHY, 3, id="three failures are the threshold"),
        pytest.param((REFUSED, ERROR, TIMEOUT), Phase.UNHEALTHY, 3, id="failures of any kind add up"),
        pytest.param((TIMEOUT, TIMEOUT, OK, TIMEOUT, TIMEOUT), Phase.READY, 2, id="an answer starts the count afresh"),
        pytest.param((TIMEOUT, TIMEOUT, BUSY, TIMEOUT), Phase.READY, 1, id="so do moving counters"),
        pytest.param((TIMEOUT, UNKNOWN, TIMEOUT), Phase.READY, 2, id="our own failure to ask says nothing"),
        pytest.param((TIMEOUT, UNKNOWN, TIMEOUT, UNKNOWN, TIMEOUT), Phase.UNHEALTHY, 3, id="nor does it hide the rest"),
        pytest.param((BUSY,) * 50, Phase.READY, 0, id="a saturated engine is never unhealthy"),
        pytest.param((UNKNOWN,) * 50, Phase.READY, 0, id="nor is one that we cannot ask"),
    ],
)
def test_threshold(words: tuple[Word, ...], phase: Phase, failures: int) -> None:
    """`probe.failure_threshold` failures in a row make a ready engine unhealthy."""
    state = go(situation("ready"), *words)
    assert (state.phase, state.probe_failures) == (phase, failures)


def test_a_threshold_of_one() -> None:
    """The first failure is enough where the operator says so."""
    assert go(situation("ready"), TIMEOUT, policy=replace(POLICY, failure_threshold=1)).phase is Phase.UNHEALTHY


@pytest.mark.parametrize(
    ("words", "restart_after", "expected"),
    [
        pytest.param([(0, TIMEOUT), (5, TIMEOUT), (10, TIMEOUT)], 40.0, 50.0, id="restart_after from unhealthy on"),
        pytest.param([(0, ERROR), (1, ERROR), (2, ERROR)], 40.0, 42.0, id="which is longer than the self-exit grace"),
        pytest.param(
            [(0, ERROR), (1, ERROR), (2, ERROR)], 0.0, 10.0, id="10 s to exit by itself from the first 503 on"
        ),
        pytest.param([(0, TIMEOUT), (5, ERROR), (6, ERROR)], 3.0, 15.0, id="from the first 503, not the first failure"),
        pytest.param([(0, TIMEOUT), (1, TIMEOUT), (2, TIMEOUT)], 0.0, 2.0, id="silence alone earns no such grace"),
        pytest.param(
            [(0, TIMEOUT), (1, TIMEOUT), (2, TIMEOUT), (4, REFUSED)], 3.0, 14.0, id="refused while unhealthy earns it"
        ),
        pytest.param(
            [(0, TIMEOUT), (1, TIMEOUT), (2, TIMEOUT), (4, REFUSED), (9, REFUSED)], 3.0, 14.0, id="once, not each time"
        ),
        pytest.param(
            [(0, TIMEOUT), (1, TIMEOUT), (2, TIMEOUT), (4, REFUSED)], 40.0, 42.0, id="and it never shortens the wait"
        ),
        pytest.param(
            [(0, ERROR), (1, OK), (20, ERROR), (21, ERROR), (22, ERROR)],
            0.0,
            30.0,
            id="an answer ends the run of deaths",
        ),
    ],
)
def test_when_an_unhealthy_engine_is_ended(
    words: list[tuple[float, Word]], restart_after: float, expected: float
) -> None:
    """Seconds after the first probe at which we act, if nothing else happens."""
    policy = replace(POLICY, restart_after=restart_after)
    state = situation("ready")
    for at, word in words:
        state = go(state, word, policy=policy, now=NOW + at)
    assert state.phase is Phase.UNHEALTHY
    assert state.deadline == NOW + expected


def test_an_engine_that_exits_by_itself_is_a_crash() -> None:
    """503, then an exit within the grace: the exit is the better story."""
    state = go(situation("ready"), ERROR, ERROR, ERROR, leader_exited)
    assert (state.phase, state.cause) == (Phase.REAPING, "crash")


def test_unhealthy_says_what_the_probe_said() -> None:
    """The record carries the probe's own words."""
    state = go(situation("ready"), TIMEOUT, TIMEOUT)
    _, (record,) = step(state, Probed(state.generation, Outcome.TIMEOUT, 10.0, "no answer in 10 s"), NOW, POLICY, 0.5)
    assert "no answer in 10 s" in repr(record)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [pytest.param(0, None, id="nothing to forgive"), pytest.param(2, 600.0, id="after healthy_reset")],
)
def test_failures_are_forgiven_after_a_while_of_ready(failures: int, expected: float | None) -> None:
    """The count starts afresh after `healthy_reset` seconds ready, not at once: flapping keeps its backoff."""
    state = go(replace(situation("starting"), failures=failures, never_ready=1), served)
    assert (state.failures, state.never_ready) == (failures, 0)
    assert state.deadline == (None if expected is None else NOW + expected)


def test_forgiveness_is_quiet() -> None:
    """The count starts afresh, and nothing else happens: no record, no order, no further wake-up."""
    state = go(replace(situation("starting"), failures=2), served)
    after, effects = step(state, DeadlinePassed(), NOW + 600, POLICY, 0.5)
    assert (after, effects) == (replace(state, failures=0, deadline=None), ())
    assert step(state, DeadlinePassed(), NOW + 599.9, POLICY, 0.5) == (state, ())


def test_healthy_reset_counts_from_the_last_time_it_became_ready() -> None:
    """An engine that was unhealthy meanwhile has not been healthy for that long."""
    state = go(replace(situation("unhealthy"), failures=1), OK, now=NOW + 30)
    assert state.deadline == NOW + 630
    state = go(state, *([TIMEOUT] * 3), now=NOW + 40)
    assert state.deadline == NOW + 40 + POLICY.restart_after


@pytest.mark.parametrize("generation", [-1, 0, 2, 3])
@pytest.mark.parametrize("where", ["starting", "unhealthy", "stop, draining"])
def test_news_of_another_generation_is_dropped(where: str, generation: int) -> None:
    """A slow answer of the last engine must not make this one ready, or unready."""
    state = situation(where)
    for event in (Served(generation), Probed(generation, Outcome.OK, 0.1), Probed(generation, Outcome.REFUSED, 0.1)):
        assert step(state, event, NOW, POLICY, 0.5) == (state, ())


@pytest.mark.parametrize(
    ("where", "words", "interval"),
    [
        pytest.param("starting", (), 0.15, id="often while starting"),
        pytest.param("ready", (), 5.0, id="probe.interval while ready"),
        pytest.param("ready", (TIMEOUT,), 5.0, id="no faster for a timeout"),
        pytest.param("ready", (ERROR,), 1.0, id="every second once it seems dead"),
        pytest.param("ready", (ERROR, OK), 5.0, id="until it answers"),
        pytest.param("unhealthy", (REFUSED,), 1.0, id="every second once refused"),
    ],
)
def test_pace_of_the_probes(where: str, words: tuple[Word, ...], interval: float) -> None:
    """How often health is asked."""
    assert needs(go(situation(where), *words), Policy()).probe_interval == interval


def test_pace_of_the_probes_is_never_slower_than_asked() -> None:
    """A short `probe.interval` stays when the engine seems dead."""
    assert needs(go(situation("ready"), ERROR), replace(POLICY, probe_interval=0.5)).probe_interval == 0.5
