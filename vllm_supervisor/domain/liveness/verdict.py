"""Whether a ready engine still steps: a verdict over a series of looks, canaries and `/load`.

`Series` is what has been observed; `judge` says what it amounts to.

A step is proven by a figure of the engine that moved between two looks at `/metrics` (`engine.moved`), or by a canary
that was answered. That none was made is proven only between two successful looks with equal figures: a look that fails
is no idleness. The engine is stuck when such a stretch and a stretch in which work was pending have `timeout` seconds
in common. Measured (0.32.0, a prefill of 57 s without output): token counters stand still, the KV cache's usage moves
with each chunk, so that `timeout` must exceed one step, not one prefill. vLLM allows a step 300 s
(VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS); one of 120 s has no place on a GPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from vllm_supervisor.domain.liveness.series import Pending, Series
from vllm_supervisor.domain.model import Outcome

_TICK = 0.001
"""Seconds that sums of floats, or a timer that is early, may be off: a look that is made when due must suffice."""
_BLIND_AFTER = 2
"""Canaries in a row that were refused, until we say that we cannot see."""


class Liveness(StrEnum):
    """What is known of the engine's stepping."""

    ALIVE = "alive"
    """It stepped just now."""
    IDLE = "idle"
    """It stepped, or was asked, not long ago, and nothing is pending; or it is asleep or paused."""
    BUSY = "busy"
    """Work is pending, and the last step is not long ago."""
    SUSPECT = "suspect"
    """Something has been waiting for long, which does not prove anything yet."""
    STUCK = "stuck"
    """Work has been pending for `timeout`, and no step was made: proven."""
    BLIND = "blind"
    """It cannot be asked, so that a freeze while idle would not be seen. Never a reason for a restart."""
    DEAD = "dead"
    """Nobody listens any more. The health probe and the leader's exit decide."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The section `liveness` of the configuration. Seconds."""

    mode: str = "auto"
    interval: float = 30.0
    timeout: float = 120.0

    @property
    def heartbeat(self) -> float:
        """Pause between two looks at `/metrics`."""
        return min(5.0, self.interval / 6, self.timeout / 6)

    @property
    def late(self) -> float:
        """How long something may be pending before that is suspicious."""
        return min(self.interval, self.timeout / 2)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and what it rests on, in words."""

    verdict: Liveness
    evidence: str


def canary_due(series: Series, limits: Limits) -> float | None:
    """Return when the next canary is to be sent, if nothing moves until then; None while none may be."""
    if limits.mode == "none" or series.asked_at is not None or series.resting:
        return None
    last = max(series.excused_at, series.answered_at if series.answered_at is not None else series.excused_at)
    if rank_in_doubt(series, limits) is not None:
        return last + limits.interval
    return max(series.quiet_since, last) + limits.interval


def canary_deadline(series: Series, limits: Limits) -> float | None:
    """Return when the canary in flight is to be given up: a while after it could have proven something."""
    if series.asked_at is None:
        return None
    return max(series.asked_at, series.start) + limits.timeout + 2 * limits.heartbeat


def proof_due(series: Series, limits: Limits) -> float | None:
    """Return when a look could first prove that the engine is stuck; None while nothing is known to be pending."""
    since = min((pending.since for pending in _pending(series, series.start)), default=None)
    return None if since is None else max(since, series.start) + limits.timeout


def load_due(series: Series, limits: Limits, now: float) -> bool:
    """Say whether `/load` could add to what the last look says: not while steps are seen, nor while all is at rest.

    An engine that froze while idle shows no request in its gauges, and keeps those that come. The canary finds it, or
    its being refused does, and from then on `/load` is asked as well. Where no canary may be sent, it always is.
    """
    if series.countless:
        return True
    if now - series.stepped_at <= limits.heartbeat:
        return False
    if limits.mode == "none" or series.refusals or any(_pending(series, now)):
        return True
    metrics = series.metrics
    return series.failed is not None or metrics is None or bool(metrics.running or metrics.waiting)


def rank_in_doubt(series: Series, limits: Limits) -> str | None:
    """Return the rank that has requests and stood still for long, while others may step; None with a single rank."""
    if len(series.ranks) < 2 or series.seen_at is None:  # noqa: PLR2004 - more than one
        return None
    for name, rank in sorted(series.ranks.items()):
        if rank.running_since is not None and series.seen_at - max(rank.still_since, rank.running_since) > limits.late:
            return name
    return None


def judge(series: Series, limits: Limits, now: float) -> Judgement:
    """Return the verdict on what has been observed until `now`."""
    proof = _proof(series, limits, now)
    if proof is not None:
        return Judgement(Liveness.STUCK, proof)
    if series.failed is not None and series.failed.outcome is Outcome.REFUSED:
        return Judgement(Liveness.DEAD, f"nobody listens: {series.failed.detail}")
    if series.resting:
        return Judgement(Liveness.IDLE, f"the engine is {series.resting}")
    silence = now - series.stepped_at
    ago = f"the last step is {max(0.0, silence):.0f} s ago"
    doubt = _doubt(series, limits, now)
    if doubt is not None:
        return Judgement(Liveness.SUSPECT, f"{doubt}; {ago}")
    if silence <= 2 * limits.heartbeat:
        return Judgement(Liveness.ALIVE, "it stepped just now")
    blind = _blindness(series, limits)
    if silence > limits.interval and blind is not None:
        return Judgement(Liveness.BLIND, f"{blind}; {ago}")
    what = [pending.what for pending in _pending(series, now) if pending.until >= now - 2 * limits.heartbeat]
    metrics = series.metrics
    if metrics is not None and (metrics.running or metrics.waiting):
        what.append(f"{metrics.running or 0} requests running and {metrics.waiting or 0} waiting when it last said so")
    if series.failed is not None:
        what.append(f"/metrics cannot be read: {series.failed.detail}")
    if what:
        return Judgement(Liveness.BUSY, f"{', '.join(what)}; {ago}")
    return Judgement(Liveness.IDLE, f"nothing is pending; {ago}")


def _pending(series: Series, now: float) -> Iterator[Pending]:
    """Yield what waits for the engine, or did until it was given up.

    What the gauges say is not among it: at 0 they prove nothing (an engine that froze while idle), and above 0 neither
    where a version reports only with outputs, so that an aborted request is never taken off.
    """
    if series.asked_at is not None:
        yield Pending(series.asked_at, now, "a canary is unanswered")
    if series.silent is not None:
        yield series.silent
    if series.load_since is not None and series.load_at is not None:
        yield Pending(series.load_since, series.load_at, f"/load counts {series.load}")
    if series.rejected is not None:
        yield series.rejected


def _proof(series: Series, limits: Limits, now: float) -> str | None:
    """Say why the engine is stuck, if that is proven."""
    if series.countless:
        return _proof_without_counters(series, limits, now)
    if series.seen_at is None or series.still_since is None:
        return None
    begun = max(series.start, series.still_since)
    for pending in _pending(series, now):
        seconds = min(pending.until, series.seen_at) - max(pending.since, begun)
        if seconds > limits.timeout - _TICK:
            return f"{pending.what}, and no counter and no gauge of the engine moved for {seconds:.0f} s"
    for name, rank in series.ranks.items():
        if len(series.ranks) > 1 and rank.running_since is not None:
            seconds = series.seen_at - max(rank.still_since, rank.running_since, series.excused_at)
            if seconds > limits.timeout - _TICK:
                return f"rank {name} has requests running, and none of its counters moved for {seconds:.0f} s"
    return None


def _proof_without_counters(series: Series, limits: Limits, now: float) -> str | None:
    """Say why an engine without figures is stuck: a canary waits, and so does all that was there before it.

    `/load` at 1 is our canary alone, which nothing can be ahead of; more of them may be a queue, which then must not
    have become shorter.
    """
    if series.held_since is None or series.load_at is None:
        return None
    canary = next((p for p in _pending(series, now) if p.what.startswith("a canary")), None)
    if canary is None:
        return None
    seconds = min(canary.until, series.load_at) - max(canary.since, series.held_since, series.start)
    if seconds <= limits.timeout - _TICK:
        return None
    return f"{canary.what}, and none of the {series.load} other requests that /load counts ended for {seconds:.0f} s"


def _doubt(series: Series, limits: Limits, now: float) -> str | None:
    """Say what has been waiting for so long that it is suspicious."""
    for pending in _pending(series, now):
        seconds = min(pending.until, now) - max(pending.since, series.start)
        if seconds > limits.late:
            why = "without counters that proves nothing" if series.countless else ""
            why = f"/metrics cannot be read: {series.failed.detail}" if series.failed is not None else why
            return ", ".join(filter(None, [f"{pending.what} for {seconds:.0f} s", why]))
    rank = rank_in_doubt(series, limits)
    return None if rank is None else f"rank {rank} has requests running and stands still"


def _blindness(series: Series, limits: Limits) -> str | None:
    """Say why the engine cannot be asked."""
    if series.refusals >= _BLIND_AFTER:
        return f"canaries are refused ({series.refusal})"
    if limits.mode == "none" and series.countless:
        return "there are no counters, and liveness.mode is none"
    return None
