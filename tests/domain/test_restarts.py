"""When the engine is launched again, and when not."""

from dataclasses import replace

import pytest

from tests.domain.situations import (
    BLOCKER,
    NOW,
    POLICY,
    TIMED_OUT,
    Word,
    absolved,
    blocked,
    cleared,
    condemned,
    deadline,
    go,
    group_empty,
    hear,
    leader_exited,
    probed,
    served,
    situation,
    spawned,
)
from vllm_supervisor.domain.machine import step
from vllm_supervisor.domain.messages import (
    DeadlinePassed,
    Event,
    PolicyChanged,
    Probed,
    Quit,
    Record,
    RestartAsked,
    ShutdownAsked,
    Signal,
    StopAsked,
)
from vllm_supervisor.domain.model import Cause, Intent, Outcome, Phase, Policy, Sig, State

DIES = (leader_exited, group_empty)
DIES_STARTING = (cleared, spawned, *DIES)
DIES_READY = (cleared, spawned, served, *DIES)


def orders(effects: tuple[object, ...]) -> list[object]:
    return [effect for effect in effects if not isinstance(effect, Record)]


@pytest.mark.parametrize(
    ("starts", "phase"),
    [
        pytest.param(2, Phase.BACKOFF, id="two of three starts that never got ready"),
        pytest.param(3, Phase.FAILED, id="the third is the limit"),
    ],
)
def test_never_ready_limit(starts: int, phase: Phase) -> None:
    """`restart.never_ready_limit` starts in a row that never got ready end in failed."""
    state = go(situation("clearing"), *DIES_STARTING)
    for _ in range(starts - 1):
        state = go(state, deadline, *DIES_STARTING)
    assert (state.phase, state.never_ready, state.failures) == (phase, starts, starts)


def test_a_start_that_got_ready_breaks_the_row() -> None:
    """Failures go on being counted for the backoff, but not towards the limit."""
    state = go(situation("clearing"), *DIES_STARTING, deadline, *DIES_STARTING, deadline, *DIES_READY)
    assert (state.phase, state.never_ready, state.failures) == (Phase.BACKOFF, 0, 3)
    state = go(state, deadline, *DIES_STARTING, deadline, *DIES_STARTING)
    assert (state.phase, state.never_ready, state.failures) == (Phase.BACKOFF, 2, 5)


def test_an_engine_that_got_ready_never_fails_for_good() -> None:
    """However often it crashes: each time it helped to launch it again."""
    state = go(situation("clearing"), *DIES_READY)
    for _ in range(50):
        state = go(state, deadline, *DIES_READY)
    assert (state.phase, state.never_ready, state.failures) == (Phase.BACKOFF, 0, 51)


@pytest.mark.parametrize(
    ("failures", "u", "delay"),
    [
        pytest.param(0, 0.0, 2.0, id="first, least"),
        pytest.param(0, 0.5, 3.0, id="first: between 2 and 4"),
        pytest.param(1, 0.5, 5.0, id="second: between 2 and 8"),
        pytest.param(30, 0.5, 33.0, id="thirty-first: between 2 and 64"),
    ],
)
def test_backoff_counts_the_failure_that_just_happened(failures: int, u: float, delay: float) -> None:
    """The delay after the n-th failure in a row is that of n."""
    state = go(replace(situation("ready"), failures=failures), *DIES, u=u)
    assert (state.phase, state.deadline, state.failures) == (Phase.BACKOFF, NOW + delay, failures + 1)


def test_a_blocked_launch_backs_off_by_its_own_count_without_limit() -> None:
    """A held port is no failure of the engine: never `failed`, and the engine's counts stay."""
    state = go(replace(situation("clearing"), failures=4, never_ready=2), blocked)
    for n in range(2, 40):
        state = go(state, deadline, blocked)
        assert (state.phase, state.blocked, state.failures, state.never_ready) == (Phase.BACKOFF, n, 4, 2)
    assert state.deadline == NOW + 33
    assert go(state, deadline, cleared, spawned).blocked == 0


def test_blocked_delays_grow() -> None:
    """The first pause is that of one failure, the second of two."""
    state = go(situation("clearing"), blocked)
    assert state.deadline == NOW + 3
    assert go(state, deadline, blocked).deadline == NOW + 5


@pytest.mark.parametrize("cause", [Cause.REQUESTED, Cause.CONFIG])
def test_a_restart_that_was_wished_follows_at_once(cause: Cause) -> None:
    """No backoff, no failure, and the launch is counted under its reason."""
    state = go(situation("ready"), RestartAsked(cause, drain=False), *DIES)
    assert (state.phase, state.generation, state.next_cause, state.failures) == (Phase.STARTING, 2, cause, 0)


@pytest.mark.parametrize(
    ("where", "cause"),
    [
        pytest.param("crashed, reaping", Cause.CRASH, id="crash"),
        pytest.param("unhealthy, terminating", Cause.UNHEALTHY, id="unhealthy"),
    ],
)
def test_a_fault_is_restarted_under_its_name(where: str, cause: Cause) -> None:
    """The first cause wins: the exit that follows our own SIGTERM is no crash."""
    state = go(situation(where), *DIES)
    assert (state.phase, state.next_cause, state.failures) == (Phase.BACKOFF, cause, 1)


def test_a_start_that_took_too_long_counts_as_never_ready() -> None:
    """`startup.timeout` is a failure like another."""
    state = go(situation("starting"), deadline, *DIES)
    assert (state.phase, state.next_cause, state.never_ready) == (Phase.BACKOFF, Cause.STARTUP_STALL, 1)


def test_without_a_limit_a_start_may_take_for_ever() -> None:
    """`startup.timeout` is none by default."""
    assert situation("starting", replace(POLICY, startup_timeout=None)).deadline is None


def test_restarts_can_be_disabled() -> None:
    """`restart.enabled: false` leaves a crash where it is, and names the reason."""
    policy = replace(POLICY, restart_enabled=False)
    state = go(situation("ready"), *DIES, policy=policy)
    assert (state.phase, state.fail_why) == (Phase.FAILED, "the engine ended and restart.enabled is false")
    assert state.deadline is None


NEVER = replace(POLICY, restart_enabled=False)


def disabled(*words: Word | Event) -> State:
    """Return what becomes of a ready engine that may not be restarted."""
    return go(situation("ready", NEVER), *words, policy=NEVER)


@pytest.mark.parametrize("trouble", [TIMED_OUT, (probed(Outcome.REFUSED),) * 3, (condemned,), (*TIMED_OUT, condemned)])
def test_with_restarts_disabled_no_engine_is_ended(trouble: tuple[Word | Event, ...]) -> None:
    """Unhealthy or stuck, it is left running: to kill it without replacing it would help nobody."""
    state = disabled(*trouble)
    assert (state.phase, state.leader_alive, state.cause, state.deadline) == (Phase.UNHEALTHY, True, None, None)


@pytest.mark.parametrize("trouble", [TIMED_OUT[-1:], (condemned,)])
def test_why_nothing_is_done_is_told(trouble: tuple[Word | Event, ...]) -> None:
    """The transition to unhealthy says that the engine is left running, and by which key."""
    never = replace(POLICY, restart_enabled=False, failure_threshold=1)
    state = situation("ready", never)
    event = trouble[0](state) if callable(trouble[0]) else trouble[0]
    _, effects = step(state, event, NOW, never, 0.5)
    (record,) = (effect for effect in effects if isinstance(effect, Record))
    assert record.detail.endswith("; left running, because restart.enabled is false")


def told(state: State, *words: Word | Event, policy: Policy = POLICY) -> list[str]:
    """Return what the transitions say that the last of `words` makes."""
    state = go(state, *words[:-1], policy=policy)
    event = words[-1](state) if callable(words[-1]) else words[-1]
    return [effect.detail for effect in step(state, event, NOW, policy, 0.5)[1] if isinstance(effect, Record)]


def test_transitions_say_why() -> None:
    """The reason of an unhealthy engine, of a launch that is blocked, and of a stop that waits."""
    late = Probed(1, Outcome.TIMEOUT, 10.0, "no answer within 10 s")
    assert told(situation("ready"), *TIMED_OUT[1:], late) == ["no answer within 10 s"]
    assert told(situation("clearing"), blocked) == [BLOCKER.why]
    assert told(situation("ready"), StopAsked()) == ["draining"]
    assert told(situation("ready"), StopAsked(), policy=replace(POLICY, drain_timeout=0.5)) == ["draining"]


def test_an_unhealthy_engine_that_was_left_running_gets_ready_again() -> None:
    """An answer to the health probe is enough, unless the engine is stuck: then it has to step first."""
    ok = probed(Outcome.OK)
    assert disabled(*TIMED_OUT, ok).phase is Phase.READY
    assert disabled(condemned, ok).phase is Phase.UNHEALTHY
    assert disabled(condemned, ok, absolved).phase is Phase.UNHEALTHY
    assert disabled(condemned, absolved, ok).phase is Phase.READY


@pytest.mark.parametrize(
    ("trouble", "restart_after", "due", "cause"),
    [
        (TIMED_OUT, 40.0, 40.0, Cause.UNHEALTHY),
        ((condemned,), 40.0, 40.0, Cause.HANG),
        ((probed(Outcome.ERROR),) * 3, 1.0, POLICY.self_exit_grace, Cause.UNHEALTHY),
    ],
)
def test_an_engine_left_running_is_replaced_once_that_is_allowed(
    trouble: tuple[Word | Event, ...], restart_after: float, due: float, cause: Cause
) -> None:
    """A reload that enables restarts is enough, no probe need come first; one that disables them calls it off."""
    allowed = replace(POLICY, restart_after=restart_after)
    state = go(disabled(*trouble), PolicyChanged(allowed), policy=NEVER)
    assert state.deadline == NOW + due
    ended = go(state, deadline, policy=allowed)
    assert (ended.phase, ended.cause) == (Phase.STOPPING, cause)
    still = go(state, PolicyChanged(NEVER), policy=allowed)
    assert (still.phase, still.deadline) == (Phase.UNHEALTHY, None)


def test_a_wished_restart_works_although_restarts_are_disabled() -> None:
    """`restart.enabled` is about unexpected exits."""
    policy = replace(POLICY, restart_enabled=False)
    assert go(situation("ready"), RestartAsked(), deadline, *DIES, policy=policy).phase is Phase.STARTING


def test_a_leftover_ends_stopped_unless_a_start_was_asked() -> None:
    """An adopted engine is ended; its generation number is the last one."""
    assert go(situation("leftover"), *DIES).phase is Phase.STOPPED
    state = go(situation("leftover"), hear(situation("leftover"), "start"), *DIES)
    assert (state.phase, state.generation, state.next_cause) == (Phase.STARTING, 8, None)


@pytest.mark.parametrize("every", [0.0, 120.0])
def test_retry_failed_every(every: float) -> None:
    """From failed, try again after so long, with all counts forgiven; 0 is never."""
    state = situation("failed", replace(POLICY, retry_failed_every=every))
    assert state.deadline == (NOW + every if every else None)
    if every:
        state = go(state, deadline)
        assert (state.phase, state.failures, state.never_ready, state.next_cause) == (Phase.STARTING, 0, 0, Cause.CRASH)


def test_members_that_survived_are_not_launched_over() -> None:
    """`retry_failed_every` does not apply while they live."""
    assert situation("failed, unkillable", replace(POLICY, retry_failed_every=120.0)).deadline is None


def _last_step(where: str, word: str, **changes: bool) -> tuple[State, list[object]]:
    policy = replace(POLICY, **changes)
    state = situation(where, policy)
    now = state.deadline if word == "deadline" and state.deadline else NOW
    state, effects = step(state, hear(state, word), now, policy, 0.5)
    return state, orders(effects)


def test_exit_when_failed_ends_the_daemon_with_10() -> None:
    """At the limit, and at a crash where restarts are disabled."""
    state, quits = _last_step("crashed, reaping", "group empty", restart_enabled=False, exit_when_failed=True)
    assert (state.phase, state.intent, quits) == (Phase.EXITED, Intent.EXIT, [Quit(10)])


def test_exit_when_failed_ends_the_daemon_with_11_when_members_survive() -> None:
    """10 would promise that nothing is left."""
    state, quits = _last_step("crashed, reaping", "deadline", exit_when_failed=True)
    assert (state.phase, quits) == (Phase.EXITED, [Quit(11)])


def test_exit_when_failed_ends_the_daemon_with_11_when_a_launch_is_out() -> None:
    """The launch may yet bring an engine that nobody will end."""
    _, quits = _last_step("stop, spawn overdue", "deadline", exit_when_failed=True)
    assert quits == [Quit(11)]


@pytest.mark.parametrize("where", ["end, terminating", "end, killing"])
def test_a_shutdown_that_worked_ends_with_0(where: str) -> None:
    """Proof that every member is gone, whether SIGTERM or SIGKILL did it; a stop that was asked for is no failure."""
    state = go(situation(where), leader_exited)
    after, effects = step(state, hear(state, "group empty"), NOW, POLICY, 0.5)
    assert (after.phase, after.process, orders(effects)) == (Phase.EXITED, None, [Quit(0)])


def test_a_shutdown_during_a_clean_up_ends_with_0_although_the_engine_crashed() -> None:
    """The daemon was asked to end, and nothing is left."""
    state = go(situation("crashed, reaping"), ShutdownAsked())
    _, effects = step(state, hear(state, "group empty"), NOW, POLICY, 0.5)
    assert orders(effects) == [Quit(0)]


def test_a_stop_during_a_clean_up_does_not_restart() -> None:
    """The stop wins over the crash."""
    state = go(situation("crashed, reaping"), StopAsked(), group_empty)
    assert (state.phase, state.failures, state.next_cause) == (Phase.STOPPED, 0, None)


def test_no_proof_is_taken_while_the_leader_lives() -> None:
    """`GroupEmpty` before the leader's exit cannot be true."""
    state = situation("stop, killing")
    assert go(state, group_empty) == state


@pytest.mark.parametrize("where", ["ready", "unhealthy"])
def test_a_drain_of_no_length_is_no_drain(where: str) -> None:
    """`stop.drain_timeout: 0` terminates at once."""
    policy = replace(POLICY, drain_timeout=0.0)
    state = go(situation(where), StopAsked(), policy=policy)
    assert (state.phase, state.draining, state.deadline) == (Phase.STOPPING, False, NOW + 25)


@pytest.mark.parametrize(
    ("where", "pause", "signal"),
    [
        pytest.param("stop, terminating", 3.0, Sig.TERM, id="SIGTERM every 3 s"),
        pytest.param("stop, killing", 1.0, Sig.KILL, id="SIGKILL every second"),
        pytest.param("crashed, reaping", 1.0, Sig.KILL, id="to members without leader too"),
    ],
)
def test_signals_are_repeated_until_the_deadline(where: str, pause: float, signal: Sig) -> None:
    """vLLM loses a SIGTERM that arrives while the EngineCore starts; a member may be born after the first SIGKILL."""
    state = situation(where)
    begun, end = state.since, state.deadline
    assert end is not None
    times = []
    while state.signal_due is not None and state.signal_due < end:
        now = state.signal_due
        state, effects = step(state, DeadlinePassed(), now, POLICY, 0.5)
        assert effects == (Signal(1, signal),)
        times.append(now - begun)
    assert times == [pause * n for n in range(1, len(times) + 1)]
    assert len(times) == int((end - begun - 0.1) // pause)


def test_a_timer_that_is_not_due_does_nothing() -> None:
    """A wake-up that comes early, by rounding or by a task that was just ended, is not taken."""
    for where in ("unhealthy", "stop, terminating", "backoff", "crashed, reaping"):
        state = situation(where)
        assert step(state, DeadlinePassed(), state.since + 0.999, POLICY, 0.5) == (state, ())
