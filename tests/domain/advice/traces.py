"""Stretches of samples, written as a table of what ran, waited and was used."""

from collections.abc import Sequence
from dataclasses import replace

from vllm_supervisor.domain.advice import Sample
from vllm_supervisor.domain.engine import Tally

Row = tuple[float, float, float | None]
"""Running, waiting, share of the KV cache."""


def trace(
    rows: Sequence[Row],
    *,
    every: float = 10.0,
    rate: float | Sequence[float] = 100.0,
    prompts: float | Sequence[float] = 200.0,
    preempted: Sequence[float] | None = None,
    hits: float | None = None,
    lengths: tuple[float, float] | None = None,
    paces: tuple[float, float] | None = None,
    gpu: float | None = None,
) -> list[Sample]:
    """Return samples `every` seconds; `rate` and `prompts` are tokens a second, for idle samples 0.

    A request of `lengths` (prompt, answer) ends each second, with `paces` seconds to the first and to each next token.
    """
    made: list[Sample] = []
    tokens = asked = 0.0
    for index, (running, waiting, kv) in enumerate(rows):
        working = running > 0
        tokens += every * (rate[index] if isinstance(rate, Sequence) else rate) * working
        asked += every * (prompts[index] if isinstance(prompts, Sequence) else prompts) * working
        made.append(
            Sample(
                at=index * every,
                running=running,
                waiting=waiting,
                kv=kv,
                prompt_tokens=asked,
                generation_tokens=tokens,
                preemptions=preempted[index] if preempted is not None else None,
                cache_queries=None if hits is None else asked,
                cache_hits=None if hits is None else asked * hits,
                gpu=gpu,
            )
        )
    if lengths is not None:
        made = [
            replace(s, prompts=Tally(lengths[0] * s.at, s.at), outputs=Tally(lengths[1] * s.at, s.at)) for s in made
        ]
    if paces is not None:
        made = [
            replace(s, first_token=Tally(paces[0] * s.at, s.at), between_tokens=Tally(paces[1] * s.at, s.at))
            for s in made
        ]
    return made


def steady(running: float, waiting: float, kv: float | None, count: int = 12) -> list[Row]:
    """Return the same row again and again."""
    return [(running, waiting, kv)] * count
