"""Each verdict, and each trap that must not lead to another one."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.domain.advice.traces import Row, steady, trace
from vllm_supervisor.domain.advice import Advice, Confidence, Sample, Setting, Verdict, advise

MINUTES = 600.0


def judged(rows: Sequence[Row], setting: Setting | None = None, **how: Any) -> Advice:
    found = advise(trace(rows, **how), setting or Setting(), window=MINUTES)
    assert found is not None
    return found


CASES: dict[str, tuple[Verdict, Sequence[Row], Setting, dict[str, Any]]] = {
    "idle all along": (Verdict.NO_LOAD, steady(0, 0, 0.0), Setting(), {}),
    "idle at the end": (Verdict.NO_LOAD, steady(32, 0, 0.4, 8) + steady(0, 0, 0.0, 4), Setting(), {}),
    "a log ends with one line of zeros": (Verdict.NO_LOAD, steady(32, 0, 0.4, 8) + steady(0, 0, 0.0, 1), Setting(), {}),
    "5 at 1 %": (Verdict.STARVED, steady(5, 0, 0.01), Setting(), {}),
    "5 at 1 %, 5 configured": (Verdict.STARVED, steady(5, 0, 0.01), Setting(concurrency=5), {}),
    "5 at 1 %, and 5 is what the client sends": (
        Verdict.CLIENT_BOUND, steady(5, 0, 0.01), Setting(concurrency=5, said=True), {},
    ),
    "gaps between batches": (
        Verdict.STARVED,
        [*[(8, 0, 0.1), (0, 0, 0.0), (7, 0, 0.08), (1, 0, 0.01), (8, 0, 0.1), (0, 0, 0.0)] * 2, (8, 0, 0.1)],
        Setting(), {},
    ),
    "a gap at the end as long as the others": (
        Verdict.STARVED, ([(8, 0, 0.1)] * 2 + [(0, 0, 0.0)] * 2) * 3, Setting(), {},
    ),
    "far fewer than the client should send": (Verdict.STARVED, steady(10, 0, 0.2), Setting(concurrency=32), {}),
    "32 at 40 %": (Verdict.CLIENT_BOUND, steady(32, 0, 0.40), Setting(), {}),
    "32 at 40 %, the client sends 32": (Verdict.CLIENT_BOUND, steady(32, 0, 0.40), Setting(concurrency=32), {}),
    "a full batch": (Verdict.HEALTHY, steady(50, 0, 0.75), Setting(), {}),
    "a full batch by --max-num-seqs": (Verdict.HEALTHY, steady(64, 0, 0.30), Setting(max_num_seqs=64), {}),
    "KV 97 % and nothing waits": (Verdict.HEALTHY, steady(50, 0, 0.97), Setting(), {}),
    "a queue while KV is free": (Verdict.QUEUEING, steady(32, 12, 0.40), Setting(), {}),
    "a queue behind --max-num-seqs": (Verdict.QUEUEING, steady(32, 12, 0.40), Setting(max_num_seqs=32), {}),
    "a queue, and no KV figure": (Verdict.QUEUEING, steady(32, 12, None), Setting(), {}),
    "a queue at high KV": (Verdict.MEMORY_BOUND, steady(50, 20, 0.93), Setting(), {}),
    "preemptions rise": (
        Verdict.PREEMPTING, steady(40, 10, 0.98), Setting(), {"preempted": [3 * index for index in range(12)]},
    ),
    "preempted, where no counter says so": (
        Verdict.PREEMPTING,
        [(60 - 3 * index, 2 + 3 * index, 0.98) for index in range(12)],
        Setting(),
        {"prompts": 0.0},
    ),
    "a few preempted, requests wait, and the cache is full": (
        Verdict.PREEMPTING, steady(40, 10, 0.98), Setting(), {"preempted": [0.0] * 6 + [1.0] * 6},
    ),
    # --- traps
    "one preemption is an accident": (
        Verdict.HEALTHY, steady(50, 0, 0.75), Setting(), {"preempted": [0.0] * 6 + [1.0] * 6},
    ),
    "a short spike of waiting": (
        Verdict.CLIENT_BOUND, [*steady(32, 0, 0.4, 6), (40, 30, 0.6), *steady(32, 0, 0.4, 6)], Setting(), {},
    ),
    "a short spike of KV": (
        Verdict.CLIENT_BOUND, [*steady(32, 0, 0.4, 6), (32, 0, 0.99), *steady(32, 0, 0.4, 6)], Setting(), {},
    ),
    "one dip": (Verdict.CLIENT_BOUND, [*steady(32, 0, 0.4, 6), (0, 0, 0.0), *steady(32, 0, 0.4, 6)], Setting(), {}),
    "a ramp up": (
        Verdict.CLIENT_BOUND, [(2 + 3 * index, 0, 0.03 * (index + 1)) for index in range(12)], Setting(), {},
    ),
    "a ramp down": (
        Verdict.CLIENT_BOUND, [(34 - 3 * index, 0, 0.40 - 0.034 * index) for index in range(12)], Setting(), {},
    ),
    "idle before the work": (Verdict.CLIENT_BOUND, steady(0, 0, 0.0, 6) + steady(32, 0, 0.4, 6), Setting(), {}),
    "clients that give up and ask again": (
        Verdict.QUEUEING, [(60 - 3 * index, 2 + 3 * index, 0.5) for index in range(12)], Setting(), {"prompts": 5000.0},
    ),
    "retries at full KV are no preemption": (
        Verdict.MEMORY_BOUND,
        [(60 - 3 * index, 2 + 3 * index, 0.95) for index in range(12)],
        Setting(),
        {"prompts": 5000.0},
    ),
    "prompts out of the prefix cache": (
        Verdict.CLIENT_BOUND, steady(32, 0, 0.4), Setting(), {"prompts": 90_000.0, "hits": 0.95},
    ),
    "a GPU at 100 % alone says nothing": (Verdict.CLIENT_BOUND, steady(32, 0, 0.4), Setting(), {"gpu": 1.0}),
    "our own canaries are no load": (
        Verdict.NO_LOAD,
        [*steady(0, 0, 0.0, 4), (1, 0, 0.001), *steady(0, 0, 0.0, 7)], Setting(), {"rate": 0.1, "prompts": 5.0},
    ),
    "short requests, seen by their tokens alone": (
        Verdict.STARVED, [(0, 0, 0.0), (1, 0, 0.002)] * 6, Setting(), {},
    ),
    "more at once, no more tokens": (
        Verdict.COMPUTE_BOUND, steady(16, 0, 0.1, 6) + steady(32, 0, 0.2, 6) + steady(64, 0, 0.4, 12), Setting(),
        {"rate": [500.0] * 6 + [900.0] * 6 + [910.0] * 12},
    ),
    "more at once, more tokens": (
        Verdict.CLIENT_BOUND, steady(16, 0, 0.1, 6) + steady(32, 0, 0.2, 6) + steady(64, 0, 0.4, 12), Setting(),
        {"rate": [500.0] * 6 + [900.0] * 6 + [1700.0] * 12},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str) -> None:
    """The stretch gets the verdict that its figures are about."""
    verdict, rows, setting, how = CASES[name]
    found = judged(rows, setting, **how)
    assert found.verdict is verdict, found.as_json()
    assert found.evidence
    assert found.reason


@pytest.mark.parametrize("seconds", [1.0, 5.0, 10.0])
def test_the_pace_of_looking_does_not_matter(seconds: float) -> None:
    """The worked examples come out whether looked at each second or each ten."""
    assert judged(steady(32, 0, 0.4), every=seconds).target.value == 64
    assert judged(steady(5, 0, 0.01), every=seconds).verdict is Verdict.STARVED
    assert judged(steady(32, 0, 0.4, 12) + steady(0, 0, 0.0, 12), every=seconds).verdict is Verdict.NO_LOAD


def test_how_sure_it_is() -> None:
    """Few samples and frozen figures make it unsure, a long steady stretch makes it sure."""
    assert judged(steady(32, 0, 0.4, 3)).confidence is Confidence.LOW
    assert judged(steady(32, 0, 0.4, 5)).confidence is Confidence.MEDIUM
    assert judged(steady(32, 0, 0.4, 12)).confidence is Confidence.HIGH
    assert judged([(2 + 3 * index, 0, 0.03 * (index + 1)) for index in range(12)]).confidence is Confidence.LOW
    frozen = judged(steady(32, 0, 0.4), rate=0.0, prompts=0.0)
    assert (frozen.confidence, frozen.target.trusted) == (Confidence.LOW, False)
    assert any("stuck" in said for said in frozen.evidence)


@pytest.mark.parametrize("setting", [Setting(), Setting(max_num_seqs=256)], ids=["unknown", "256"])
def test_a_queue_for_prefill(setting: Setting) -> None:
    """Few run, many wait, the KV cache is empty, and prompts are read all the time: not blamed on --max-num-seqs.

    Other things might look so, which the confidence says. Prompts out of the prefix cache are not read.
    """
    found = judged(steady(4, 60, 0.1), setting, rate=50.0, prompts=9000.0)
    assert found.verdict is Verdict.QUEUEING
    assert "prefill, --max-num-batched-tokens" in found.reason
    assert "--max-num-seqs" not in found.reason
    assert found.confidence is Confidence.MEDIUM
    cached = judged(steady(4, 60, 0.1), Setting(), rate=50.0, prompts=9000.0, hits=0.99)
    assert "never more than 4 run: probably --max-num-seqs" in cached.reason
    known = judged(steady(4, 60, 0.1), Setting(max_num_seqs=4), rate=50.0, prompts=9000.0)
    assert known.reason.endswith("the batch is full at --max-num-seqs 4")
    assert known.confidence is Confidence.HIGH


def test_too_little_to_judge() -> None:
    """No sample, or a single one, is no advice."""
    assert advise([], Setting()) is None
    assert advise(trace(steady(32, 0, 0.4, 1)), Setting()) is None


def test_a_restart_sets_the_counters_back() -> None:
    """Counters that begin anew make no negative rates, and no tokens out of nothing."""
    samples = trace(steady(32, 0, 0.4, 12))
    again = trace(steady(32, 0, 0.4, 12))
    joined = samples + [
        type(sample)(**{name: getattr(sample, name) for name in sample.__slots__} | {"at": sample.at + 120})
        for sample in again
    ]
    found = advise(joined, Setting(), window=MINUTES)
    assert found is not None
    rate = found.window.generation_rate
    assert rate is not None
    assert 90 <= rate <= 100


def test_canaries_between_the_looks_are_no_load() -> None:
    """An idle engine makes a token for us now and then: nothing runs at any look, and it is still no load."""
    idle = [
        Sample(at=5.0 * tick, running=0, kv=0.0, generation_tokens=1.0 * (tick // 6), prompt_tokens=40.0 * (tick // 6))
        for tick in range(24)
    ]
    found = advise(idle, Setting(concurrency=32), window=60)
    assert found is not None
    assert found.verdict is Verdict.NO_LOAD
