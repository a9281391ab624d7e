"""What must hold whatever happens, each named by the failure that it prevents."""

from dataclasses import asdict, replace

import pytest

from tests.domain.situations import NOW, POLICY, blocked, cleared, deadline, go, group_empty, situation, spawned
from vllm_supervisor.domain.machine import needs, step
from vllm_supervisor.domain.messages import RestartAsked, ShutdownAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import Cause, Intent, Phase, State


@pytest.mark.parametrize("word", [StartAsked(), RestartAsked()])
def test_a_start_after_an_overdue_launch_does_not_wait_for_ever(word: StartAsked | RestartAsked) -> None:
    """A launch that is out when the machine fails is waited for and ended; then the next one is made."""
    state = go(situation("failed, spawn overdue"), word)
    assert (state.phase, state.generation) == (Phase.KILLING, 1)
    state = go(replace(state, process=None), blocked)
    assert (state.phase, state.generation, needs(state, POLICY).clearing) == (Phase.STARTING, 2, True)


def test_a_retry_from_failed_does_not_launch_beside_a_launch_that_is_out() -> None:
    """`retry_failed_every` waits for the answer of an overdue launch: two engines otherwise."""
    policy = replace(POLICY, retry_failed_every=60.0)
    assert situation("failed, spawn overdue", policy).deadline is None


def test_a_stop_after_an_overdue_launch_is_not_done_before_the_launch_is_answered() -> None:
    """`stopped` with a launch outstanding would be a lie, and the next start would wait for ever."""
    state = go(situation("failed, spawn overdue"), StopAsked())
    assert state.phase is Phase.FAILED
    assert go(state, blocked).phase is Phase.STOPPED


def test_a_shutdown_with_an_overdue_launch_does_not_claim_a_clean_end() -> None:
    """Status 0 promises that nothing is left."""
    _, effects = step(situation("failed, spawn overdue"), ShutdownAsked(), NOW, POLICY, 0.5)
    assert "Quit(status=11)" in map(repr, effects)


def test_a_start_from_failed_works_although_restarts_are_disabled() -> None:
    """Members that survived SIGKILL end at last: what the operator asked for is a start, not a restart."""
    policy = replace(POLICY, restart_enabled=False)
    state = go(situation("failed, unkillable", policy), StartAsked(), group_empty, policy=policy)
    assert (state.phase, state.intent, state.failures, state.never_ready) == (Phase.STARTING, Intent.UP, 0, 0)


def test_a_start_while_a_crash_is_cleaned_up_still_counts_the_restart() -> None:
    """An idempotent `start` must not hide a crash from `restarts_total`."""
    state = go(situation("crashed, reaping"), StartAsked(), group_empty)
    assert (state.phase, state.next_cause, state.failures) == (Phase.STARTING, Cause.CRASH, 0)


def test_a_start_while_a_restart_is_under_way_does_not_hide_the_restart() -> None:
    """An idempotent `start` must not hide what the restart was for."""
    state = go(situation("restart, draining"), StartAsked())
    assert state.cause is Cause.REQUESTED


def test_a_blocked_launch_does_not_name_its_blocker_once_stopped() -> None:
    """A stop forgets the blocker on every path: `stopped, port 8000 is held` would mislead."""
    state = go(situation("blocked"), deadline, cleared, StopAsked(), blocked)
    assert (state.phase, state.blocker, state.blocked) == (Phase.STOPPED, None, 0)


def test_a_crash_is_a_restart_only_once() -> None:
    """What the next launch is for is forgotten when it is made."""
    state = go(situation("backoff"), deadline)
    assert state.next_cause is Cause.CRASH
    state = go(state, cleared, spawned)
    assert state.next_cause is None
    assert asdict(state)["process"] == {"pid": 4711, "leader_alive": True}


def test_a_failure_told_again_names_the_new_reason() -> None:
    """Failed because members survived, then because nothing may be restarted: the operator reads the latter."""
    policy = replace(POLICY, restart_enabled=False)
    state: State = go(situation("failed, unkillable", policy), group_empty, policy=policy)
    assert (state.phase, state.fail_why) == (Phase.FAILED, "the engine ended and restart.enabled is false")
