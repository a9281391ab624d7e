"""Arithmetic of restarts, and of the deadlines that another policy moves."""

from dataclasses import replace

from vllm_supervisor.domain.model import Phase, Policy, State


def backoff_delay(failures: int, policy: Policy, u: float) -> float:
    """Return the seconds to wait before the next launch.

    `min + u * (min(max, min * 2**failures) - min)`: full jitter over a window that doubles with each failure in a row,
    so that hosts that failed together do not return together. `u` is in [0, 1).
    """
    # 2.0 ** 1024 overflows; the cap is reached long before.
    ceiling = min(policy.max_backoff, policy.min_backoff * 2.0 ** min(failures, 64))
    return policy.min_backoff + u * (max(ceiling, policy.min_backoff) - policy.min_backoff)


def retimed(state: State, old: Policy, new: Policy) -> State:
    """Return `state` as if `new` had been the policy when its phase began.

    Who makes a limit longer means the start that is under way, and who makes one shorter does not want to sit out the
    old one. A deadline that has passed thereby is due at once.
    """
    # A threshold that the failures so far would reach needs one more, so that it is a probe that decides.
    failures = min(state.probe_failures, new.failure_threshold - 1) if state.phase is Phase.READY else None
    kept = state if failures is None else replace(state, probe_failures=failures)
    return replace(kept, deadline=_deadline(state, old, new))


def restart_at(state: State, policy: Policy) -> float | None:
    """Return when an engine that is unhealthy will have been so for too long; None where nothing is restarted.

    One that says it is dead may still exit by itself, and then its code is the better story.
    """
    if not policy.restart_enabled:
        return None
    at = state.since + policy.restart_after
    return at if state.dead_since is None else max(at, state.dead_since + policy.self_exit_grace)


def _deadline(state: State, old: Policy, new: Policy) -> float | None:
    deadline = state.deadline
    match state.phase:
        case Phase.STARTING if state.process is not None:
            began = state.since if state.launched_at is None else state.launched_at
            return None if new.startup_timeout is None else began + new.startup_timeout
        case Phase.FAILED:
            again = new.retry_failed_every > 0 and not state.occupied
            return state.since + new.retry_failed_every if again else None
        case Phase.UNHEALTHY:
            return restart_at(state, new)
        case _ if deadline is None:
            return None
        case Phase.READY:
            return state.since + new.healthy_reset
        case Phase.BACKOFF:
            return min(deadline, state.since + new.max_backoff)
        case Phase.STOPPING if state.draining:
            return state.since + new.drain_timeout
        case Phase.STOPPING:
            return deadline + (new.stop_grace - old.stop_grace)
        case _:
            return deadline
