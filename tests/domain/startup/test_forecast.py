"""How long it will take, from how long it took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.domain.startup import PastStart, PastStarts, StartPhase, arguments_digest, eta, overall
from vllm_supervisor.domain.startup.forecast import MAX_STARTS

USUAL = {
    StartPhase.LAUNCHING: 10.0,
    StartPhase.CONFIGURING: 20.0,
    StartPhase.DOWNLOADING: 600.0,
    StartPhase.LOADING_WEIGHTS: 40.0,
    StartPhase.COMPILING: 30.0,
    StartPhase.WARMING_UP: 5.0,
}


@pytest.mark.parametrize(
    ("phase", "in_phase", "ratio", "download", "left"),
    [
        (StartPhase.LAUNCHING, 0, None, None, 105),  # the download of last time is done
        (StartPhase.LAUNCHING, 4, None, None, 101),
        (StartPhase.LAUNCHING, 24, None, None, 95),  # overdue, but not by much
        (StartPhase.LAUNCHING, 26, None, None, None),  # not like last time
        (StartPhase.LOADING_WEIGHTS, 60, 0.5, None, 95),  # the pace of this time
        (StartPhase.LOADING_WEIGHTS, 10, 0.05, None, 65),  # too early for a pace
        (StartPhase.DOWNLOADING, 100, 0.5, 200.0, 275),
        (StartPhase.DOWNLOADING, 100, None, None, None),
        (StartPhase.CAPTURING_GRAPHS, 3, None, None, 5),  # there was none last time
        (StartPhase.WARMING_UP, 7, None, None, 1),  # the least that is said
    ],
)
def test_eta(
    phase: StartPhase, in_phase: float, ratio: float | None, download: float | None, left: float | None
) -> None:
    """What is left of the phase, by its own pace or by the last one's, and the phases to come."""
    assert eta(USUAL, phase, in_phase, ratio, download) == left


def test_no_history_no_forecast() -> None:
    """Nothing is made up."""
    assert eta(None, StartPhase.LOADING_WEIGHTS, 10, 0.5, 3) is None


def test_history_is_kept_by_kind_and_bounded() -> None:
    """The last start of each kind counts; another version, model or command is another kind."""
    past = PastStarts()
    for seconds in (50.0, 30.0):
        past = past.with_start(PastStart("m", "a", "0.32.0", {StartPhase.LAUNCHING: seconds}))
    past = past.with_start(PastStart("m", "a", "0.11.0", {StartPhase.LAUNCHING: 10.0}))
    assert len(past.starts) == 2
    assert past.expected("m", "a", "0.32.0") == {StartPhase.LAUNCHING: 30.0}
    assert past.expected("m", "a", None) == {StartPhase.LAUNCHING: 10.0}, "until vLLM says its version, the latest"
    assert past.expected("m", "a", "0.33.0") is past.expected("m", "b", None) is past.expected("n", "a", None) is None
    for number in range(2 * MAX_STARTS):
        past = past.with_start(PastStart("m", str(number), None, {}))
    assert len(past.starts) == MAX_STARTS
    assert past.expected("m", "a", None) is None


def test_a_digest_tells_commands_apart_and_hides_them() -> None:
    """Where the engine listens makes no difference; a flag does; a token cannot be read from it."""
    base = ("vllm", "serve", "m", "--host", "127.0.0.1", "--port", "8000", "--hf-token", "hf_secret")
    moved = ("vllm", "serve", "m", "--host", "0.0.0.0", "--port", "9000", "--hf-token", "hf_secret")
    assert arguments_digest(base) == arguments_digest(moved)
    assert arguments_digest(base) != arguments_digest((*base, "--enforce-eager"))
    assert "hf_secret" not in arguments_digest(base)


@given(
    st.sampled_from(StartPhase),
    st.none() | st.floats(0, 1),
    st.floats(0, 1e6),
    st.none() | st.floats(0, 1e6),
)
def test_a_start_is_never_said_to_be_over(
    phase: StartPhase, ratio: float | None, elapsed: float, left: float | None
) -> None:
    """Only readiness makes it 1."""
    assert 0 <= overall(phase, ratio, elapsed, left) < 1
