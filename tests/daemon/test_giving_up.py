"""When the daemon stops trying, what it says then, and how it is made to try again."""

from collections.abc import Callable

from tests.rig import Rig

Make = Callable[..., Rig]


def test_starts_in_a_row_that_never_got_ready(pliable: Make) -> None:
    """After never_ready_limit starts the state is `failed` and says why; a start or a restart tries again."""
    rig = pliable({"restart": {"min_backoff": 0.05, "max_backoff": 0.1, "never_ready_limit": 2}})
    rig.simulate(exit_code=7)
    rig.start()
    status = rig.wait_state("failed")
    assert status["generation"] == 2
    assert "2 starts in a row never got ready" in status["fail_why"]
    assert "2 starts in a row never got ready" in status["phase"]["detail"]
    assert (status["last_exit"]["code"], status["next_start_in_s"]) == (7, None)
    assert status["restarts"]["by_reason"]["crash"] == 1, "two starts, one of them a restart"
    assert rig.request("GET", "/readyz")[0] == 503
    assert rig.request("GET", "/livez")[0] == 200
    assert rig.metric('vllm_supervisor_state{state="failed"}') == 1
    failed = rig.cli("wait", "--timeout", "30")
    assert failed.returncode == 5
    assert "never got ready" in failed.stderr

    rig.post("start")
    status = rig.wait_state("failed", after=2)
    assert status["generation"] == 4, "a start forgives what was"
    rig.simulate()
    rig.post("restart")
    status = rig.wait_state("ready", after=4)
    assert (status["fail_why"], status["restarts"]["consecutive"]) == (None, 0)


def test_a_ready_engine_forgives_starts_that_failed(pliable: Make) -> None:
    """Crashes of engines that had been ready never lead to `failed`."""
    rig = pliable({"restart": {"min_backoff": 0.05, "max_backoff": 0.1, "never_ready_limit": 1}})
    rig.simulate(exit_code=7, exit_phase="ready", exit_after=2, fault_starts=2, state_dir=rig.folder / "sim")
    rig.start()
    status = rig.wait_state("ready", after=2)
    assert status["restarts"]["by_reason"]["crash"] == 2
    assert rig.events("phase_changed")[-1]["after"] == "ready"
    assert "failed" not in [event["after"] for event in rig.events("phase_changed")]


def test_restarts_switched_off(pliable: Make) -> None:
    """With restart.enabled false an end is final, until retry_failed_every or an operator says otherwise."""
    rig = pliable({"restart": {"enabled": False, "retry_failed_every": 2}})
    rig.simulate(exit_code=0, exit_phase="ready", exit_after=2, fault_starts=1, state_dir=rig.folder / "sim")
    rig.start()
    status = rig.wait_state("failed")
    assert "restart.enabled" in status["fail_why"]
    assert (status["last_exit"]["code"], status["last_exit"]["reason"]) == (0, "crash")
    assert 0 < status["next_start_in_s"] <= 2
    rig.wait_state("ready", after=1)


def test_exit_when_failed(pliable: Make) -> None:
    """The daemon ends with status 10, its last words name the reason, and nothing is left."""
    rig = pliable({"restart": {"min_backoff": 0.05, "max_backoff": 0.1, "never_ready_limit": 1,
                               "exit_when_failed": True}})  # fmt: skip
    rig.simulate(exit_signal=11)
    rig.start(wait=False)
    assert rig.wait_exit() == 10
    assert "never got ready" in rig.daemon_log()
    assert '"signal": 11' in rig.daemon_log()
    assert rig.members() == []
    assert not rig.socket.exists()
