"""What the cause of an end does to the next start."""

from dataclasses import replace

import pytest

from tests.domain.situations import (
    POLICY,
    Word,
    cleared,
    deadline,
    go,
    group_empty,
    leader_exited,
    served,
    situation,
    spawned,
)
from vllm_supervisor.domain.diagnosis import Retry
from vllm_supervisor.domain.messages import Event, Judged, RestartAsked, StartAsked
from vllm_supervisor.domain.model import Cause, Phase, State, Verdict

LIMIT = POLICY.never_ready_limit


def judged(retry: Retry | None, *, proven: bool = False) -> Word:
    return lambda state: Judged(state.generation, Verdict(retry, "the cause; the remedy", proven))


def fails(retry: Retry | None, *, proven: bool = False, ready: bool = False) -> tuple[Word | Event, ...]:
    """Return a launch that ends with this verdict."""
    return (cleared, spawned, *([served] if ready else []), leader_exited, judged(retry, proven=proven), group_empty)


def again(state: State, times: int, retry: Retry | None, *, proven: bool = False, ready: bool = False) -> State:
    """Fail so many times, each after the backoff."""
    for _ in range(times):
        if state.phase is Phase.BACKOFF:
            state = go(state, deadline)
        state = go(state, *fails(retry, proven=proven, ready=ready))
    return state


@pytest.mark.parametrize(
    ("retry", "proven", "failed_after"),
    [
        pytest.param(Retry.PERMANENT, False, 1, id="permanent: at once"),
        pytest.param(Retry.NEEDS_OPERATOR, False, 1, id="needs an operator: at once"),
        pytest.param(Retry.PERMANENT, True, LIMIT, id="permanent, but it has been ready here: as transient_once"),
        pytest.param(Retry.NEEDS_OPERATOR, True, LIMIT, id="needs an operator, but it has been ready here"),
        pytest.param(Retry.TRANSIENT_ONCE, False, LIMIT, id="transient_once: never_ready_limit"),
        pytest.param(Retry.TRANSIENT_ONCE, True, LIMIT, id="transient_once, proven"),
        pytest.param(None, False, LIMIT, id="unknown: never_ready_limit"),
        pytest.param(Retry.TRANSIENT, False, None, id="transient: without end"),
    ],
)
def test_starts_that_never_get_ready(retry: Retry | None, proven: bool, failed_after: int | None) -> None:
    """Failed at the start that the verdict says, and not one earlier; then it says why and what to do."""
    clearing = situation("clearing")
    if failed_after is None:
        state = again(clearing, 10 * LIMIT, retry, proven=proven)
        assert (state.phase, state.never_ready) == (Phase.BACKOFF, 0)
        return
    before = again(clearing, failed_after - 1, retry, proven=proven)
    assert before.phase is (Phase.BACKOFF if failed_after > 1 else Phase.STARTING)
    state = again(before, 1, retry, proven=proven)
    assert state.phase is Phase.FAILED
    assert state.fail_why is not None
    assert "the cause; the remedy" in state.fail_why


@pytest.mark.parametrize("retry", [*Retry, None])
def test_ends_after_weeks_of_service(retry: Retry | None) -> None:
    """An engine that has been ready is launched again, whatever ended it: the configuration is proven by then."""
    state = again(situation("clearing"), 20, retry, proven=True, ready=True)
    assert (state.phase, state.never_ready) == (Phase.BACKOFF, 0)


def test_transient_failures_do_not_count_towards_the_limit_of_others() -> None:
    """A rate limit between two unknown failures neither counts nor forgives."""
    state = again(situation("clearing"), LIMIT - 1, None)
    state = again(state, 5, Retry.TRANSIENT)
    assert (state.phase, state.never_ready) == (Phase.BACKOFF, LIMIT - 1)
    assert again(state, 1, None).phase is Phase.FAILED


@pytest.mark.parametrize(
    "word",
    [
        pytest.param(StartAsked(), id="start"),
        pytest.param(RestartAsked(), id="restart"),
        pytest.param(RestartAsked(Cause.CONFIG), id="a changed configuration"),
        pytest.param(deadline, id="retry_failed_every"),
    ],
)
def test_what_resets_failed(word: Word | Event) -> None:
    """Another launch is made, with all tries before it again, and with nothing of the old verdict."""
    policy = replace(POLICY, retry_failed_every=100.0)
    state = situation("clearing", policy)
    for event in fails(Retry.PERMANENT):
        state = go(state, event, policy=policy)
    assert state.phase is Phase.FAILED
    state = go(state, word, policy=policy)
    assert (state.phase, state.verdict, state.failures, state.never_ready) == (Phase.STARTING, None, 0, 0)
    assert again(state, LIMIT - 1, None).phase is Phase.BACKOFF
    assert again(state, LIMIT, None).phase is Phase.FAILED


def test_a_start_during_the_end_outranks_the_verdict() -> None:
    """Who presses start while the dead engine is cleared away wants a launch, not a verdict."""
    state = go(situation("crashed, reaping"), StartAsked(), judged(Retry.PERMANENT), group_empty)
    assert state.phase is Phase.STARTING


def test_a_verdict_about_another_generation() -> None:
    """It is dropped, as every stale fact."""
    reaping = situation("crashed, reaping")
    stale = Judged(reaping.generation - 1, Verdict(Retry.PERMANENT))
    assert go(reaping, stale, group_empty).phase is Phase.BACKOFF
