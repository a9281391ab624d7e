"""A load that is doubled step by step: how each step reads, when to stop, and what the whole of it says."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_supervisor.domain.advice.knee import GAIN, KV_LIMIT, Knee, Level, find_knee
from vllm_supervisor.domain.advice.sample import Sample, median, quantile, risen
from vllm_supervisor.domain.advice.verdict import Verdict

_OFTEN = 0.8
"""Others' requests that are seen more often than in a fifth of the looks spoil a step."""
_QUEUE = 1.0
"""Requests that wait at most looks: a queue."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle and the far end of some durations, seconds."""

    p50: float
    p99: float


def spread(durations: Sequence[float]) -> Spread | None:
    """Return the percentiles; None of nothing."""
    return Spread(median(durations), quantile(durations, 0.99)) if durations else None


@dataclass(frozen=True, slots=True)
class Step:
    """What was measured with `concurrency` requests of ours in flight. Levels are medians over the looks."""

    concurrency: int
    running: float
    waiting: float
    kv: float | None
    throughput: float
    """Generated tokens a second."""
    first_token: Spread | None = None
    between_tokens: Spread | None = None
    requests: int = 0
    """Those that were answered to the end."""
    failed: int = 0
    failure: str = ""
    preemptions: float = 0.0
    foreign: bool = False
    """More requests were seen in the engine than ours."""
    spoiled: bool = False
    """It measured something else than our load alone: shown, and nothing is concluded from it."""


def measured(
    concurrency: int,
    looks: Sequence[Sample],
    counted: float,
    *,
    first_token: Sequence[float],
    between_tokens: Sequence[float],
    requests: int,
    failures: Sequence[str],
) -> Step:
    """Put a step together from looks at the engine and what our requests saw.

    `counted` is the tokens a second that our requests saw: it counts where the engine shows no counter.
    """
    usage = [look.kv for look in looks if look.kv is not None]
    seconds = looks[-1].at - looks[0].at if looks else 0.0
    made = risen([look.generation_tokens for look in looks])
    return Step(
        concurrency=concurrency,
        running=median([look.running for look in looks]),
        waiting=median([look.waiting for look in looks]),
        kv=median(usage) if usage else None,
        throughput=made / seconds if made and seconds > 0 else counted,
        first_token=spread(first_token),
        between_tokens=spread(between_tokens),
        requests=requests,
        failed=len(failures),
        failure=failures[0] if failures else "",
        preemptions=risen([look.preemptions for look in looks]) or 0.0,
        # One more may be our daemon's canary. A part of the step is enough to spoil it.
        foreign=quantile([look.in_flight for look in looks], _OFTEN) > concurrency + 1,
    )


def is_flat(step: Step, before: Step | None) -> bool:
    """Say whether a step gained nothing over the one before."""
    return before is not None and step.throughput < (1 + GAIN) * before.throughput


def why_stop(step: Step, before: Step | None) -> str | None:
    """Say why a higher concurrency would tell no more; None to go on."""
    if step.failed:
        return f"{step.failed} requests failed: {step.failure}"
    if step.waiting >= _QUEUE:
        return f"requests queue: {step.waiting:.0f} wait"
    if step.kv is not None and step.kv >= KV_LIMIT:
        return f"the KV cache is {step.kv:.0%} full"
    if before is not None and is_flat(step, before):
        return f"throughput flattens: {step.throughput:.0f} tokens/s after {before.throughput:.0f}"
    return None


def reading(step: Step, before: Step | None) -> str:
    """Say in a phrase what the step shows."""
    said = []
    if step.failed:
        said.append(f"{step.failed} failed")
    if step.waiting >= _QUEUE:
        said.append("requests queue")
    if step.kv is not None and step.kv >= KV_LIMIT:
        said.append("KV cache full")
    if step.preemptions:
        said.append(f"{step.preemptions:.0f} preempted")
    if step.foreign:
        said.append("others' requests too")
    if step.spoiled:
        return ", ".join([*said, "does not count"])
    if before is not None and before.throughput > 0:
        ratio = step.throughput / before.throughput
        said.append(f"flat: {ratio:.2f} x the tokens" if ratio < 1 + GAIN else f"{ratio:.2f} x the tokens")
    return ", ".join(said) or ("one at a time" if step.concurrency == 1 else "the first step")


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What the steps say together."""

    verdict: Verdict
    reason: str
    target: int
    knee: Knee | None


def conclude(steps: Sequence[Step]) -> Conclusion | None:
    """Return the lower of the knee, what ran without a queue, and 85 % of the KV cache.

    None without a step that counts.
    """
    good = [step for step in steps if step.throughput > 0 and not step.spoiled]
    if not good:
        return None
    last, before = good[-1], good[-2] if len(good) > 1 else None
    knee = find_knee([_level(step) for step in good])
    caps = [last.concurrency if knee is None else knee.settle]
    caps += [max(1, int(step.running)) for step in good if step.waiting >= _QUEUE]
    if last.kv:
        caps.append(max(1, int(last.running * KV_LIMIT / last.kv)))
    return Conclusion(*_verdict(last, before), target=min(caps), knee=knee)


def _verdict(last: Step, before: Step | None) -> tuple[Verdict, str]:
    full = last.kv is not None and last.kv >= KV_LIMIT
    at = f"at {last.concurrency} at once"
    if last.preemptions and last.waiting >= _QUEUE:
        return Verdict.PREEMPTING, f"{at} {last.preemptions:.0f} requests were preempted for room in the KV cache"
    if last.waiting >= _QUEUE:
        kind = Verdict.MEMORY_BOUND if full else Verdict.QUEUEING
        usage = "" if last.kv is None else f" with {last.kv:.0%} of the KV cache used"
        return kind, f"{at} {last.running:.0f} run and {last.waiting:.0f} wait{usage}"
    if before is not None and is_flat(last, before):
        return Verdict.COMPUTE_BOUND, f"{at} hardly more tokens a second than at {before.concurrency}"
    if full:
        return Verdict.HEALTHY, f"{at} the KV cache is {last.kv:.0%} full, and nothing waits"
    if before is None:
        return Verdict.CLIENT_BOUND, f"nothing waits {at}: what more at once would bring was not tried"
    return Verdict.CLIENT_BOUND, f"throughput still grew {at}: the run ended before the engine's limit"


def _level(step: Step) -> Level:
    return Level(step.concurrency, step.running, step.waiting, step.throughput, step.kv)
