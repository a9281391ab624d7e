"""Moves between phases, from which the machine's answers are composed.

`enter` is the one place where a phase changes: what belongs to the phase being left goes with it.
"""

from dataclasses import replace

from vllm_supervisor.domain.messages import Effect, Quit, Record, Signal
from vllm_supervisor.domain.model import FAULTS, Cause, Intent, Phase, Policy, Sig, State, Verdict
from vllm_supervisor.domain.policy import backoff_delay
from vllm_supervisor.domain.retry import Retry

Result = tuple[State, tuple[Effect, ...]]

SERVING = frozenset({Phase.READY, Phase.UNHEALTHY})
LEFT_RUNNING = "left running, because restart.enabled is false"
HOPELESS = frozenset({Retry.PERMANENT, Retry.NEEDS_OPERATOR})


def enter(state: State, phase: Phase, now: float, detail: str = "") -> Result:
    """Move to `phase`. What belongs to the phase being left goes with it: deadlines, drain, probe tally."""
    record = Record(now, state.generation, state.phase, phase, now - state.since, state.cause, detail)
    after = replace(
        state,
        phase=phase,
        since=now,
        deadline=None,
        signal_due=None,
        draining=False,
        probe_failures=state.probe_failures if phase in SERVING else 0,
        dead_since=state.dead_since if phase in SERVING else None,
        stuck=state.stuck if phase in SERVING else False,
        fail_why=None,
    )
    return after, (record,)


def start(state: State, now: float) -> Result:
    """Begin a new generation, with the checks before its launch."""
    fresh = replace(
        state,
        generation=state.generation + 1,
        cause=None,
        verdict=None,
        ended_at=None,
        was_ready=False,
        ready_since=None,
        launched_at=None,
    )
    return enter(fresh, Phase.STARTING, now)


def stop(state: State, now: float, policy: Policy, cause: Cause, *, drain: bool) -> Result:
    """End the current engine, in STARTING (launched), READY or UNHEALTHY."""
    state = replace(state, cause=cause)
    if drain and state.phase in SERVING and policy.drain_timeout > 0:
        after, effects = enter(state, Phase.STOPPING, now, "draining")
        return replace(after, draining=True, deadline=now + policy.drain_timeout), effects
    return terminate(state, now, policy)


def terminate(state: State, now: float, policy: Policy) -> Result:
    """Send the first SIGTERM; the grace begins."""
    effects: tuple[Effect, ...] = ()
    if state.phase is not Phase.STOPPING:
        state, effects = enter(state, Phase.STOPPING, now)
    after = replace(state, draining=False, deadline=now + policy.stop_grace, signal_due=now + policy.term_interval)
    return after, (*effects, *signal_members(after, Sig.TERM))


def kill(state: State, now: float, policy: Policy, phase: Phase = Phase.KILLING) -> Result:
    """Send SIGKILL to every member."""
    after, effects = enter(state, phase, now)
    after = replace(after, deadline=now + policy.kill_timeout, signal_due=now + policy.kill_interval)
    return after, (*effects, *signal_members(after, Sig.KILL))


def signal_members(state: State, sig: Sig) -> tuple[Effect, ...]:
    """Return the order to signal the engine, if there is one to signal."""
    return (Signal(state.generation, sig),) if state.process is not None else ()


def leave(state: State, now: float, status: int) -> Result:
    """End the daemon with `status`."""
    after, effects = enter(replace(state, intent=Intent.EXIT), Phase.EXITED, now)
    return after, (*effects, Quit(status))


def fail(state: State, now: float, policy: Policy, why: str) -> Result:
    """Give up until an operator, or `retry_failed_every`, says otherwise."""
    after, effects = enter(state, Phase.FAILED, now, why)
    if policy.exit_when_failed:
        after, more = leave(after, now, 11 if state.occupied else 10)
        return after, (*effects, *more)
    # Members that survive SIGKILL are waited for, not launched over.
    retry = policy.retry_failed_every > 0 and not state.occupied
    deadline = now + policy.retry_failed_every if retry else None
    return replace(after, fail_why=why, deadline=deadline), effects


def settle(state: State, now: float, policy: Policy, u: float) -> Result:
    """Decide what follows, now that no process of the engine is left."""
    state = replace(state, process=None, spawning=False)
    if state.intent is Intent.EXIT:
        return leave(state, now, 0)
    if state.intent is Intent.DOWN:
        return enter(state, Phase.STOPPED, now)
    if state.cause not in FAULTS:
        wished = state.cause in (Cause.REQUESTED, Cause.CONFIG)
        return start(replace(state, next_cause=state.cause if wished else state.next_cause), now)
    retry = _retry(state.verdict)
    counts = not state.was_ready and retry is not Retry.TRANSIENT
    state = replace(
        state,
        next_cause=state.cause,
        failures=state.failures + 1,
        never_ready=0 if state.was_ready else state.never_ready + counts,
    )
    told = f": {state.verdict.why}" if state.verdict is not None and state.verdict.why else ""
    if not policy.restart_enabled:
        return fail(state, now, policy, f"the engine ended and restart.enabled is false{told}")
    if retry in HOPELESS:
        return fail(state, now, policy, told.removeprefix(": ") or f"the cause is {retry}")
    if counts and state.never_ready >= policy.never_ready_limit:
        starts = f"{state.never_ready} starts in a row" if state.never_ready > 1 else "the one start that is allowed"
        return fail(state, now, policy, f"{starts} never got ready{told}")
    after, effects = enter(state, Phase.BACKOFF, now)
    began = now if state.ended_at is None else state.ended_at
    return replace(after, deadline=max(now, began + backoff_delay(state.failures, policy, u))), effects


def _retry(verdict: Verdict | None) -> Retry | None:
    """Return what another start would bring.

    A configuration that has been ready here is not wrong: one OOM kill or bus error after weeks must not end it.
    """
    if verdict is None:
        return None
    return Retry.TRANSIENT_ONCE if verdict.proven and verdict.retry in HOPELESS else verdict.retry
