"""Where the machine gets to when the world plays along: nothing hangs for ever, nothing survives SIGKILL."""

from collections.abc import Callable

from vllm_supervisor.domain.machine import needs, step
from vllm_supervisor.domain.messages import (
    Cleared,
    DeadlinePassed,
    Effect,
    Event,
    GroupEmpty,
    LeaderExited,
    Probed,
    Served,
    Spawned,
)
from vllm_supervisor.domain.model import ExitStatus, Outcome, Phase, Policy, State

KILLED = ExitStatus(signal=9)
MANY = 200
"""More steps than any way through the machine takes; SIGTERM is repeated ten times in the longest grace."""


def play(
    state: State, event: Event, now: float, policy: Policy, done: Callable[[State], bool], *, launches: bool = True
) -> tuple[State, float, list[Effect]]:
    """Return the first state after `event` that is `done`, when it is reached, and all effects on the way.

    The engine ignores SIGTERM and never drains: the worst that the machine has to cope with. With `launches` false, a
    launch that is out is never answered.
    """
    orders: list[Effect] = []
    for _ in range(MANY):
        state, effects = step(state, event, now, policy, 0.999)
        orders.extend(effects)
        if done(state):
            return state, now, orders
        answer = _answer(state, policy, launches=launches)
        if answer is None:
            wake_at = needs(state, policy).wake_at
            assert wake_at is not None, f"stuck for ever in {state}"
            now, answer = max(now, wake_at), DeadlinePassed()
        event = answer
    raise AssertionError(f"gets nowhere: {state}")


def _answer(state: State, policy: Policy, *, launches: bool) -> Event | None:
    """Return what the world says without the clock's moving, or None."""
    wants = needs(state, policy)
    sigkill_sent = state.phase in (Phase.KILLING, Phase.REAPING, Phase.FAILED)
    if state.spawning and launches:
        return Spawned(state.generation, 99)
    if state.process is not None and sigkill_sent:
        return LeaderExited(state.generation, KILLED) if state.leader_alive else GroupEmpty(state.generation)
    if wants.clearing:
        return Cleared(state.generation)
    if wants.starting_probe:
        return Served(state.generation)
    if wants.serving_probe:
        return Probed(state.generation, Outcome.OK, 0.01)
    return None
