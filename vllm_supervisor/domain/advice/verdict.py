"""What a stretch of work amounts to."""

from dataclasses import dataclass
from enum import StrEnum

from vllm_supervisor.domain.advice.knee import Knee
from vllm_supervisor.domain.advice.window import Trend, Window
from vllm_supervisor.domain.setting import Setting

PERSISTS = 0.5
"""Waiting in fewer of the samples is a spike."""
NEARLY_EMPTY = 0.05
"""Below this usage of the KV cache nothing can be said about what fits."""
HIGH = 0.85
"""From here on waiting is for room in the KV cache."""
FULL = 0.60
"""From here on a batch without a queue is a full one."""
_FULL_BATCH = 0.95
PREFILL_HEAVY = 3.0
"""Prompt tokens a generated one, from which on prefill is the work."""
_DIPPING = 0.25
_MISSED = 0.5
"""Less than this share of the requests that the client should keep in flight: it does not."""
_ALL = 0.9
_BUSY_GPU = 0.95
_MANY = 3
"""Preemptions in one stretch that are no accident."""


class Verdict(StrEnum):
    """How the engine and its feeder suit each other."""

    NO_LOAD = "no_load"
    STARVED = "starved"
    CLIENT_BOUND = "client_bound"
    HEALTHY = "healthy"
    COMPUTE_BOUND = "compute_bound"
    QUEUEING = "queueing"
    MEMORY_BOUND = "memory_bound"
    PREEMPTING = "preempting"


class Confidence(StrEnum):
    """How far a verdict is to be trusted."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict and why, in words."""

    verdict: Verdict
    reason: str
    probable: bool = False
    """The figures fit the reason, and would fit another one too."""


def rule(window: Window, setting: Setting, knee: Knee | None = None) -> Ruling:
    """Return the verdict over `window`. `knee` is what longer history shows of throughput over concurrency."""
    if window.idle:
        reason = (
            f"no requests for the last {window.idle_end:.0f} s"
            if window.idle_end < window.seconds
            else "no requests in this stretch"
        )
        return Ruling(Verdict.NO_LOAD, reason)
    return _preempting(window) or _waiting(window, setting) or _fed(window, setting, knee)


def confidence(window: Window, ruling: Ruling) -> Confidence:
    """Say how sure the ruling is: by how much was seen, and how steady it was."""
    if window.frozen or window.judged < 4:  # noqa: PLR2004 - three samples are an anecdote
        return Confidence.LOW
    if window.trend is not Trend.STEADY:
        return Confidence.LOW if window.judged < 6 else Confidence.MEDIUM  # noqa: PLR2004 - as above
    uneven = window.running_high > 2 * max(window.running_low, 1.0) and ruling.verdict is not Verdict.STARVED
    torn = 0.3 < window.waiting_share < 0.7  # noqa: PLR2004 - waiting neither persists nor passes
    if ruling.probable or window.judged < 8 or uneven or torn or window.kv is None:  # noqa: PLR2004 - less than a minute of a log
        return Confidence.MEDIUM
    return Confidence.HIGH


def _preempting(window: Window) -> Ruling | None:
    crowded = window.kv_high is None or window.kv_high >= HIGH
    if (window.preemptions or 0) >= _MANY and window.preempting > 1:
        reason = f"{window.preemptions:.0f} requests were preempted in {window.seconds:.0f} s for room in the KV cache"
        return Ruling(Verdict.PREEMPTING, reason)
    if window.preemptions and crowded and window.waiting_share >= PERSISTS:
        reason = f"requests wait, the KV cache is full, and {window.preemptions:.0f} were preempted"
        return Ruling(Verdict.PREEMPTING, reason)
    if window.squeezed and crowded:
        reason = "running fell while waiting rose, and no new prompt came: the KV cache has no room, no client retries"
        return Ruling(Verdict.PREEMPTING, reason)
    return None


def _waiting(window: Window, setting: Setting) -> Ruling | None:
    if window.waiting_share < PERSISTS or window.waiting < 1:
        return None
    waits = f"{window.waiting:.0f} wait"
    if window.kv is not None and window.kv >= HIGH:
        return Ruling(Verdict.MEMORY_BOUND, f"{waits} while {window.kv:.0%} of the KV cache is used")
    free = "" if window.kv is None else f" although {1 - window.kv:.0%} of the KV cache is free"
    seqs = setting.max_num_seqs
    if seqs is not None and window.running >= _FULL_BATCH * seqs:
        return Ruling(Verdict.QUEUEING, f"{waits}{free}: the batch is full at --max-num-seqs {seqs}")
    if window.retried:
        return Ruling(
            Verdict.QUEUEING, f"{waits}{free}, and new prompts keep coming while fewer run: clients ask again"
        )
    if window.ceiling is not None and seqs is None and not prefills(window, setting):
        most = f"and never more than {window.ceiling:.0f} run: probably --max-num-seqs"
        return Ruling(Verdict.QUEUEING, f"{waits}{free}, {most}", probable=True)
    why = "prompts come faster than they are worked through (prefill, --max-num-batched-tokens)"
    if prefills(window, setting):
        pace = f"{window.prompt_rate or 0:.0f} tokens/s of prompts, {window.generation_rate or 0:.0f} generated"
        why += f": {window.running:.0f} run, {pace}"
    return Ruling(Verdict.QUEUEING, f"{waits}{free}: {why}", probable=True)


def prefills(window: Window, setting: Setting) -> bool:
    """Say whether what waits waits for prompts to be worked through, by what the engine does: few run, it reads."""
    if setting.max_num_seqs is not None and window.running >= _FULL_BATCH * setting.max_num_seqs:
        return False
    read = (window.prompt_rate or 0.0) * (1 - (window.hit_rate or 0.0))
    few = window.running < window.waiting and (window.kv or 0.0) < FULL
    return few and read >= PREFILL_HEAVY * (window.generation_rate or 0.0) > 0


def _fed(window: Window, setting: Setting, knee: Knee | None) -> Ruling:
    """Rule over a stretch without a lasting queue."""
    runs = f"{window.running:.0f} run, nothing waits"
    if knee is not None and knee.flat and window.running >= knee.at and not window.dips:
        busy = "" if window.gpu is None or window.gpu < _BUSY_GPU else f", GPU utilization {window.gpu:.0%}"
        reason = f"{runs}, and more than {knee.at} at once made no more tokens a second{busy}"
        return Ruling(Verdict.COMPUTE_BOUND, reason)
    return _starved(window, setting, runs) or _at_work(window, setting, runs)


def _starved(window: Window, setting: Setting, runs: str) -> Ruling | None:
    sent = setting.concurrency
    if window.trend is Trend.STEADY and window.dips >= _DIPPING:
        reason = f"running falls towards 0 in {window.dips:.0%} of the looks and nothing waits: the feeder leaves gaps"
        return Ruling(Verdict.STARVED, reason)
    empty = window.kv is not None and window.kv < NEARLY_EMPTY
    meant = setting.said and sent is not None and window.running >= _ALL * sent
    if empty and not meant:
        return Ruling(Verdict.STARVED, f"{runs}, and {window.kv:.1%} of the KV cache is used: it could hold far more")
    if sent is not None and window.running < _MISSED * sent and (window.kv or 0) < FULL:
        return Ruling(Verdict.STARVED, f"{runs}, of the {sent} that clients should keep in flight")
    return None


def _at_work(window: Window, setting: Setting, runs: str) -> Ruling:
    room = min((cap for cap in (setting.max_num_seqs, setting.max_concurrency) if cap), default=None)
    full_batch = setting.max_num_seqs is not None and window.running >= _ALL * setting.max_num_seqs
    if (window.kv is not None and window.kv >= FULL) or full_batch:
        what = f"{window.kv:.0%} of the KV cache is used" if window.kv is not None else f"of {room} that fit"
        return Ruling(Verdict.HEALTHY, f"{runs}, {what}: a full batch and no queue")
    sent = setting.concurrency
    if sent is not None and window.running >= _ALL * sent:
        return Ruling(Verdict.CLIENT_BOUND, f"{runs}: what the client sends ({sent}), and the engine could take more")
    return Ruling(Verdict.CLIENT_BOUND, f"{runs}: the client sends no more, and the engine could take more")
