"""A load doubled step by step: when it stops, how it reads, where it settles."""

from dataclasses import replace

import pytest

from vllm_supervisor.domain.advice import Sample, Verdict
from vllm_supervisor.domain.advice.ramp import Step, conclude, is_flat, measured, reading, spread, why_stop


def step(concurrency: int, throughput: float, waiting: float = 0, kv: float | None = 0.1, **more: float) -> Step:
    return Step(concurrency, concurrency - waiting, waiting, kv, throughput, preemptions=more.get("preemptions", 0.0))


GROWING = [step(1, 10), step(2, 19), step(4, 36), step(8, 60)]


@pytest.mark.parametrize(
    ("last", "why", "reads", "verdict", "target"),
    [
        pytest.param(step(16, 110), None, "1.83 x the tokens", Verdict.CLIENT_BOUND, 16, id="still growing"),
        pytest.param(
            step(16, 62), "throughput flattens: 62 tokens/s after 60", "flat: 1.03 x the tokens",
            Verdict.COMPUTE_BOUND, 8, id="flat: the knee",
        ),
        pytest.param(
            step(16, 100, waiting=4), "requests queue: 4 wait", "requests queue, 1.67 x the tokens",
            Verdict.QUEUEING, 12, id="a queue while KV is free: what ran",
        ),
        pytest.param(
            step(16, 100, waiting=4, kv=0.96), "requests queue: 4 wait",
            "requests queue, KV cache full, 1.67 x the tokens", Verdict.MEMORY_BOUND, 10, id="a queue at full KV",
        ),
        pytest.param(
            step(16, 100, waiting=4, kv=0.96, preemptions=5), "requests queue: 4 wait",
            "requests queue, KV cache full, 5 preempted, 1.67 x the tokens", Verdict.PREEMPTING, 10, id="preempted",
        ),
        pytest.param(
            step(16, 100, kv=0.90), "the KV cache is 90% full", "KV cache full, 1.67 x the tokens",
            Verdict.HEALTHY, 15, id="KV full, nothing waits",
        ),
    ],
)  # fmt: skip
def test_how_it_ends(last: Step, why: str | None, reads: str, verdict: Verdict, target: int) -> None:
    """It stops when throughput flattens, requests queue or KV passes 85 %, and settles at the lowest of these."""
    assert why_stop(last, GROWING[-1]) == why
    assert reading(last, GROWING[-1]) == reads
    found = conclude([*GROWING, last])
    assert found is not None
    assert (found.verdict, found.target) == (verdict, target), found


def test_the_first_step_is_no_reason_to_stop() -> None:
    """There is nothing to compare it with; without a step there is nothing to say."""
    assert why_stop(GROWING[0], None) is None
    assert reading(GROWING[0], None) == "one at a time"
    assert not is_flat(GROWING[0], None)
    assert is_flat(step(16, 65), GROWING[-1])
    assert not is_flat(step(16, 67), GROWING[-1])
    assert conclude([]) is None
    alone = conclude(GROWING[:1])
    assert alone is not None
    assert (alone.target, alone.knee) == (1, None)
    assert "grew" not in alone.reason


def test_a_step_that_was_spoiled_does_not_count() -> None:
    """With others' requests in it, it would have doubled the tokens: it is named, and nothing rests on it."""
    spoiled = replace(step(16, 500, waiting=9, kv=0.99), foreign=True, spoiled=True)
    assert reading(spoiled, GROWING[-1]) == "requests queue, KV cache full, others' requests too, does not count"
    assert conclude([*GROWING, spoiled]) == conclude(GROWING)
    assert conclude([spoiled]) is None
    shared = replace(spoiled, spoiled=False)
    assert "8.33 x the tokens" in reading(shared, GROWING[-1])


def test_a_step_is_put_together_from_looks_and_answers() -> None:
    """Throughput by the engine's counter where it has one, else by what came; others' requests are seen."""
    looks = [
        Sample(at=float(second), running=4, waiting=0, kv=0.2, generation_tokens=100.0 * second) for second in range(5)
    ]
    made = measured(
        4, looks, 77.0, first_token=[0.1, 0.3], between_tokens=[0.01] * 99, requests=4, failures=["HTTP 503: full"]
    )
    assert (made.running, made.kv, made.throughput, made.foreign) == (4, 0.2, 100.0, False)
    assert made.first_token == spread([0.1, 0.3])
    assert why_stop(made, None) == "1 requests failed: HTTP 503: full"
    assert measured(2, looks, 77.0, first_token=[], between_tokens=[], requests=0, failures=[]).foreign
    for others, seen in ((1, False), (3, True)):
        mixed = [Sample(at=float(second), running=4 + 6 * (second < others)) for second in range(10)]
        made = measured(4, mixed, 77.0, first_token=[], between_tokens=[], requests=0, failures=[])
        assert made.foreign is seen, "a part of a step is enough to spoil it; one look may be chance"
    blind = [Sample(at=float(second), running=4) for second in range(5)]
    made = measured(4, blind, 77.0, first_token=[], between_tokens=[], requests=0, failures=[])
    assert (made.throughput, made.first_token, made.kv) == (77.0, None, None)


def test_what_spoils_a_step_is_read_first() -> None:
    """Requests that failed, and others' requests beside ours."""
    spoilt = replace(step(16, 110), failed=3, foreign=True)
    assert reading(spoilt, GROWING[-1]) == "3 failed, others' requests too, 1.83 x the tokens"


def test_an_engine_that_shows_no_cache_is_judged_by_the_rest() -> None:
    """What ran without a queue, and the knee."""
    steps = [replace(one, kv=None) for one in [*GROWING, step(16, 100, waiting=4)]]
    found = conclude(steps)
    assert found is not None
    assert (found.verdict, found.target) == (Verdict.QUEUEING, 12)
