"""vLLM's `/metrics`, of any version since 0.6, read into names that do not change.

A general parser is not used: a busy engine exposes thousands of bucket lines, of which a look needs a dozen.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from vllm_supervisor.domain.engine import EngineMetrics, Tally

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_SWAPPED = "vllm:num_requests_swapped"  # 0.6, V0: preempted to host memory, so not done
_USAGE = "vllm:kv_cache_usage_perc"  # 0.11 and later
_USAGE_OLD = "vllm:gpu_cache_usage_perc"  # up to 0.11, where both exist
_PREEMPTIONS = "vllm:num_preemptions_total"
_SLEEP = "vllm:engine_sleep_state"  # 0.15 and later
_REJECTIONS = "vllm:admission_rejections_total"  # 0.32 and later
_CONFIG = "vllm:cache_config_info"
_PROMPT_TOKENS = "vllm:prompt_tokens_total"
_GENERATION_TOKENS = "vllm:generation_tokens_total"
_HIT_RATE = "vllm:gpu_prefix_cache_hit_rate"  # 0.6: -1 without prefix caching
_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")  # 0.11 and later, 0.8; 0.11 both
_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_PROMPT_LENGTH = ("vllm:request_prompt_tokens",)
_OUTPUT_LENGTH = ("vllm:request_generation_tokens",)
_FIRST_TOKEN = ("vllm:time_to_first_token_seconds",)
_BETWEEN_TOKENS = (
    "vllm:inter_token_latency_seconds",  # 0.11 and later
    "vllm:time_per_output_token_seconds",  # up to 0.11, where both exist
    "vllm:request_time_per_output_token_seconds",
)
_TALLIES = (*_PROMPT_LENGTH, *_OUTPUT_LENGTH, *_FIRST_TOKEN, *_BETWEEN_TOKENS)
HEARTBEATS = (
    "vllm:iteration_tokens_total_count",  # 0.8 and later: every step with output, and only those
    _GENERATION_TOKENS,
    _PROMPT_TOKENS,
)
"""Series that only the engine's steps move. `request_success_total` is none of them: aborts move it as well.

None of them moves during a long prefill in chunks, which has no output (measured, 0.32.0: 6000 tokens in chunks of 256,
57 s, and each of the three stood still throughout). `kv_cache_usage_perc` does, with each chunk, since the figures of
the scheduler come with every step: see `GAUGES`.
"""

GAUGES = {_RUNNING: "running", _WAITING: "waiting", _USAGE: "kv_cache_usage", _USAGE_OLD: "kv_cache_usage"}
"""Series that only the engine's reports set, and the names that `EngineMetrics.gauges` has for them."""

_WANTED = (
    *(_RUNNING, _WAITING, _SWAPPED, _USAGE, _USAGE_OLD, _PREEMPTIONS, _SLEEP, _REJECTIONS, _CONFIG, *HEARTBEATS),
    *(_HIT_RATE, *_QUERIES, *_HITS),
    *(f"{name}_{part}" for name in _TALLIES for part in ("sum", "count")),
)
# The newline is part of the pattern so that `re` searches for a literal prefix, which is what makes a scan fast.
_START = re.compile(rf"\n(?:{'|'.join(re.escape(name) for name in _WANTED)})(?=[{{ \t])")
_SAMPLE = re.compile(r'(?P<name>[a-z_:]+)(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(?P<value>\S+)')
_LABEL = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_MAX_SAMPLES = 10_000
"""About 900 data-parallel ranks; what is beyond is not vLLM, and a look must stay cheap."""
_MAX_LINE = 8192

_Sample = tuple[str, dict[str, str], float]


def parse(text: str) -> EngineMetrics:
    """Read Prometheus text 0.0.4 or OpenMetrics 1.0. Never raises: lines that make no sense are skipped.

    Running and waiting are summed over ranks, and so is the capacity (each rank has a cache of its own); the usage
    is the ranks' mean. Values that are not finite, or negative, count as absent.
    """
    plain: defaultdict[str, list[float]] = defaultdict(list)
    counters: defaultdict[tuple[str, str], float] = defaultdict(float)
    gauges: dict[tuple[str, str], float] = {}
    configs: dict[str, dict[str, str]] = {}
    asleep = False
    for name, labels, value in _samples(text):
        rank = labels.get("engine", "")
        if name in HEARTBEATS:
            counters[rank, name] += value
        elif name == _CONFIG:
            configs[rank] = labels
        elif name == _SLEEP:
            asleep |= (value == 0) if labels.get("sleep_state") == "awake" else (value > 0)
        else:
            plain[name].append(value)
            if name in GAUGES:
                gauges[rank, GAUGES[name]] = value
    usage = plain[_USAGE] or plain[_USAGE_OLD]
    return EngineMetrics(
        running=_whole(_total(plain[_RUNNING])),
        waiting=_whole(_total(plain[_WAITING] + plain[_SWAPPED])),
        kv_cache_usage=min(1.0, sum(usage) / len(usage)) if usage else None,
        preemptions=_total(plain[_PREEMPTIONS]),
        counters=dict(counters),
        kv_cache_tokens=_whole(_total([_kv_tokens(labels) for labels in configs.values()])),
        max_concurrency=_total([_number(labels.get("kv_cache_max_concurrency")) for labels in configs.values()]),
        asleep=asleep,
        gauges=gauges,
        rejections=_total(plain[_REJECTIONS]),
        prompt_tokens=_total([value for (_, name), value in counters.items() if name == _PROMPT_TOKENS]),
        generation_tokens=_total([value for (_, name), value in counters.items() if name == _GENERATION_TOKENS]),
        cache_queries=_first_total(plain, _QUERIES),
        cache_hits=_first_total(plain, _HITS),
        cache_hit_rate=_mean(plain[_HIT_RATE]),
        prompt_lengths=_tally(plain, _PROMPT_LENGTH),
        output_lengths=_tally(plain, _OUTPUT_LENGTH),
        first_token=_tally(plain, _FIRST_TOKEN),
        between_tokens=_tally(plain, _BETWEEN_TOKENS),
    )


def _samples(text: str) -> Iterator[_Sample]:
    text = f"\n{text}\n"
    for start in islice(_START.finditer(text), _MAX_SAMPLES):
        begin = start.start() + 1
        end = text.find("\n", begin, begin + _MAX_LINE)
        match = _SAMPLE.match(text, begin, end) if end >= 0 else None
        value = _number(match["value"]) if match else None
        if match is not None and value is not None:
            yield match["name"], _labels(match["labels"] or ""), value


def _labels(text: str) -> dict[str, str]:
    return {match["name"]: _ESCAPE.sub(_unescape, match["value"]) for match in _LABEL.finditer(text)}


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _kv_tokens(labels: dict[str, str]) -> float | None:
    """Return the cache's size in tokens: said outright since 0.28, blocks times block size before."""
    said = _number(labels.get("kv_cache_size_tokens"))
    if said is not None:
        return said
    blocks, size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    return blocks * size if blocks is not None and size is not None else None


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    total = sum(known)
    return total if known and math.isfinite(total) else None


def _first_total(plain: Mapping[str, list[float]], names: Sequence[str]) -> float | None:
    """Return the total of the first series that is there: the others are its older names."""
    return next((total for name in names if (total := _total(plain.get(name, []))) is not None), None)


def _mean(values: Sequence[float]) -> float | None:
    return min(1.0, sum(values) / len(values)) if values else None


def _tally(plain: Mapping[str, list[float]], names: Sequence[str]) -> Tally | None:
    """Return a histogram's sum and count, over all ranks."""
    for name in names:
        total, count = _total(plain.get(f"{name}_sum", [])), _total(plain.get(f"{name}_count", []))
        if total is not None and count is not None:
            return Tally(total, count)
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
