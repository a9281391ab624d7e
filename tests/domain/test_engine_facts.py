import math

import pytest

from vllm_supervisor.domain.engine import EngineMetrics, moved
from vllm_supervisor.domain.model import ExitStatus, Phase, PublicState, public_state

STEPS = ("0", "iterations")
TOKENS = ("0", "generation_tokens")
OTHER_RANK = ("1", "iterations")


def gauged(usage: float, *counters: tuple[tuple[str, str], float]) -> EngineMetrics:
    return EngineMetrics(counters=dict(counters), gauges={("0", "kv_cache_usage"): usage})


def look(*counters: tuple[tuple[str, str], float]) -> EngineMetrics:
    return EngineMetrics(running=3, counters=dict(counters))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(None, None, False, id="no look proves nothing"),
        pytest.param(None, look((STEPS, 5)), False, id="a first look proves nothing"),
        pytest.param(look((STEPS, 5)), None, False, id="a failed look proves nothing"),
        pytest.param(look((STEPS, 5)), look((STEPS, 5)), False, id="the same value is no step"),
        pytest.param(look((STEPS, 5)), look((STEPS, 6)), True, id="a higher value is a step"),
        pytest.param(look((STEPS, 5)), look((STEPS, 0)), False, id="a counter gone backwards proves nothing"),
        pytest.param(look((STEPS, 5)), look((STEPS, 0), (TOKENS, 9)), False, id="a new series proves nothing"),
        pytest.param(look((STEPS, 5), (TOKENS, 1)), look((STEPS, 5), (TOKENS, 2)), True, id="one of two is enough"),
        pytest.param(
            look((STEPS, 5), (OTHER_RANK, 1)), look((STEPS, 5), (OTHER_RANK, 2)), True, id="one rank is enough"
        ),
        pytest.param(look((STEPS, 5)), look((OTHER_RANK, 6)), False, id="another rank's counter is not compared"),
        pytest.param(look((STEPS, 5)), look(), False, id="a series that vanished proves nothing"),
        pytest.param(look((STEPS, 5)), look((STEPS, math.nan)), False, id="not a number proves nothing"),
        pytest.param(
            EngineMetrics(running=1),
            EngineMetrics(running=2),
            False,
            id="sums of gauges are not compared",
        ),
        pytest.param(gauged(0.25), gauged(0.5), True, id="a gauge that differs is a step: a chunk of a prefill"),
        pytest.param(gauged(0.5), gauged(0.25), True, id="also downwards"),
        pytest.param(gauged(0.25), gauged(0.25), False, id="the same gauge is nothing: it freezes at its last value"),
        pytest.param(
            gauged(0.25, (STEPS, 5)), gauged(0, (STEPS, 0)), False, id="with a counter gone backwards all is new"
        ),
    ],
)
def test_moved(before: EngineMetrics | None, after: EngineMetrics | None, expected: bool) -> None:
    """A known counter that grew, or a gauge that changed, proves that the engine stepped."""
    assert moved(before, after) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(ExitStatus(code=0), "exit 0", id="code 0 is a code"),
        pytest.param(ExitStatus(signal=9), "signal 9", id="signal"),
        pytest.param(ExitStatus(), "unknown", id="a leader that is not our child"),
    ],
)
def test_exit_status_in_words(status: ExitStatus, expected: str) -> None:
    """How a leader ended, as shown to users."""
    assert str(status) == expected


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        pytest.param(Phase.KILLING, PublicState.STOPPING, id="killing is stopping"),
        pytest.param(Phase.REAPING, PublicState.STOPPING, id="reaping is stopping"),
        pytest.param(Phase.EXITED, PublicState.STOPPED, id="exited is stopped"),
        *(pytest.param(Phase(name), name, id=f"{name} is itself") for name in PublicState),
    ],
)
def test_public_state(phase: Phase, expected: PublicState) -> None:
    """Users see seven states."""
    assert public_state(phase) is expected
