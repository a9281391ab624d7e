import pytest

from tests.domain.situations import NOW, POLICY, SITUATIONS, situation
from vllm_supervisor.domain.machine import needs

EXPECTED = {
    "stopped": "",
    "stopped after a run": "",
    "exited": "",
    "clearing": "clearing",
    "spawning": "",
    "starting": "wake+900 starting_probe",
    "ready": "serving_probe",
    "unhealthy": "wake+40 serving_probe",
    "crashed, reaping": "wake+1 proving",
    "backoff": "wake+3",
    "blocked": "wake+3",
    "stop, draining": "wake+20 draining",
    "restart, draining": "wake+20 draining",
    "end, draining": "wake+20 draining",
    "stop, terminating": "wake+3",
    "stop, orphans": "wake+3 proving",
    "stop, spawning": "wake+3",
    "restart, terminating": "wake+3",
    "restart, spawning": "wake+3",
    "end, terminating": "wake+3",
    "leftover": "wake+3",
    "unhealthy, terminating": "wake+43",
    "stop, killing": "wake+26",
    "end, killing": "wake+26",
    "stop, spawn overdue": "wake+26",
    "end, spawn overdue": "wake+26",
    "failed": "",
    "failed, unkillable": "proving",
    "failed, unkillable leader": "",
    "failed, spawn overdue": "",
}


@pytest.mark.parametrize("where", SITUATIONS)
def test_what_must_be_going_on(where: str) -> None:
    """Tasks and the wake-up follow from the state; the earlier of two timers is the one."""
    wants = needs(situation(where), POLICY)
    parts = [] if wants.wake_at is None else [f"wake+{wants.wake_at - NOW:g}"]
    flags = ("clearing", "starting_probe", "serving_probe", "draining", "proving")
    assert " ".join([*parts, *(flag for flag in flags if getattr(wants, flag))]) == EXPECTED[where]
