import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.domain.model import Policy
from vllm_supervisor.domain.policy import backoff_delay

ALMOST_1 = math.nextafter(1.0, 0.0)


@pytest.mark.parametrize(
    ("failures", "u", "expected"),
    [
        pytest.param(0, 0.5, 1.0, id="no failure, no window"),
        pytest.param(1, 0.0, 1.0, id="the least is min_backoff"),
        pytest.param(1, 0.5, 1.5, id="the first failure opens a window of 2 x min"),
        pytest.param(2, 0.5, 2.5, id="the second one of 4 x min"),
        pytest.param(3, 0.25, 2.75, id="a quarter of the third"),
        pytest.param(5, 0.5, 16.5, id="still below the cap"),
        pytest.param(6, 0.5, 30.5, id="capped at max_backoff"),
        pytest.param(10_000, 0.5, 30.5, id="does not overflow"),
        pytest.param(10_000, ALMOST_1, 60.0, id="never beyond max_backoff"),
    ],
)
def test_backoff_formula(failures: int, u: float, expected: float) -> None:
    """`min + u * (min(max, min * 2**n) - min)` with min 1 and max 60."""
    assert backoff_delay(failures, Policy(min_backoff=1.0, max_backoff=60.0), u) == pytest.approx(expected)


@pytest.mark.parametrize("failures", [0, 1, 7, 10_000])
@pytest.mark.parametrize("u", [0.0, 0.5, ALMOST_1])
def test_backoff_without_a_window_is_constant(failures: int, u: float) -> None:
    """With min and max equal there is nothing to choose."""
    assert backoff_delay(failures, Policy(min_backoff=5.0, max_backoff=5.0), u) == 5.0


@given(
    failures=st.integers(0, 10_000),
    low=st.floats(0.001, 1e6),
    window=st.floats(0.0, 1e6),
    u=st.floats(0.0, 1.0, exclude_max=True),
)
def test_backoff_stays_in_its_window_and_never_shrinks(failures: int, low: float, window: float, u: float) -> None:
    """Whatever the numbers: between min and max, and one more failure never means a shorter wait."""
    policy = Policy(min_backoff=low, max_backoff=low + window)
    delay = backoff_delay(failures, policy, u)
    assert policy.min_backoff <= delay <= policy.max_backoff * (1 + 1e-12)
    assert delay <= backoff_delay(failures + 1, policy, u)
