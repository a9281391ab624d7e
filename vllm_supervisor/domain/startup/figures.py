"""Figures that vLLM prints while it starts: what it used, and what it has room for."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class StartupFigures:
    """What one start printed; None where it did not. GiB and seconds; memory is that of one GPU.

    Where several workers speak, the largest weights and the smallest room count: the least worker decides (as in
    vLLM's own `kv_cache_utils.py`).
    """

    vllm_version: str | None = None
    weights_gib: float | None = None
    download_s: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    request_tokens: int | None = None
    """The length of a request that `max_concurrency` is about."""
    graph_s: float | None = None
    graph_gib: float | None = None
    init_s: float | None = None


_Merge = Callable[[float, float], float]


def _latest(before: float, now: float) -> float:
    del before
    return now


_NUMBER = r"(-?\d[\d,]{0,30}(?:\.\d{1,30})?)"
"""Bounded, as all numbers of a log are: Python refuses to read one of 4301 digits, and one of 310 is infinite."""
_VERSION = re.compile(
    r"(?:vLLM (?:API )?server version |\u2588\s{1,4}version |LLM engine \(v|^Launching vLLM \(v)(\d[\w.+-]*)"
)
_FIGURES: tuple[tuple[str, re.Pattern[str], _Merge], ...] = (
    # 0.6 says GB and means GiB
    ("weights_gib", re.compile(rf"^(?:Loading model weights|Model loading) took {_NUMBER} Gi?B"), max),
    ("load_s", re.compile(rf"^Loading weights took {_NUMBER} seconds"), max),
    ("load_s", re.compile(rf"^Model loading took .{{1,60}}?and {_NUMBER} seconds"), max),
    ("download_s", re.compile(rf"^Time spent downloading weights for .{{1,300}}: {_NUMBER} seconds"), _latest),
    ("compile_s", re.compile(rf"torch\.compile t(?:akes|ook) {_NUMBER} s in total"), max),
    ("kv_cache_gib", re.compile(rf"^Available KV cache memory: {_NUMBER} GiB"), min),
    ("kv_cache_tokens", re.compile(rf"KV cache size: {_NUMBER} tokens"), min),
    ("request_tokens", re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request"), _latest),
    ("max_concurrency", re.compile(rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"), min),
    ("graph_s", re.compile(rf"^Graph capturing finished in {_NUMBER} secs"), max),
    ("graph_gib", re.compile(rf"^Graph capturing finished in .{{1,40}} took {_NUMBER} GiB"), max),
    ("init_s", re.compile(rf"^init engine \(.{{1,200}}?\) took {_NUMBER} s"), max),
)
_WHOLE = frozenset({"kv_cache_tokens", "request_tokens"})


def read_figures(figures: StartupFigures, body: str) -> StartupFigures:
    """Return `figures` with what `body` (a normalised line) adds."""
    version = _VERSION.search(body)
    if version is not None and figures.vllm_version is None:
        figures = replace(figures, vllm_version=version[1])
    fresh: dict[str, Any] = {}
    for name, pattern, merge in _FIGURES:
        found = pattern.search(body)
        if found is None:
            continue
        value = float(found[1].replace(",", ""))
        before = getattr(figures, name)
        value = value if before is None else merge(before, value)
        fresh[name] = int(value) if name in _WHOLE else value
    return replace(figures, **fresh) if fresh else figures
