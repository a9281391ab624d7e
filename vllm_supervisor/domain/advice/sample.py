"""One look at a working engine, and arithmetic over a few of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from vllm_supervisor.domain.engine import EngineMetrics, Tally


@dataclass(frozen=True, slots=True)
class Sample:
    """What one look at the engine showed. `at` in seconds of any clock; what is None was not shown.

    `running` and `waiting` are requests, `kv` and `gpu` shares of 1, `hit_rate` too (where only a rate is shown, as in
    stats lines and by 0.6). The rest counts up from any beginning, and starts anew when the engine does.
    """

    at: float
    running: float
    waiting: float = 0.0
    kv: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    hit_rate: float | None = None
    cache_queries: float | None = None
    cache_hits: float | None = None
    prompts: Tally | None = None
    """Tokens in the prompts of the requests that ended."""
    outputs: Tally | None = None
    """Tokens in their answers."""
    first_token: Tally | None = None
    """Seconds to the first token."""
    between_tokens: Tally | None = None
    """Seconds from token to token."""
    gpu: float | None = None
    generation: int = 0
    """Which engine was looked at: nothing is counted from one to the next."""

    @property
    def in_flight(self) -> float:
        """Requests inside the engine."""
        return self.running + self.waiting


def sample_of(metrics: EngineMetrics | None, at: float, generation: int = 0) -> Sample | None:
    """Return the sample in a look at `/metrics`; None where it shows no requests (`--disable-log-stats`), or asleep."""
    if metrics is None or metrics.running is None or metrics.asleep:
        return None
    return Sample(
        at=at,
        running=metrics.running,
        waiting=metrics.waiting or 0,
        kv=metrics.kv_cache_usage,
        preemptions=metrics.preemptions,
        prompt_tokens=metrics.prompt_tokens,
        generation_tokens=metrics.generation_tokens,
        hit_rate=metrics.cache_hit_rate,
        cache_queries=metrics.cache_queries,
        cache_hits=metrics.cache_hits,
        prompts=metrics.prompt_lengths,
        outputs=metrics.output_lengths,
        first_token=metrics.first_token,
        between_tokens=metrics.between_tokens,
        generation=generation,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0..1) of the `values` lie, between neighbours in proportion; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """Return the middle one."""
    return quantile(values, 0.5)


def risen(values: Sequence[float | None]) -> float | None:
    """Return by how much a counter rose over its looks, restarts left out; None where it was not shown twice."""
    known = [value for value in values if value is not None]
    if len(known) < 2:  # noqa: PLR2004 - a difference takes two
        return None
    return sum(max(0.0, after - before) for before, after in pairwise(known))


def mean_of(tallies: Sequence[Tally | None]) -> float | None:
    """Return the mean of what was added between the looks; of all before, where nothing was added."""
    known = [tally for tally in tallies if tally is not None]
    if not known:
        return None
    total = risen([tally.total for tally in known]) or 0.0
    count = risen([tally.count for tally in known]) or 0.0
    if count > 0:
        return total / count
    return known[-1].total / known[-1].count if known[-1].count else None
