"""What to turn next, one knob at a time, and what would silently clamp it."""

from dataclasses import dataclass

from vllm_supervisor.domain.advice.knee import Knee
from vllm_supervisor.domain.advice.target import Target
from vllm_supervisor.domain.advice.verdict import PREFILL_HEAVY, Verdict, prefills
from vllm_supervisor.domain.advice.window import Window
from vllm_supervisor.domain.setting import Setting

_WORTH = 0.10
"""A smaller change of the concurrency is none."""
_FEW_HITS = 0.10
_LONG = 0.25
"""Requests of this share of the model's length press on the KV cache by their length."""
_SLOW_FIRST = 2.0
"""Seconds to the first token that a user notices."""
_SLOW_NEXT = 0.1
"""Seconds between tokens, slower than reading."""
_CROWDED = frozenset({Verdict.MEMORY_BOUND, Verdict.PREEMPTING})


@dataclass(frozen=True, slots=True)
class Knob:
    """A thing to change. `name` is a key of the configuration, a flag of vLLM, or something outside."""

    name: str
    text: str


def knobs(window: Window, verdict: Verdict, target: Target, setting: Setting, knee: Knee | None) -> tuple[Knob, ...]:
    """Return what there is to change, in the order in which to try it, one at a time; nothing, where nothing gains."""
    if verdict is Verdict.NO_LOAD or window.frozen:
        return ()
    looks = (_concurrency, _batch_limit, _prefill, _shared_prefix, _kv_dtype, _model_len, _between, _replica)
    found = (look(window, verdict, target, setting, knee) for look in looks)
    return tuple(knob for knob in found if knob is not None)


def clamps(target: Target, setting: Setting) -> tuple[str, ...]:
    """Name the caps below the target that nobody would be told of."""
    if target.value is None or target.value <= target.current:
        return ()
    found = []
    jobs, seqs, fits = setting.max_concurrent_jobs, setting.max_num_seqs, setting.max_concurrency
    if jobs is not None and jobs < target.value:
        found.append(f"resources.max_concurrent_jobs is {jobs}: no more is advertised, whatever the concurrency says")
    if setting.configured is not None and setting.configured < target.value:
        found.append(f"engine.vllm.concurrency is {setting.configured}: clients are told no more")
    if seqs is not None and seqs <= target.value:
        found.append(f"--max-num-seqs is {seqs}: more would wait inside vLLM")
    if fits is not None and fits < target.value:
        found.append(f"kv_cache_max_concurrency is {fits:.1f}: so many requests of the greatest length fit")
    return tuple(found)


def _concurrency(window: Window, verdict: Verdict, target: Target, setting: Setting, _knee: Knee | None) -> Knob | None:
    goal, name = target.value, "engine.vllm.concurrency"
    if goal is None or verdict is Verdict.QUEUEING:
        return None
    sent = setting.concurrency if setting.concurrency is not None else window.running + window.waiting
    if verdict is Verdict.STARVED and setting.concurrency is not None and goal <= setting.concurrency:
        text = f"feed it: keep {setting.concurrency} requests in flight without gaps, before any figure is changed"
        return Knob("the client", text)
    if goal > (1 + _WORTH) * sent:
        return Knob(name, f"have clients keep {goal} requests in flight, {target.current} run now; then look again")
    inside = window.running + window.waiting
    if goal < (1 - _WORTH) * inside:
        return Knob(name, f"have clients keep only {goal} requests in flight, {inside:.0f} are inside now")
    return None


def _batch_limit(window: Window, verdict: Verdict, target: Target, setting: Setting, _knee: Knee | None) -> Knob | None:
    seqs = setting.max_num_seqs
    full = window.running >= 0.95 * seqs if seqs else window.ceiling is not None
    if verdict is not Verdict.QUEUEING or not full or not window.kv or prefills(window, setting):
        return None
    room = int(min(4 * target.current, target.current * 0.8 / window.kv))
    text = f"raise it to {room}: {window.waiting:.0f} wait while the KV cache is {window.kv:.0%} full"
    return Knob("--max-num-seqs", text) if room > (1 + _WORTH) * target.current else None


def _prefill(window: Window, verdict: Verdict, _target: Target, setting: Setting, _knee: Knee | None) -> Knob | None:
    if verdict is not Verdict.QUEUEING:
        return None
    first, between = window.first_token, window.between_tokens
    now = f" from {setting.max_num_batched_tokens}" if setting.max_num_batched_tokens else ""
    if first is None and prefills(window, setting):
        pace = (
            f"{window.prompt_rate or 0:.0f} tokens/s of prompts are read, {window.generation_rate or 0:.0f} generated"
        )
        return Knob("--max-num-batched-tokens", f"raise it{now}: {pace}; a step then takes more of a prompt")
    if first is None or between is None or first < _SLOW_FIRST or between > _SLOW_NEXT:
        return None
    text = f"raise it{now}: first tokens take {first:.1f} s and the next ones {1000 * between:.0f} ms; it trades them"
    return Knob("--max-num-batched-tokens", text)


def _shared_prefix(
    window: Window, verdict: Verdict, _target: Target, _setting: Setting, _knee: Knee | None
) -> Knob | None:
    if window.hit_rate is None or window.hit_rate >= _FEW_HITS or not window.prompt_rate or not window.generation_rate:
        return None
    heavy = window.prompt_rate >= PREFILL_HEAVY * window.generation_rate
    if not heavy or verdict not in _CROWDED | {Verdict.QUEUEING, Verdict.COMPUTE_BOUND}:
        return None
    text = f"put what the prompts share first in them: {window.hit_rate:.0%} of the prompt tokens hit the prefix cache"
    return Knob("the prompts", text)


def _kv_dtype(window: Window, verdict: Verdict, _target: Target, setting: Setting, _knee: Knee | None) -> Knob | None:
    if verdict not in _CROWDED or (setting.kv_cache_dtype or "auto") not in ("auto", "bfloat16", "float16"):
        return None
    if window.kv is None:
        return None
    return Knob("--kv-cache-dtype", "fp8 halves what a token takes (Ada, Hopper or later; check the answers' quality)")


def _model_len(window: Window, verdict: Verdict, _target: Target, setting: Setting, _knee: Knee | None) -> Knob | None:
    if verdict not in _CROWDED or not setting.max_model_len or window.prompt_length is None:
        return None
    length = window.prompt_length + (window.output_length or 0.0)
    if length < _LONG * setting.max_model_len:
        return None
    text = f"lower it: requests have {length:.0f} tokens, and a few of {setting.max_model_len} fill the KV cache"
    return Knob("--max-model-len", text)


def _between(window: Window, verdict: Verdict, _target: Target, _setting: Setting, _knee: Knee | None) -> Knob | None:
    first, between = window.first_token, window.between_tokens
    if verdict not in (Verdict.HEALTHY, Verdict.COMPUTE_BOUND) or first is None or between is None:
        return None
    if between <= _SLOW_NEXT or first > _SLOW_FIRST or not window.prompt_rate:
        return None
    text = f"lower it: tokens come every {1000 * between:.0f} ms, held up by prompts; first tokens then take longer"
    return Knob("--max-num-batched-tokens", text)


def _replica(_window: Window, verdict: Verdict, target: Target, _setting: Setting, knee: Knee | None) -> Knob | None:
    if verdict in _CROWDED or (verdict in (Verdict.QUEUEING, Verdict.COMPUTE_BOUND) and knee is not None and knee.flat):
        return Knob("a second replica", f"this engine makes no more with more than {target.value} at once")
    return None
