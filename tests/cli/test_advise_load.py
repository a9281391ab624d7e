"""What a load's run is shown as, where there is something to conclude and where there is not."""

import pytest

from vllm_supervisor.cli.advise.load import Run
from vllm_supervisor.cli.advise.loadtext import as_json, foot
from vllm_supervisor.domain.advice.ramp import Step

STEPS = [Step(1, 1, 0, 0.1, 10.0), Step(2, 2, 0, 0.2, 19.0)]
SPOILED = Step(4, 4, 0, 0.4, 99.0, foreign=True, spoiled=True)
LOST = "the engine was restarted during the run (generation 1, now 2)"


@pytest.mark.parametrize(
    ("run", "why"),
    [
        pytest.param(Run(9, 9, False, STEPS, LOST, lost=LOST), LOST, id="the engine is another"),
        pytest.param(
            Run(9, 9, False, STEPS[:1], "interrupted", interrupted=True),
            "there is nothing to compare a single step with", id="one step, interrupted",
        ),
        pytest.param(
            Run(9, 9, False, [STEPS[0], SPOILED], "interrupted", interrupted=True),
            "there is nothing to compare a single step with", id="a second one that does not count",
        ),
        pytest.param(Run(9, 9, False, [SPOILED], "others"), "no step was finished that counts", id="no step counts"),
        pytest.param(Run(9, 9, False, [], "30 s"), "no step was finished that counts", id="no step"),
    ],
)  # fmt: skip
def test_no_verdict(run: Run, why: str) -> None:
    """Neither verdict nor target, the reason why, and all that was measured."""
    found = as_json(run)
    assert [found[key] for key in ("verdict", "target_concurrency", "knee", "reason")] == [None, None, None, why]
    assert len(found["steps"]) == len(run.steps)  # type: ignore[arg-type]
    text = foot(run)
    assert f"\nno verdict  {why}" in text
    assert "keep" not in text
    assert text.count(run.stopped) == 1
    assert "99.0" not in text


def test_a_verdict_from_two_steps() -> None:
    """Also where the run was interrupted, or a third step does not count: its tokens are in no bar."""
    for steps in (STEPS, [*STEPS, SPOILED]):
        run = Run(9, 9, False, steps, "interrupted", interrupted=True)
        assert as_json(run)["target_concurrency"] == 2
        text = foot(run)
        assert "\nin flight   keep 2\n" in text
        assert ("#" * 50 + "  19.0") in text
