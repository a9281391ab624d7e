"""What an engine says of itself, whatever its version."""

from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """vLLM's `/metrics`, under names that do not depend on the version.

    `running` and `waiting` are summed over data-parallel ranks, `kv_cache_usage` is their mean (0..1); None where the
    series is absent. `counters` are the heartbeats: (engine rank, series) -> value; any of them moving since the last
    look means that the engine steps. Gauges keep their last value when the engine dies or freezes (measured, 0.32).
    """

    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None
    preemptions: float | None = None
    counters: Mapping[tuple[str, str], float] = field(default_factory=dict)
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    asleep: bool = False


def moved(before: EngineMetrics | None, after: EngineMetrics | None) -> bool:
    """Say whether the engine stepped between two looks. A missing look, or a counter gone backwards, proves nothing."""
    if before is None or after is None:
        return False
    return any(value > before.counters.get(key, value) for key, value in after.counters.items())
