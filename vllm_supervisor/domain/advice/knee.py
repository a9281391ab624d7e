"""Throughput over concurrency: where more requests at once stopped to make more tokens."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vllm_supervisor.domain.advice.sample import Sample, median

KV_LIMIT = 0.85
"""How full the KV cache may get: beyond, a burst of long answers preempts."""
GAIN = 0.10
"""A raise that adds less throughput than this raised nothing."""
_STEP = 1.25
_LOG_STEP = math.log(_STEP)
"""Levels that differ by less are one."""
_MIN_LOOKS = 3
"""Looks at a level, below which its throughput is chance."""
_MAX_GAP = 60.0
"""Seconds between looks over which nothing is known."""


@dataclass(frozen=True, slots=True)
class Level:
    """What was seen at one concurrency. `throughput` is generated tokens a second."""

    concurrency: float
    running: float
    waiting: float
    throughput: float
    kv: float | None = None


@dataclass(frozen=True, slots=True)
class Knee:
    """Where throughput stops to grow. `at` is the least concurrency that has (almost) all of it."""

    at: int
    flat: bool
    """A higher level was seen, and it gained nothing."""
    settle: int
    """The lower of the knee and the concurrency at 85 % of the KV cache."""
    why: str


@dataclass(frozen=True, slots=True)
class History:
    """What longer history shows: the levels at which the engine worked for a while, in ascending order."""

    levels: tuple[Level, ...] = ()
    raised: str | None = None
    """What the last raise in concurrency raised."""


def read_history(samples: Sequence[Sample]) -> History:
    """Return what all `samples`, in order of time, show of throughput over concurrency.

    They may be of several generations, as long as these are launched alike.
    """
    found: defaultdict[int, list[tuple[Sample, float]]] = defaultdict(list)
    order: list[int] = []
    for before, after in pairwise(samples):
        seconds, low, high = after.at - before.at, before.in_flight, after.in_flight
        if low > high:
            low, high = high, low
        # A load that changes between two looks belongs to no level, and counters begin anew with the engine.
        if after.generation != before.generation or not 0 < seconds <= _MAX_GAP or low <= 0 or high > _STEP * low:
            continue
        made = (after.generation_tokens or 0.0) - (before.generation_tokens or 0.0)
        if made > 0:
            key = round(math.log(after.in_flight) / _LOG_STEP)
            found[key].append((after, made / seconds))
            if not order or order[-1] != key:
                order.append(key)
    levels = {key: _level(looks) for key, looks in sorted(found.items()) if len(looks) >= _MIN_LOOKS}
    return History(tuple(levels.values()), _last_raise([levels[key] for key in order if key in levels]))


def _level(looks: Iterable[tuple[Sample, float]]) -> Level:
    samples = [sample for sample, _ in looks]
    kv = [sample.kv for sample in samples if sample.kv is not None]
    return Level(
        concurrency=median([sample.in_flight for sample in samples]),
        running=median([sample.running for sample in samples]),
        waiting=median([sample.waiting for sample in samples]),
        throughput=median([rate for _, rate in looks]),
        kv=median(kv) if kv else None,
    )


def find_knee(levels: Sequence[Level]) -> Knee | None:
    """Return the knee over ascending `levels`; None with fewer than two."""
    if len(levels) < 2:  # noqa: PLR2004 - growth takes two
        return None
    best = max(level.throughput for level in levels)
    knee = next(level for level in levels if level.throughput * (1 + GAIN) >= best)
    higher = [level for level in levels if level.concurrency >= 1.2 * knee.concurrency]
    at, limit = max(1, round(knee.concurrency)), _kv_limit(levels)
    settle = at if limit is None else max(1, min(at, limit))
    return Knee(at, bool(higher), settle, _why(knee, higher, limit))


def _last_raise(order: Sequence[Level]) -> str | None:
    """Say what the last raise in concurrency raised; None where there was none."""
    raises = [(before, after) for before, after in pairwise(order) if after.concurrency > 1.2 * before.concurrency]
    if not raises:
        return None
    before, after = raises[-1]
    gain = after.throughput / before.throughput - 1 if before.throughput else 0.0
    what = f"from {before.concurrency:.0f} to {after.concurrency:.0f} at once"
    if gain >= GAIN:
        return f"the last raise, {what}, made {gain:.0%} more tokens a second"
    queued = after.waiting - before.waiting
    return f"the last raise, {what}, " + (
        f"raised only the queue (by {queued:.0f})" if queued >= 1 else "raised no throughput"
    )


def _kv_limit(levels: Sequence[Level]) -> int | None:
    """Return the concurrency at which the KV cache is 85 % full, by the highest level that shows it."""
    known = [level for level in levels if level.kv]
    if not known:
        return None
    top = known[-1]
    return math.floor(top.running * KV_LIMIT / (top.kv or 1.0) + 1e-9)


def _why(knee: Level, higher: Sequence[Level], limit: int | None) -> str:
    at = f"{knee.throughput:.0f} tokens/s at {knee.concurrency:.0f}"
    if not higher:
        return f"throughput still grew up to {knee.concurrency:.0f} at once ({at})"
    top = higher[-1]
    text = f"{at} at once, {top.throughput:.0f} at {top.concurrency:.0f}: the knee is at {knee.concurrency:.0f}"
    if limit is not None and limit < knee.concurrency:
        text += f", but {KV_LIMIT:.0%} of the KV cache is reached at {limit}"
    return text
