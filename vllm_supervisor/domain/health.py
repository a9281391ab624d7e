"""What health probes change about an engine that serves, or did."""

from dataclasses import replace

from vllm_supervisor.domain.messages import Probed
from vllm_supervisor.domain.model import DEAD_OUTCOMES, Outcome, Phase, Policy, State
from vllm_supervisor.domain.transitions import LEFT_RUNNING, SERVING, Result, enter


def probed(state: State, event: Probed, now: float, policy: Policy) -> Result:
    """Take in a probe's outcome: ready, counted as a failure, or unhealthy."""
    if state.phase not in SERVING or event.outcome is Outcome.UNKNOWN:
        return state, ()
    if event.outcome in (Outcome.OK, Outcome.BUSY):
        state = replace(state, probe_failures=0, dead_since=None)
        if state.stuck:
            return _with_restart_due(state, now, policy), ()
        return (state, ()) if state.phase is Phase.READY else become_ready(state, now, policy)
    first_death = event.outcome in DEAD_OUTCOMES and state.dead_since is None
    state = replace(
        state,
        probe_failures=state.probe_failures + 1,
        dead_since=now if first_death else state.dead_since,
    )
    if state.phase is Phase.UNHEALTHY:
        state = _with_restart_due(state, now, policy)
        if first_death and state.deadline is not None:
            state = replace(state, deadline=max(state.deadline, now + policy.self_exit_grace))
        return state, ()
    if state.probe_failures < policy.failure_threshold:
        return state, ()
    if not policy.restart_enabled:
        return enter(state, Phase.UNHEALTHY, now, f"{event.detail}; {LEFT_RUNNING}")
    after, effects = enter(state, Phase.UNHEALTHY, now, event.detail)
    deadline = now + policy.restart_after
    if state.dead_since is not None:
        # An engine that says it is dead may still exit by itself, and then its code is the better story.
        deadline = max(deadline, state.dead_since + policy.self_exit_grace)
    return replace(after, deadline=deadline), effects


def _with_restart_due(state: State, now: float, policy: Policy) -> State:
    """Give an unhealthy engine its limit where restarts were disabled when it became so, and no longer are."""
    if not policy.restart_enabled or state.deadline is not None:
        return state
    return replace(state, deadline=now + policy.restart_after)


def become_ready(state: State, now: float, policy: Policy) -> Result:
    """Enter READY; after long enough in it, earlier failures are forgiven."""
    after, effects = enter(state, Phase.READY, now)
    forgive_at = now + policy.healthy_reset if state.failures else None
    return replace(after, was_ready=True, ready_since=now, never_ready=0, deadline=forgive_at), effects
