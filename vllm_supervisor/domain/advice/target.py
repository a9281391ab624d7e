"""How many requests to keep in flight."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from vllm_supervisor.domain.advice.knee import Knee
from vllm_supervisor.domain.advice.verdict import NEARLY_EMPTY, Verdict
from vllm_supervisor.domain.advice.window import Window
from vllm_supervisor.domain.setting import Setting

AIM = 0.80
"""The usage of the KV cache to aim at: the rest is for answers that grow."""
MAX_JUMP = 4
"""Never more than so many times what was seen to work, in one step."""
_SAFE = 0.9
"""Of the requests of the observed length that fit, how many are safe: lengths vary."""


@dataclass(frozen=True, slots=True)
class Target:
    """`value` is None without load. `trusted`: the figure rests on what was seen; `cut` says what lowered it."""

    current: int
    value: int | None
    trusted: bool
    cut: str = ""
    doubt: str = ""
    sums: tuple[str, ...] = ()
    """How what cut it was worked out, with the numbers."""


def aim(window: Window, verdict: Verdict, setting: Setting, knee: Knee | None = None) -> Target:
    """Return `current x 0.80 / KV usage`, cut by everything that would not let it through."""
    if verdict is Verdict.NO_LOAD:
        return Target(0, None, trusted=False, doubt="without load there is nothing to go by")
    # What was preempted was so at the height of the load, not at its median.
    high = verdict is Verdict.PREEMPTING
    current, kv = (window.running_high, window.kv_high) if high else (window.running, window.kv)
    current = max(1, round(current))
    wish = math.inf if not kv else current * AIM / kv
    value, cuts = wish, []
    fits = _that_fit(window, setting)
    for cap, why in _caps(verdict, setting, knee, current, fits):
        if cap < value:
            value = cap
            cuts.append(why.format(cap=cap, wish="more" if math.isinf(wish) else _count(wish)))
    doubt = ""
    if window.frozen:
        doubt = "no token was made in this stretch: the engine may be stuck"
    elif kv is None:
        doubt = "the KV cache's usage is not known"
    elif kv < NEARLY_EMPTY:
        doubt = f"only {kv:.1%} of the KV cache is used"
    if doubt and not window.frozen and value > current:
        doubt += ": raise it step by step, and look again"
    sums = (fits.sum,) if fits is not None and fits.safe < wish else ()
    return Target(
        current, max(1, _count(value)), trusted=not doubt, cut=cuts[-1] if cuts else "", doubt=doubt, sums=sums
    )


class _Fit(NamedTuple):
    """How many requests of the observed length fit, and how that was worked out."""

    safe: int
    sum: str


def _caps(
    verdict: Verdict, setting: Setting, knee: Knee | None, current: int, fits: _Fit | None
) -> list[tuple[float, str]]:
    """Return what cuts the figure, each with its words."""
    caps: list[tuple[float, str]] = [
        (MAX_JUMP * current, "{wish} by the KV cache alone, but never more than four times as many in one step"),
    ]
    if setting.max_num_seqs:
        caps.append((setting.max_num_seqs, "{wish} by the KV cache alone, but --max-num-seqs is {cap}"))
    if fits is not None:
        text = "{wish} by the KV cache's usage now, but {cap} requests of the observed length fill it"
        if current > fits.safe:
            filled = f"{fits.safe} requests of the observed length fill it"
            text = f"{{wish}} by the KV cache's usage now, but {filled}: no more than the {{cap}} that run"
        caps.append((max(current, fits.safe), text))
    elif setting.max_concurrency:
        text = "{wish} by the KV cache alone, but it holds only {cap} requests of the greatest length"
        caps.append((max(current, math.floor(setting.max_concurrency)), text))
    if verdict in (Verdict.QUEUEING, Verdict.PREEMPTING):
        caps.append((current, "requests wait or are put back already: more would only join them"))
    if knee is not None and knee.flat:
        caps.append((min(knee.settle, max(knee.at, 1)), "{wish} by the KV cache alone, but the knee is at {cap}"))
    return caps


def _that_fit(window: Window, setting: Setting) -> _Fit | None:
    """Return what fits of requests of the observed length; what the prefix cache holds once is counted once."""
    if not setting.kv_tokens or window.prompt_length is None or window.output_length is None:
        return None
    missed = 1 - (window.hit_rate or 0.0)
    own = window.prompt_length * missed + window.output_length
    if own <= 0:
        return None
    room = setting.kv_tokens / own
    count = _count(_SAFE * room)
    prompt = f"{window.prompt_length:.0f}" + (f" x {missed:.0%} not in the prefix cache" if window.hit_rate else "")
    sizes = f"{setting.kv_tokens} KV tokens / ({prompt} + {window.output_length:.0f} a request)"
    return _Fit(count, f"{sizes} = {room:.1f}, x {_SAFE} for lengths that vary = {count}")


def _count(value: float) -> int:
    """Round down, but not what is whole but for the last bits."""
    return math.floor(value + 1e-9)
