import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.domain.situations import NOW, POLICY, SITUATIONS, go, probed, situation
from vllm_supervisor.domain.model import Outcome, Phase, Policy, State
from vllm_supervisor.domain.policy import backoff_delay, retimed

ALMOST_1 = math.nextafter(1.0, 0.0)


@pytest.mark.parametrize(
    ("failures", "u", "expected"),
    [
        pytest.param(0, 0.5, 1.0, id="no failure, no window"),
        pytest.param(1, 0.0, 1.0, id="the least is min_backoff"),
        pytest.param(1, 0.5, 1.5, id="the first failure opens a window of 2 x min"),
        pytest.param(2, 0.5, 2.5, id="the second one of 4 x min"),
        pytest.param(3, 0.25, 2.75, id="a quarter of the third"),
        pytest.param(5, 0.5, 16.5, id="still below the cap"),
        pytest.param(6, 0.5, 30.5, id="capped at max_backoff"),
        pytest.param(10_000, 0.5, 30.5, id="does not overflow"),
        pytest.param(10_000, ALMOST_1, 60.0, id="never beyond max_backoff"),
    ],
)
def test_backoff_formula(failures: int, u: float, expected: float) -> None:
    """`min + u * (min(max, min * 2**n) - min)` with min 1 and max 60."""
    assert backoff_delay(failures, Policy(min_backoff=1.0, max_backoff=60.0), u) == pytest.approx(expected)


@pytest.mark.parametrize("failures", [0, 1, 7, 10_000])
@pytest.mark.parametrize("u", [0.0, 0.5, ALMOST_1])
def test_backoff_without_a_window_is_constant(failures: int, u: float) -> None:
    """With min and max equal there is nothing to choose."""
    assert backoff_delay(failures, Policy(min_backoff=5.0, max_backoff=5.0), u) == 5.0


@given(
    failures=st.integers(0, 10_000),
    low=st.floats(0.001, 1e6),
    window=st.floats(0.0, 1e6),
    u=st.floats(0.0, 1.0, exclude_max=True),
)
def test_backoff_stays_in_its_window_and_never_shrinks(failures: int, low: float, window: float, u: float) -> None:
    """Whatever the numbers: between min and max, and one more failure never means a shorter wait."""
    policy = Policy(min_backoff=low, max_backoff=low + window)
    delay = backoff_delay(failures, policy, u)
    assert policy.min_backoff <= delay <= policy.max_backoff * (1 + 1e-12)
    assert delay <= backoff_delay(failures + 1, policy, u)


def test_a_longer_limit_holds_for_the_start_under_way() -> None:
    """`startup.timeout` given, or raised, while an engine starts counts from its launch."""
    state = situation("starting")
    assert retimed(state, POLICY, replace(POLICY, startup_timeout=7200.0)).deadline == NOW + 7200.0
    unlimited = retimed(state, POLICY, replace(POLICY, startup_timeout=None))
    assert unlimited.deadline is None
    assert retimed(unlimited, replace(POLICY, startup_timeout=None), POLICY) == state


def test_a_start_is_timed_from_its_launch_and_not_from_its_checks() -> None:
    """The checks before a launch may have waited for a GPU."""
    state = replace(situation("starting"), launched_at=NOW + 50.0)
    assert retimed(state, POLICY, replace(POLICY, startup_timeout=100.0)).deadline == NOW + 150.0


def test_forgiveness_comes_when_the_new_policy_says() -> None:
    """Of an engine that is ready after failures; without any there is nothing to forgive."""
    state = replace(situation("ready"), failures=1, deadline=NOW + POLICY.healthy_reset)
    assert retimed(state, POLICY, replace(POLICY, healthy_reset=60.0)).deadline == NOW + 60.0
    assert retimed(situation("ready"), POLICY, replace(POLICY, healthy_reset=60.0)).deadline is None


def test_a_failed_engine_is_tried_again_however_soon_that_is_wanted() -> None:
    """`retry_failed_every` below a second counts; only 0 means never."""
    assert retimed(situation("failed"), POLICY, replace(POLICY, retry_failed_every=0.5)).deadline == NOW + 0.5


def test_a_lower_threshold_does_not_itself_make_unhealthy() -> None:
    """Failures so far count, and it takes a probe to be unhealthy."""
    state = go(situation("ready"), probed(Outcome.TIMEOUT), probed(Outcome.TIMEOUT))
    after = retimed(state, POLICY, replace(POLICY, failure_threshold=1))
    assert (after.phase, after.probe_failures) == (Phase.READY, 0)
    assert go(after, probed(Outcome.TIMEOUT), policy=replace(POLICY, failure_threshold=1)).phase is Phase.UNHEALTHY
    assert retimed(state, POLICY, replace(POLICY, failure_threshold=9)) == state


def test_a_dead_engine_keeps_its_time_to_exit_by_itself() -> None:
    """However short `restart_after` becomes."""
    state = go(situation("unhealthy"), probed(Outcome.ERROR), now=NOW + 1)
    assert retimed(state, POLICY, replace(POLICY, restart_after=0.0)).deadline == NOW + 1 + POLICY.self_exit_grace


@given(strategies.states, strategies.policies)
def test_the_same_policy_moves_no_deadline_of_a_state_that_it_led_to(state: State, policy: Policy) -> None:
    """Nor does it change anything but deadline and tally, whatever the state."""
    after = retimed(state, policy, policy)
    assert replace(after, deadline=state.deadline, probe_failures=state.probe_failures) == state


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_reload_that_changes_nothing_changes_nothing(name: str) -> None:
    """In every situation that events lead to."""
    state = situation(name)
    assert retimed(state, POLICY, POLICY) == state
