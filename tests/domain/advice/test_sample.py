"""One look at `/metrics` as a sample, and the arithmetic over several."""

from dataclasses import replace

import pytest

from vllm_supervisor.domain.advice import Sample, sample_of
from vllm_supervisor.domain.advice.sample import mean_of, median, quantile, risen
from vllm_supervisor.domain.engine import EngineMetrics, Tally

LOOK = EngineMetrics(
    running=3,
    waiting=2,
    kv_cache_usage=0.5,
    preemptions=1,
    prompt_tokens=100,
    generation_tokens=200,
    cache_hit_rate=0.25,
    cache_queries=40,
    cache_hits=10,
    prompt_lengths=Tally(1, 2),
    output_lengths=Tally(3, 4),
    first_token=Tally(5, 6),
    between_tokens=Tally(7, 8),
)


def test_a_look_shows_what_the_metrics_do() -> None:
    """Each figure in its own place."""
    assert sample_of(LOOK, 12.5, 3) == Sample(
        at=12.5,
        running=3,
        waiting=2,
        kv=0.5,
        preemptions=1,
        prompt_tokens=100,
        generation_tokens=200,
        hit_rate=0.25,
        cache_queries=40,
        cache_hits=10,
        prompts=Tally(1, 2),
        outputs=Tally(3, 4),
        first_token=Tally(5, 6),
        between_tokens=Tally(7, 8),
        generation=3,
    )
    assert sample_of(replace(LOOK, waiting=None), 0) == replace(_sample(LOOK), waiting=0)


@pytest.mark.parametrize("look", [None, replace(LOOK, running=None), replace(LOOK, asleep=True)])
def test_no_sample_without_requests_to_count(look: EngineMetrics | None) -> None:
    """`--disable-log-stats`, an engine that sleeps, or no answer: nothing to advise on."""
    assert sample_of(look, 1) is None


def _sample(look: EngineMetrics) -> Sample:
    found = sample_of(look, 0)
    assert found is not None
    assert found.generation == 0
    return found


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0), ([4], 0.9, 4), ([3, 1, 2], 0, 1), ([3, 1, 2], 1, 3), ([1, 2, 3, 5], 0.9, 4.4), ([2, 1], 0.25, 1.25)],
)
def test_quantiles_lie_between_neighbours(values: list[float], share: float, expected: float) -> None:
    """In proportion, whatever the order."""
    assert quantile(values, share) == pytest.approx(expected)


def test_the_median_is_the_middle() -> None:
    """Or the mean of the middle two."""
    assert (median([9, 1, 2]), median([1, 2, 4, 9])) == (2, 3)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], None), ([5], None), ([5, None], None), ([5, 5], 0), ([5, None, 8], 3), ([5, 8, 1, 3], 5), ([5, 8, 7], 3)],
)
def test_a_counter_rises_also_across_a_restart(values: list[float | None], expected: float | None) -> None:
    """A fall is an engine that began anew, and counts for nothing."""
    assert risen(values) == expected


@pytest.mark.parametrize(
    ("tallies", "expected"),
    [
        ([], None),
        ([None], None),
        ([Tally(10, 4)], 2.5),
        ([Tally(10, 4), Tally(10, 4)], 2.5),
        ([Tally(10, 4), None, Tally(16, 5)], 6),
        ([Tally(0, 0)], None),
        ([Tally(8, 4), Tally(1, 1)], 1),
    ],
)
def test_the_mean_is_of_what_was_added(tallies: list[Tally | None], expected: float | None) -> None:
    """Of all before where nothing was added; unknown where nothing ever was."""
    assert mean_of(tallies) == expected
