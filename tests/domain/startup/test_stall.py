"""The verdict that a start has stalled: what counts as a sign of life, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.domain.startup import Activity, Pulse, stalled
from vllm_supervisor.domain.startup.signs import GPU_BYTES, IO_BYTES

T = 900.0


@pytest.mark.parametrize(
    ("moved", "cpu", "now", "stall"),
    [
        (0, 0, T - 0.1, False),
        (0, 0, T, True),
        (0, 10, T, False),  # CPU time carries on ...
        (0, T, 2 * T - 0.1, False),
        (0, 2 * T, 2 * T, True),  # ... up to twice the timeout
        (0, 100, T + 99, False),
        (0, 100, T + 100, True),  # CPU time ended
        (500, 0, T + 499, False),
        (500, 0, T + 500, True),
    ],
)
def test_when_it_is_a_stall(moved: float, cpu: float, now: float, stall: bool) -> None:
    """Nothing for the timeout; nothing but CPU time for twice as long."""
    assert (stalled(Pulse(moved, cpu), now, T) is not None) is stall


LOOKS = [
    (Activity(cpu_s=10), Activity(cpu_s=10.4), "neither"),
    (Activity(cpu_s=10), Activity(cpu_s=10.5), "cpu"),
    (Activity(io_bytes=0), Activity(io_bytes=IO_BYTES - 1), "neither"),
    (Activity(io_bytes=0), Activity(io_bytes=IO_BYTES), "moved"),
    (Activity(gpu_bytes=GPU_BYTES), Activity(gpu_bytes=0), "moved"),
    (Activity(gpu_bytes=GPU_BYTES), Activity(gpu_bytes=None), "neither"),
    (Activity(cache=(1, 2, 3)), Activity(cache=(1, 2, 4)), "moved"),
    (Activity(cache=(1, 2, 3)), Activity(cache=(1, 2, 3)), "neither"),
    (Activity(cpu_s=None, io_bytes=None), Activity(cpu_s=5.0, io_bytes=1 << 30), "neither"),
]


@pytest.mark.parametrize(("before", "after", "sign"), LOOKS)
def test_what_a_look_proves(before: Activity, after: Activity, sign: str) -> None:
    """Two looks five seconds apart: an idle poll is no sign, and what one look could not see proves nothing."""
    pulse = Pulse(0.0, 0.0).looked(before, after, 5.0, 77.0)
    assert ("moved" if pulse.moved_at == 77 else "cpu" if pulse.cpu_at == 77 else "neither") == sign


def test_the_verdict_names_the_last_sign() -> None:
    """An operator reads what moved last, and whether something spun."""
    words = stalled(Pulse(0.0, 0.0).moved(100.0, "the download"), 1000.0, T)
    assert words == "nothing moved for 900 s; the last sign of life was the download"
    words = stalled(Pulse(0.0, 1800.0), 1800.0, T)
    assert words == "nothing moved for 1800 s, only CPU time was spent; the last sign of life was the launch"


@pytest.mark.parametrize(
    ("after", "what"),
    [
        (Activity(gpu_bytes=GPU_BYTES), "GPU memory"),
        (Activity(gpu_bytes=GPU_BYTES, io_bytes=IO_BYTES), "disk"),
        (Activity(io_bytes=IO_BYTES, cache=2, cpu_s=9.0), "compile caches"),
        (Activity(cpu_s=9.0), "the download"),
    ],
)
def test_what_moved_last_is_named(after: Activity, what: str) -> None:
    """CPU time proves nothing, and takes no other sign's name away."""
    before = Activity(cpu_s=0.0, io_bytes=0, gpu_bytes=0, cache=1)
    assert Pulse(0.0, 0.0, "the download").looked(before, after, 5.0, 77.0).what == what


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.1, 1e5))
def test_bounds(moved: float, cpu: float, now: float, timeout: float) -> None:
    """Never before the timeout, always after twice as long."""
    verdict = stalled(Pulse(moved, cpu), now, timeout)
    if now - moved < timeout:
        assert verdict is None
    if now - moved >= 2 * timeout:
        assert verdict is not None
