"""What `advise` says of each stretch in the tables, to the letter and the last digit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.domain.advice.test_target import KNOBS, TARGETS
from tests.domain.advice.test_verdicts import CASES, judged
from tests.domain.advice.traces import Row, steady
from tests.domain.recorded import compare
from vllm_supervisor.domain.advice import Advice, Setting

MORE: dict[str, tuple[list[Row], Setting, dict[str, Any]]] = {
    "with all figures": (
        steady(32, 3, 0.4, 4) + steady(32, 0, 0.4),
        Setting(concurrency=20, max_num_seqs=48, max_concurrency=50.7, kv_tokens=50_000),
        {
            "lengths": (700, 200),
            "paces": (0.5, 0.02),
            "gpu": 0.9,
            "hits": 0.25,
            "preempted": [0.0] * 15 + [1.0],
        },
    ),
    "short of memory, with lengths": (
        steady(16, 4, 0.95),
        Setting(concurrency=64, kv_tokens=20_000, max_num_seqs=256),
        {"lengths": (200, 600)},
    ),
    "preempted, with a number of tokens": (
        steady(40, 10, 0.98),
        Setting(concurrency=64, kv_tokens=90_000, max_num_seqs=256),
        {"preempted": [3.0 * index for index in range(12)], "lengths": (700, 200), "paces": (4.0, 0.2)},
    ),
    "a queue for prefill": (steady(4, 60, 0.1), Setting(), {"rate": 50.0, "prompts": 9000.0}),
    "a queue for prefill, with a batch of known size": (
        steady(4, 60, 0.1),
        Setting(max_num_seqs=256),
        {"rate": 50.0, "prompts": 9000.0},
    ),
    "a batch of known size is full": (
        steady(4, 60, 0.1),
        Setting(max_num_seqs=4),
        {"rate": 50.0, "prompts": 9000.0, "hits": 0.99},
    ),
}


def told(found: Advice) -> Iterator[str]:
    """Yield all that an advice says."""
    yield f"  {found.verdict} ({found.confidence}): {found.reason}"
    yield from (f"  - {said}" for said in found.evidence)
    yield f"  target: {found.target}"
    yield f"  knee: {found.knee}, last raise: {found.raised}"
    yield from (f"  {knob.name}: {knob.text}" for knob in found.knobs)
    yield from (f"  clamp: {clamp}" for clamp in found.clamps)
    yield f"  {found.as_json()['figures']}"


def test_what_is_told() -> None:
    """Verdict, evidence with its figures, target with its sums, what to turn, and the object of `--json`."""
    cases = {name: (rows, setting, how) for name, (_, rows, setting, how) in CASES.items()}
    cases |= {str(case.id): case.values[:3] for case in (*TARGETS, *KNOBS)}  # type: ignore[misc]  # pytest's own holder
    lines: list[str] = []
    for name, (rows, setting, how) in (cases | MORE).items():
        lines += [name, *told(judged(rows, setting, **how))]
    lines += [json.dumps(judged(rows, setting, **how).as_json()) for rows, setting, how in MORE.values()]
    compare(Path(__file__).with_name("told.txt"), lines)


@pytest.mark.parametrize("name", MORE)
def test_the_verdict_depends_on_no_order(name: str) -> None:
    """Told twice it is told alike: nothing random, nothing kept."""
    rows, setting, how = MORE[name]
    assert judged(rows, setting, **how) == judged(rows, setting, **how)
