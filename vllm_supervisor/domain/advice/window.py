"""A stretch of samples in a few figures, none of which a spike, a ramp or an idle end can turn.

Levels are medians over the samples that count: those between the first and the last with work, and of a ramp the end
that tells what the load is now (rising) or was at work (falling).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from vllm_supervisor.domain.advice.sample import Sample, mean_of, median, quantile, risen

IDLE_END = 10.0
"""Seconds without work at the end, from which on there is no load: vLLM prints its stats every 10 s."""
_RAMP = 0.7
"""Kendall's rank correlation of requests and time from which on a load is a ramp; 1: each later one is above."""
_RAMP_RATIO = 1.5
"""From the first to the last third, a smaller change is none."""
_MIN_RAMP = 5
_MIN_CEILING = 4
"""Samples that agree by more than chance."""
_CANARY_TOKENS = 4
_CANARY_PROMPT = 200
"""Tokens between two looks that our own canary may account for: one is made, and a chat template is its prompt."""
_LOW = 0.25
"""A sample with less than this share of the usual requests is a dip."""


class Trend(StrEnum):
    """How the number of requests inside the engine changed over the stretch."""

    STEADY = "steady"
    RISING = "rising"
    FALLING = "falling"


@dataclass(frozen=True, slots=True)
class Window:
    """What a stretch of samples shows. Shares are 0..1, rates a second, None is not known."""

    seconds: float
    looks: int
    judged: int
    """Samples that count for the levels."""
    idle: bool
    """There was no work at all, or none for a while at the end."""
    idle_end: float
    trend: Trend
    running: float
    running_low: float
    running_high: float
    waiting: float
    waiting_share: float
    """Of the samples that count, those with a request waiting."""
    ceiling: float | None
    """How many ran whenever one waited, where that was always the same number."""
    dips: float
    """Of the samples that count, those where hardly anything ran, and nothing waited."""
    kv: float | None
    kv_high: float | None
    gpu: float | None
    preemptions: float | None
    preempting: int
    """Between how many neighbours requests were preempted."""
    prompt_rate: float | None
    generation_rate: float | None
    hit_rate: float | None
    prompt_length: float | None
    output_length: float | None
    first_token: float | None
    between_tokens: float | None
    squeezed: bool
    """Running fell while waiting rose, and no new prompt came: preempted for room, also where no counter says so."""
    retried: bool
    """Running fell while waiting rose, and new prompts kept coming: clients give up and ask again."""
    frozen: bool
    """Requests ran, and not one token was made."""


def summarize(samples: Sequence[Sample], seconds: float) -> Window | None:
    """Return what the last `seconds` of `samples` (in order of time) show; None with fewer than two in them."""
    if not samples:
        return None
    # The look before the stretch begins it: with a look every five seconds, ten seconds are three looks.
    part = [sample for sample in samples if sample.at >= samples[-1].at - seconds - 1e-6]
    if len(part) < 2:  # noqa: PLR2004 - a stretch takes two
        return None
    busy = [index for index, sample in enumerate(part) if _worked(part, index, sample)]
    idle_end = part[-1].at - part[busy[-1]].at if busy else part[-1].at - part[0].at
    working = part[busy[0] : busy[-1] + 1] if busy else part
    trend = _trend(working)
    judged = _judged(working, trend)
    usual = median([sample.running for sample in judged if sample.in_flight])
    kv = [sample.kv for sample in judged if sample.kv is not None]
    gpu = [sample.gpu for sample in judged if sample.gpu is not None]
    running = [sample.running for sample in judged]
    preemptions = [sample.preemptions for sample in working]
    fell, new_prompts = _fell(working), risen([sample.prompt_tokens for sample in working[len(working) // 3 :]])
    span = max(judged[-1].at - judged[0].at, 1e-9)
    generated = risen([sample.generation_tokens for sample in judged])
    return Window(
        seconds=part[-1].at - part[0].at,
        looks=len(part),
        judged=len(judged),
        idle=not busy or _ended(part, busy, idle_end),
        idle_end=idle_end,
        trend=trend,
        running=median(running),
        running_low=quantile(running, 0.1),
        running_high=quantile(running, 0.9),
        waiting=median([sample.waiting for sample in judged]),
        waiting_share=sum(sample.waiting > 0 for sample in judged) / len(judged),
        ceiling=_ceiling(judged),
        dips=sum(not sample.waiting and sample.running <= _LOW * usual for sample in judged) / len(judged),
        kv=median(kv) if kv else None,
        kv_high=quantile(kv, 0.9) if kv else None,
        gpu=median(gpu) if gpu else None,
        preemptions=risen(preemptions),
        preempting=sum((risen(pair) or 0) > 0 for pair in pairwise(preemptions)),
        prompt_rate=_rate(risen([sample.prompt_tokens for sample in judged]), span),
        generation_rate=_rate(generated, span),
        hit_rate=_hit_rate(working),
        prompt_length=mean_of([sample.prompts for sample in part]),
        output_length=mean_of([sample.outputs for sample in part]),
        first_token=mean_of([sample.first_token for sample in part]),
        between_tokens=mean_of([sample.between_tokens for sample in part]),
        squeezed=fell and new_prompts == 0,
        retried=fell and bool(new_prompts),
        frozen=usual > 0 and generated == 0 and risen([sample.prompt_tokens for sample in judged]) == 0,
    )


def _ceiling(judged: Sequence[Sample]) -> float | None:
    ran = [sample.running for sample in judged if sample.waiting > 0]
    steady = len(ran) >= _MIN_CEILING and quantile(ran, 0.25) == quantile(ran, 1.0) > 1
    return max(ran) if steady else None


def _worked(part: Sequence[Sample], index: int, sample: Sample) -> bool:
    """Say whether the engine had work at this look, or since the one before: short requests fit between two."""
    if sample.in_flight > 0:
        return True
    before = part[index - 1] if index else sample
    made = risen([before.generation_tokens, sample.generation_tokens]) or 0.0
    asked = risen([before.prompt_tokens, sample.prompt_tokens]) or 0.0
    return made > _CANARY_TOKENS or asked > _CANARY_PROMPT


def _ended(part: Sequence[Sample], busy: Sequence[int], idle_end: float) -> bool:
    """Say whether the work is over: no mere gap, since those between the pieces of work were shorter."""
    gaps = [part[after].at - part[before].at for before, after in pairwise(busy) if after > before + 1]
    enough = min(IDLE_END, (part[-1].at - part[0].at) / 3)
    return busy[-1] < len(part) - 1 and idle_end >= enough and idle_end > 1.5 * max(gaps, default=0.0)


def _trend(working: Sequence[Sample]) -> Trend:
    if len(working) < _MIN_RAMP:
        return Trend.STEADY
    levels = [sample.in_flight for sample in working]
    third = max(1, len(levels) // 3)
    first, last = median(levels[:third]), median(levels[-third:])
    if max(first, last) < _RAMP_RATIO * max(min(first, last), 1.0):
        return Trend.STEADY
    pairs = [(a < b) - (a > b) for index, a in enumerate(levels) for b in levels[index + 1 :]]
    slope = sum(pairs) / len(pairs)
    return Trend.RISING if slope >= _RAMP else Trend.FALLING if slope <= -_RAMP else Trend.STEADY


def _judged(working: Sequence[Sample], trend: Trend) -> Sequence[Sample]:
    third = max(2, len(working) // 3)
    if trend is Trend.RISING:
        return working[-third:]
    return working[:third] if trend is Trend.FALLING else working


def _fell(working: Sequence[Sample]) -> bool:
    """Say whether requests went from running to waiting, as many of them being there before as after."""
    if len(working) < _MIN_RAMP:
        return False
    third = max(1, len(working) // 3)
    first, last = working[:third], working[-third:]
    ran, runs = median([sample.running for sample in first]), median([sample.running for sample in last])
    waited, waits = median([sample.waiting for sample in first]), median([sample.waiting for sample in last])
    return runs <= 0.8 * ran and waits >= waited + max(1.0, 0.5 * (ran - runs))


def _hit_rate(samples: Sequence[Sample]) -> float | None:
    queries = risen([sample.cache_queries for sample in samples])
    if queries:
        return min(1.0, (risen([sample.cache_hits for sample in samples]) or 0.0) / queries)
    rates = [sample.hit_rate for sample in samples if sample.hit_rate is not None]
    return median(rates) if rates else None


def _rate(amount: float | None, seconds: float) -> float | None:
    return None if amount is None else amount / seconds
