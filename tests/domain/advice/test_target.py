"""How many to keep in flight, what cuts that, and what else to turn."""

from dataclasses import replace
from typing import Any

import pytest

from tests.domain.advice.traces import Row, steady, trace
from vllm_supervisor.domain.advice import Advice, Setting, advise
from vllm_supervisor.domain.advice.knee import Level, find_knee


def judged(rows: list[Row], setting: Setting | None = None, **how: Any) -> Advice:
    found = advise(trace(rows, **how), setting or Setting(), window=600.0)
    assert found is not None
    return found


TARGETS = [
    pytest.param(steady(32, 0, 0.40), Setting(), {}, 64, True, id="the worked example"),
    pytest.param(steady(5, 0, 0.01), Setting(), {}, 20, False, id="5 at 1 %: four times, not to be trusted"),
    pytest.param(steady(8, 0, 0.06), Setting(), {}, 32, True, id="never more than four times"),
    pytest.param(steady(50, 0, 0.80), Setting(), {}, 50, True, id="at the aim"),
    pytest.param(steady(50, 20, 1.00), Setting(), {}, 40, True, id="too many"),
    pytest.param(steady(32, 0, 0.40), Setting(max_num_seqs=48), {}, 48, True, id="--max-num-seqs"),
    pytest.param(steady(32, 0, 0.40), Setting(max_concurrency=50.7), {}, 50, True, id="what the KV cache holds"),
    pytest.param(
        steady(32, 0, 0.40), Setting(max_concurrency=2.3), {}, 32, True, id="that is of the greatest length: 32 fit"
    ),
    pytest.param(
        steady(32, 0, 0.40), Setting(kv_tokens=50_000), {"lengths": (700, 200)}, 50, True, id="observed lengths"
    ),
    pytest.param(
        steady(32, 0, 0.40), Setting(kv_tokens=50_000), {"lengths": (700, 200), "hits": 0.9}, 64, True,
        id="but the prefix cache holds a prompt once",
    ),
    pytest.param(
        steady(32, 0, 0.40), Setting(kv_tokens=90_000, max_concurrency=3.0), {"lengths": (700, 200)}, 64, True,
        id="lengths that are known count, not the greatest",
    ),
    pytest.param(
        steady(32, 0, 0.40), Setting(kv_tokens=50_000), {"lengths": (700, 0), "hits": 1.0}, 64, True,
        id="requests that take nothing of it: all is in the prefix cache, and no token is made",
    ),
    pytest.param(steady(32, 12, 0.40), Setting(), {}, 32, True, id="a queue does not get longer"),
    pytest.param(steady(32, 0, None), Setting(), {}, 128, False, id="no KV figure"),
    pytest.param(steady(1, 0, 0.99), Setting(), {}, 1, True, id="at least one"),
    pytest.param(
        [*steady(32, 0, 0.4, 6), (32, 0, 0.99), *steady(32, 0, 0.4, 6)], Setting(), {}, 64, True, id="a spike"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "setting", "how", "target", "trusted"), TARGETS)
def test_target(rows: list[Row], setting: Setting, how: dict[str, Any], target: int, trusted: bool) -> None:
    """`current x 0.80 / KV`, cut by each cap, and marked where it rests on nothing."""
    found = judged(rows, setting, **how).target
    assert (found.value, found.trusted) == (target, trusted), found
    assert bool(found.doubt) is not trusted


def test_the_cut_by_lengths_can_be_worked_out_again() -> None:
    """20,000 KV tokens, requests of 200 + 600: 25 fit, 22 are safe, and the evidence has the sum."""
    found = judged(steady(16, 0, 0.4), Setting(kv_tokens=20_000), lengths=(200, 600))
    assert found.target.value == 22
    assert found.target.cut == "32 by the KV cache's usage now, but 22 requests of the observed length fill it"
    assert "20000 KV tokens / (200 + 600 a request) = 25.0, x 0.9 for lengths that vary = 22" in found.evidence
    found = judged(steady(16, 0, 0.4), Setting(kv_tokens=20_000), lengths=(200, 600), hits=0.5)
    assert found.target.value == 25
    sizes = "(200 x 50% not in the prefix cache + 600 a request)"
    assert f"20000 KV tokens / {sizes} = 28.6, x 0.9 for lengths that vary = 25" in found.evidence
    found = judged(steady(28, 0, 0.4), Setting(kv_tokens=20_000), lengths=(200, 600))
    assert found.target.value == 28
    assert found.target.cut.endswith("but 22 requests of the observed length fill it: no more than the 28 that run")
    found = judged(steady(16, 0, 0.8), Setting(kv_tokens=20_000), lengths=(200, 600))
    assert not any("KV tokens" in said for said in found.evidence), "it cut nothing"


def test_no_load_has_no_target() -> None:
    """Nothing is advised from nothing."""
    found = judged(steady(0, 0, 0.0))
    assert (found.target.value, found.target.trusted) == (None, False)
    assert found.knobs == ()
    assert found.as_json()["target_concurrency"] is None


@pytest.mark.parametrize("running", [1, 5, 32, 100, 1000])
@pytest.mark.parametrize("kv", [0.0, 0.001, 0.05, 0.3, 0.8, 1.0])
def test_never_more_than_four_times(running: int, kv: float) -> None:
    """Whatever the figures, one step is at most four times what was seen to work, and at least one request."""
    value = judged(steady(running, 0, kv)).target.value
    assert value is not None
    assert 1 <= value <= 4 * running


GROWING = steady(16, 0, 0.1, 6) + steady(32, 0, 0.2, 6)


def test_the_knee_settles_it() -> None:
    """A raise that raised only the queue is named, and the target is the knee; one that paid is named as well."""
    flat = judged([*GROWING, *steady(40, 24, 0.4, 12)], rate=[500.0] * 6 + [900.0] * 6 + [910.0] * 12)
    assert flat.knee is not None
    assert (flat.knee.at, flat.knee.flat, flat.knee.settle) == (32, True, 32)
    assert flat.raised == "the last raise, from 32 to 64 at once, raised only the queue (by 24)"
    assert flat.target.value == 32
    tight = judged(
        [*GROWING, *steady(40, 24, 0.84, 12)], Setting(max_num_seqs=20), rate=[500.0] * 6 + [900.0] * 6 + [910.0] * 12
    )
    shown = tight.as_json()["knee"]
    assert isinstance(shown, dict)
    assert (tight.target.value, shown["at"], shown["settle"]) == (20, 32, 20), "one answer, one place to settle"
    paid = judged([*GROWING, *steady(64, 0, 0.4, 12)], rate=[500.0] * 6 + [900.0] * 6 + [1700.0] * 12)
    assert paid.raised == "the last raise, from 32 to 64 at once, made 89% more tokens a second"
    assert paid.knee is not None
    assert not paid.knee.flat
    shown = paid.as_json()["knee"]
    assert isinstance(shown, dict)
    assert shown["settle"] is None


def test_85_percent_of_kv_settles_it() -> None:
    """Where the KV cache ends before throughput does, it decides."""
    found = judged([*GROWING, *steady(64, 0, 0.97, 12)], rate=[500.0] * 6 + [900.0] * 6 + [1700.0] * 12)
    assert found.knee is not None
    assert (found.knee.at, found.knee.settle) == (64, 56)


LOWER = "engine.vllm.concurrency"


KNOBS = [
    pytest.param(steady(32, 0, 0.4), Setting(concurrency=32), {}, ["engine.vllm.concurrency"], id="raise"),
    pytest.param(steady(8, 0, 0.2), Setting(concurrency=32), {}, ["the client"], id="feed it first"),
    pytest.param(steady(32, 12, 0.4), Setting(max_num_seqs=32), {}, ["--max-num-seqs"], id="batch limit"),
    pytest.param(
        [*[(100, 0, 0.02), (120, 0, 0.03)] * 2, *steady(128, 119, 0.031)], Setting(),
        {"rate": [60.0] * 4 + [100.0] * 12}, ["--max-num-seqs"],
        id="batch limit, seen by what runs whenever one waits",
    ),
    pytest.param(
        [(28 + index % 5, 12, 0.4) for index in range(12)], Setting(), {}, [], id="no limit of the batch: prefill"
    ),
    pytest.param(
        steady(4, 60, 0.1), Setting(), {"rate": 50.0, "prompts": 9000.0}, ["--max-num-batched-tokens"],
        id="few run and prompts are read: prefill",
    ),
    pytest.param(
        steady(4, 60, 0.1), Setting(max_num_seqs=4), {"rate": 50.0, "prompts": 9000.0}, ["--max-num-seqs"],
        id="few run since no more may",
    ),
    pytest.param(steady(50, 0, 0.8), Setting(concurrency=50), {}, [], id="nothing to gain"),
    pytest.param(
        steady(50, 30, 0.99), Setting(), {"prompts": 2000.0, "hits": 0.02},
        [LOWER, "the prompts", "--kv-cache-dtype", "a second replica"], id="prefix",
    ),
    pytest.param(
        steady(50, 30, 0.99), Setting(), {"prompts": 2000.0, "hits": 0.8},
        [LOWER, "--kv-cache-dtype", "a second replica"], id="the prefix is shared already",
    ),
    pytest.param(
        steady(50, 30, 0.99), Setting(), {"prompts": 250.0, "hits": 0.02},
        [LOWER, "--kv-cache-dtype", "a second replica"], id="few hits, but prompts are not what it works on",
    ),
    pytest.param(
        steady(50, 30, 0.99), Setting(kv_cache_dtype="fp8", max_model_len=8192), {"lengths": (5000, 500)},
        [LOWER, "--max-model-len", "a second replica"], id="long contexts",
    ),
    pytest.param(
        steady(50, 30, 0.99), Setting(kv_cache_dtype="fp8", max_model_len=131072), {"lengths": (500, 500)},
        [LOWER, "a second replica"], id="short contexts: not the model's length",
    ),
    pytest.param(
        steady(32, 12, 0.4), Setting(max_num_seqs=256), {"paces": (6.0, 0.03)}, ["--max-num-batched-tokens"],
        id="slow first tokens: prefill",
    ),
    pytest.param(
        steady(50, 0, 0.8), Setting(), {"paces": (0.4, 0.3)}, ["--max-num-batched-tokens"], id="slow next tokens"
    ),
    pytest.param(steady(50, 0, 0.8), Setting(), {"paces": (0.4, 0.03)}, [], id="quick next tokens"),
    pytest.param(
        steady(50, 30, None), Setting(), {"preempted": [3.0 * index for index in range(12)]},
        [LOWER, "a second replica"], id="no figure of the cache: nothing to say of its type",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "setting", "how", "knobs"), KNOBS)
def test_one_knob_at_a_time(rows: list[Row], setting: Setting, how: dict[str, Any], knobs: list[str]) -> None:
    """In the order of their effect, and each only where the figures support it."""
    found = judged(rows, setting, **how)
    assert [knob.name for knob in found.knobs] == knobs, found.knobs
    shown = found.as_json()["next"]
    assert isinstance(shown, dict) == bool(knobs)


def test_caps_that_would_clamp_silently() -> None:
    """All of those below the figure are named, and none when nothing is to be raised."""
    setting = Setting(
        concurrency=32, configured=40, max_concurrent_jobs=32, max_num_seqs=64, max_concurrency=40.5, kv_tokens=10**6
    )
    found = judged(steady(32, 0, 0.4), setting, lengths=(200, 200))
    assert found.target.value == 64
    for name in ("resources.max_concurrent_jobs is 32", "engine.vllm.concurrency is 40", "--max-num-seqs is 64"):
        assert any(name in clamp for clamp in found.clamps), found.clamps
    assert any("kv_cache_max_concurrency is 40.5" in clamp for clamp in found.clamps)
    assert judged(steady(50, 20, 0.95), setting).clamps == ()


def test_a_knee_beyond_what_the_cache_holds() -> None:
    """Throughput ends at 64, 85 % of the KV cache at 56: both are said. Without a figure of it the knee settles it."""
    levels = [Level(32, 32, 0, 900, 0.48), Level(64, 64, 0, 1700, 0.9), Level(128, 70, 58, 1710, 0.984)]
    found = find_knee(levels)
    assert found is not None
    assert (found.at, found.settle) == (64, 60)
    assert found.why.endswith("the knee is at 64, but 85% of the KV cache is reached at 60")
    unknown = find_knee([replace(level, kv=None) for level in levels])
    assert unknown is not None
    assert (unknown.settle, unknown.why.endswith("the knee is at 64")) == (64, True)
