"""What health probes change about an engine that serves, or did."""

from dataclasses import replace

from vllm_supervisor.domain.messages import Probed
from vllm_supervisor.domain.model import DEAD_OUTCOMES, Outcome, Phase, Policy, State
from vllm_supervisor.domain.policy import restart_at
from vllm_supervisor.domain.transitions import LEFT_RUNNING, SERVING, Result, enter


def probed(state: State, event: Probed, now: float, policy: Policy) -> Result:
    """Take in a probe's outcome: ready, counted as a failure, or unhealthy."""
    if state.phase not in SERVING or event.outcome is Outcome.UNKNOWN:
        return state, ()
    if event.outcome in (Outcome.OK, Outcome.BUSY):
        state = replace(state, probe_failures=0, dead_since=None)
        return (state, ()) if state.phase is Phase.READY or state.stuck else become_ready(state, now, policy)
    first_death = event.outcome in DEAD_OUTCOMES and state.dead_since is None
    state = replace(
        state,
        probe_failures=state.probe_failures + 1,
        dead_since=now if first_death else state.dead_since,
    )
    if state.phase is Phase.UNHEALTHY:
        return replace(state, deadline=restart_at(state, policy)), ()
    if state.probe_failures < policy.failure_threshold:
        return state, ()
    detail = event.detail if policy.restart_enabled else f"{event.detail}; {LEFT_RUNNING}"
    after, effects = enter(state, Phase.UNHEALTHY, now, detail)
    return replace(after, deadline=restart_at(after, policy)), effects


def become_ready(state: State, now: float, policy: Policy) -> Result:
    """Enter READY; after long enough in it, earlier failures are forgiven."""
    after, effects = enter(state, Phase.READY, now)
    forgive_at = now + policy.healthy_reset if state.failures else None
    return replace(after, was_ready=True, ready_since=now, never_ready=0, deadline=forgive_at), effects
