"""Arithmetic of restarts."""

from vllm_supervisor.domain.model import Policy


def backoff_delay(failures: int, policy: Policy, u: float) -> float:
    """Return the seconds to wait before the next launch.

    `min + u * (min(max, min * 2**failures) - min)`: full jitter over a window that doubles with each failure in a row,
    so that hosts that failed together do not return together. `u` is in [0, 1).
    """
    # 2.0 ** 1024 overflows; the cap is reached long before.
    ceiling = min(policy.max_backoff, policy.min_backoff * 2.0 ** min(failures, 64))
    return policy.min_backoff + u * (max(ceiling, policy.min_backoff) - policy.min_backoff)
