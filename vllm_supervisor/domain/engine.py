"""What an engine says of itself, whatever its version."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vllm_supervisor.domain.model import Outcome


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One answer, or the lack of one. `latency` in seconds; `status` is the HTTP status where there was one."""

    outcome: Outcome
    latency: float
    detail: str = ""
    status: int | None = None


@dataclass(frozen=True, slots=True)
class ModelList:
    """`/v1/models`. `names` is None when it could not be read, and `detail` says why."""

    names: tuple[str, ...] | None
    detail: str = ""
    status: int | None = None
    """401 and 403 mean that the key is wrong."""
    max_model_len: int | None = None


class Warmup(StrEnum):
    """How the warm-up request ended."""

    SERVED = "served"
    UNSUPPORTED = "unsupported"
    """Every rung of the ladder was refused as not applicable (400, 404, 405, 422, 501): ready all the same."""
    UNAUTHORIZED = "unauthorized"
    NOT_YET = "not_yet"
    """5xx, a reset or silence: ask again."""


@dataclass(frozen=True, slots=True)
class WarmupResult:
    """The end of a warm-up. `rung` is `completions`, `chat`, `embeddings` or `pooling`, the one that answered."""

    result: Warmup
    latency: float
    rung: str | None = None
    detail: str = ""
    status: int | None = None
    """Of the last answer, where there was one."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many values were counted, and their sum: a histogram without its buckets."""

    total: float
    count: float


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """vLLM's `/metrics`, under names that do not depend on the version.

    `running` and `waiting` are summed over data-parallel ranks, `kv_cache_usage` is their mean (0..1); None where the
    series is absent. `counters` are the heartbeats: (engine rank, series) -> value; any of them moving since the last
    look means that the engine steps. `gauges` are the same three figures of each rank: (engine rank, `running`,
    `waiting` or `kv_cache_usage`) -> value. They are fed by the engine's outputs alone, so one that differs from the
    last look means a step as well; one that does not proves nothing, since gauges keep their last value when the engine
    dies or freezes (measured, 0.32).
    """

    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None
    preemptions: float | None = None
    counters: Mapping[tuple[str, str], float] = field(default_factory=dict)
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    asleep: bool = False
    gauges: Mapping[tuple[str, str], float] = field(default_factory=dict)
    rejections: float | None = None
    """Requests that the API server turned away since the queue is full (503). It counts them itself: no heartbeat."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    cache_queries: float | None = None
    """Prompt tokens looked up in the prefix cache, and those found there (0.8 and later)."""
    cache_hits: float | None = None
    cache_hit_rate: float | None = None
    """0.6 shows no more than the rate, 0..1."""
    prompt_lengths: Tally | None = None
    """Tokens a request, of those that ended."""
    output_lengths: Tally | None = None
    first_token: Tally | None = None
    """Seconds to the first token."""
    between_tokens: Tally | None = None
    """Seconds from token to token."""

    @property
    def usable(self) -> bool:
        """Whether there is anything here by which a step could be seen; there is not under `--disable-log-stats`."""
        return bool(self.counters or self.gauges)

    @property
    def ranks(self) -> frozenset[str]:
        """The data-parallel ranks; a single engine is rank 0, or has no name (0.6)."""
        return frozenset(rank for rank, _ in (*self.counters, *self.gauges))


@dataclass(frozen=True, slots=True)
class Scrape:
    """One attempt to read `/metrics`. `metrics` is None exactly when `outcome` is not OK, and `detail` says why."""

    outcome: Outcome
    metrics: EngineMetrics | None = None
    detail: str = ""


def moved(before: EngineMetrics | None, after: EngineMetrics | None, rank: str | None = None) -> bool:
    """Say whether the engine, or one rank of it, stepped between two looks.

    A missing look proves nothing, and neither does one with a counter gone backwards: all of it is a new baseline.
    """
    if before is None or after is None or _set_back(before, after, rank):
        return False
    stepped = any(value > before.counters.get(key, value) for key, value in _of(after.counters, rank))
    return stepped or any(value != before.gauges.get(key, value) for key, value in _of(after.gauges, rank))


def comparable(before: EngineMetrics, after: EngineMetrics, rank: str | None = None) -> bool:
    """Say whether two looks show the same series, none of them set back: then equal figures mean that nothing moved."""
    keys = [{key for key, _ in _of(look.counters, rank)} for look in (before, after)]
    return keys[0] == keys[1] and not _set_back(before, after, rank)


def _set_back(before: EngineMetrics, after: EngineMetrics, rank: str | None) -> bool:
    return any(value < before.counters.get(key, value) for key, value in _of(after.counters, rank))


def _of(figures: Mapping[tuple[str, str], float], rank: str | None) -> Iterator[tuple[tuple[str, str], float]]:
    return ((key, value) for key, value in figures.items() if rank is None or key[0] == rank)
