"""Whatever the figures, the advice is one that can be followed; whatever the log, it is read to its end."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_supervisor.domain.advice import Sample, Setting, StatsReader, Verdict, advise
from vllm_supervisor.domain.engine import Tally

_SHARES = st.one_of(st.none(), st.floats(0, 1))
_COUNTS = st.one_of(st.none(), st.floats(0, 1e12))
_TALLIES = st.one_of(st.none(), st.builds(Tally, st.floats(0, 1e9), st.floats(0, 1e6)))
_SAMPLES = st.lists(
    st.builds(
        Sample,
        at=st.floats(0, 1e6),
        running=st.integers(0, 2000).map(float),
        waiting=st.integers(0, 2000).map(float),
        kv=_SHARES,
        preemptions=_COUNTS,
        prompt_tokens=_COUNTS,
        generation_tokens=_COUNTS,
        hit_rate=_SHARES,
        cache_queries=_COUNTS,
        cache_hits=_COUNTS,
        prompts=_TALLIES,
        outputs=_TALLIES,
        first_token=_TALLIES,
        between_tokens=_TALLIES,
        gpu=_SHARES,
    ),
    max_size=30,
).map(lambda samples: sorted(samples, key=lambda sample: sample.at))
_LIMITS = st.one_of(st.none(), st.integers(1, 10_000))
_SETTINGS = st.builds(
    Setting,
    concurrency=_LIMITS,
    said=st.booleans(),
    configured=_LIMITS,
    max_concurrent_jobs=_LIMITS,
    max_num_seqs=_LIMITS,
    max_concurrency=st.one_of(st.none(), st.floats(0, 1e4)),
    kv_tokens=st.one_of(st.none(), st.integers(0, 10**9)),
    max_model_len=_LIMITS,
)


@settings(max_examples=50)
@given(_SAMPLES, _SETTINGS, st.floats(1, 3600))
def test_advice_can_be_followed(samples: list[Sample], setting: Setting, window: float) -> None:
    """At least one request, at most four times as many, never above what caps it; without load no figure at all."""
    found = advise(samples, setting, window=window)
    if found is None:
        return
    target = found.target
    assert (target.value is None) == (found.verdict is Verdict.NO_LOAD)
    if target.value is not None:
        assert 1 <= target.value <= 4 * target.current
        assert setting.max_num_seqs is None or target.value <= setting.max_num_seqs
    assert not target.trusted or not target.doubt
    assert found.as_json()["evidence"]
    assert found.headline


_PIECES = st.sampled_from(
    [
        *("Engine 000: ", "Engine 001: ", "Avg prompt throughput: ", "Avg generation throughput: ", " tokens/s, "),
        *("Running: ", "Waiting: ", "Pending: ", "Swapped: ", " reqs, ", "GPU KV cache usage: ", "%, ", "\n"),
        *("Prefix cache hit rate: ", "Preemptions: ", "KV cache size: ", "Maximum concurrency for ", "max_num_seqs=1"),
        *("12-31 23:59:59 ", "99-99 99:99:99 ", "1", "0.5", "...", "1e999", "9" * 400),
    ]
)


@given(st.lists(st.one_of(_PIECES, st.text(max_size=5)), max_size=60).map("".join))
def test_no_log_raises(text: str) -> None:
    """Samples come in order of time, with figures that make sense."""
    reader = StatsReader()
    for line in text.split("\n"):
        reader.feed(line)
    samples = reader.samples()
    assert all(before.at <= after.at for before, after in itertools.pairwise(samples))
    assert all(sample.kv is None or 0 <= sample.kv <= 1 for sample in samples)
    advise(samples, reader.setting())
