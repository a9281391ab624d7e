"""Advice on concurrency: what was seen, what it amounts to, and what to change."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_supervisor.domain.advice.further import Knob, clamps, knobs
from vllm_supervisor.domain.advice.knee import Knee, find_knee, read_history
from vllm_supervisor.domain.advice.sample import Sample
from vllm_supervisor.domain.advice.target import Target, aim
from vllm_supervisor.domain.advice.verdict import Confidence, Verdict, confidence, rule
from vllm_supervisor.domain.advice.window import Trend, Window, summarize
from vllm_supervisor.domain.setting import Setting

WINDOW = 60.0
"""Seconds that are judged unless said otherwise."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One judgement. `evidence` is what was seen, a phrase each."""

    verdict: Verdict
    reason: str
    confidence: Confidence
    target: Target
    evidence: tuple[str, ...]
    window: Window
    knee: Knee | None = None
    raised: str | None = None
    """What the last raise in concurrency raised."""
    knobs: tuple[Knob, ...] = ()
    """What to change, one at a time, in this order."""
    clamps: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The advice in one line."""
        goal = self.target.value
        if goal is None:
            return f"{self.verdict}: {self.reason}"
        doubt = "" if self.target.trusted else ", not to be trusted yet"
        return f"{self.verdict}: {self.reason}; keep {goal} in flight ({self.confidence} confidence{doubt})"

    def as_json(self) -> dict[str, object]:
        """Return the object of `advise --json`; figures that are not known are null."""
        window = self.window
        return {
            "verdict": self.verdict.value,
            "reason": self.reason,
            "confidence": self.confidence.value,
            "current_concurrency": self.target.current,
            "target_concurrency": self.target.value,
            "target_trusted": self.target.trusted,
            "target_cut": self.target.cut or None,
            "target_doubt": self.target.doubt or None,
            "evidence": list(self.evidence),
            "headline": self.headline,
            "figures": {
                "window_s": round(window.seconds, 1),
                "samples": window.looks,
                "trend": window.trend.value,
                "running": _round(window.running),
                "waiting": _round(window.waiting),
                "waiting_share": _round(window.waiting_share),
                "kv_cache_usage": _round(window.kv),
                "gpu_utilization": _round(window.gpu),
                "preemptions": window.preemptions,
                "prompt_tokens_per_s": _round(window.prompt_rate),
                "generation_tokens_per_s": _round(window.generation_rate),
                "prefix_cache_hit_rate": _round(window.hit_rate),
                "prompt_tokens": _round(window.prompt_length),
                "output_tokens": _round(window.output_length),
                "time_to_first_token_s": _round(window.first_token),
                "inter_token_latency_s": _round(window.between_tokens),
            },
            "knee": None
            if self.knee is None
            else {
                "at": self.knee.at,
                "flat": self.knee.flat,
                # Where throughput still grew, there is no place to settle yet.
                "settle": self.knee.settle if self.knee.flat else None,
                "why": self.knee.why,
            },
            "last_raise": self.raised,
            "next": _knob(self.knobs[0]) if self.knobs else None,
            "later": [_knob(knob) for knob in self.knobs[1:]],
            "clamps": list(self.clamps),
        }


def advise(samples: Sequence[Sample], setting: Setting, *, window: float = WINDOW) -> Advice | None:
    """Judge the last `window` seconds of the last generation in `samples`; None with too few of it to judge.

    Samples are in order of time, and all of engines that are launched alike: together they are the history in which a
    knee is looked for.
    """
    seen = summarize([sample for sample in samples if sample.generation == samples[-1].generation], window)
    if seen is None:
        return None
    history = read_history(samples)
    knee = find_knee(history.levels)
    ruling = rule(seen, setting, knee)
    target = aim(seen, ruling.verdict, setting, knee)
    return Advice(
        verdict=ruling.verdict,
        reason=ruling.reason,
        confidence=confidence(seen, ruling),
        target=target,
        evidence=(*_evidence(seen), *target.sums),
        window=seen,
        knee=_agreeing(knee, target),
        raised=history.raised,
        knobs=knobs(seen, ruling.verdict, target, setting, knee),
        clamps=clamps(target, setting),
    )


def _agreeing(knee: Knee | None, target: Target) -> Knee | None:
    """Return the knee with no place to settle above the target, which has to heed more than throughput."""
    if knee is None or not knee.flat or target.value is None:
        return knee
    return replace(knee, settle=min(knee.settle, target.value))


def _evidence(window: Window) -> tuple[str, ...]:
    said = [f"{window.looks} looks over {window.seconds:.0f} s, {window.judged} of them count"]
    if window.trend is not Trend.STEADY:
        end = "its last third counts" if window.trend is Trend.RISING else "its first third counts"
        said.append(f"the load is {window.trend}: {end}")
    spread = f" ({window.running_low:.0f} to {window.running_high:.0f})" if window.running_high else ""
    said.append(f"running {window.running:.0f}{spread}, waiting {window.waiting:.0f}")
    if 0 < window.waiting_share < 1:
        said.append(f"requests waited in {window.waiting_share:.0%} of the looks")
    if window.kv is not None:
        said.append(f"KV cache {window.kv:.1%}, at most {window.kv_high or 0:.1%}")
    if window.preemptions:
        said.append(f"{window.preemptions:.0f} preemptions")
    if window.generation_rate is not None:
        said.append(f"{window.generation_rate:.0f} tokens/s generated, {window.prompt_rate or 0:.0f} of prompts")
    if window.hit_rate is not None:
        said.append(f"{window.hit_rate:.0%} of the prompt tokens came from the prefix cache")
    if window.prompt_length is not None and window.output_length is not None:
        said.append(f"requests of {window.prompt_length:.0f} + {window.output_length:.0f} tokens")
    if window.gpu is not None:
        said.append(f"GPU utilization {window.gpu:.0%}")
    if window.frozen:
        said.append("requests run, and no token was made: the engine may be stuck")
    return tuple(said)


def _knob(knob: Knob) -> dict[str, str]:
    return {"change": knob.name, "why": knob.text}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
