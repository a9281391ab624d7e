"""A stop, from any state, wins and ends in proof; a start after it counts as one."""

import signal
import socket
from collections.abc import Callable

import pytest

from tests.daemon.conftest import SIMULATED
from tests.daemon.test_promises import nothing_left, one_engine, streaming
from tests.rig import Rig

Make = Callable[..., Rig]

SLOW_RESTART = {"restart": {"min_backoff": 100, "max_backoff": 100}}


def launches(rig: Rig) -> int:
    return int(rig.metric("vllm_supervisor_starts_total"))


def test_stop_start_and_restart_while_waiting_to_launch(pliable: Make) -> None:
    """In backoff after a crash, and while the port is held, a stop holds and a start or restart does not wait."""
    rig = pliable(SLOW_RESTART)
    rig.simulate(exit_code=3)
    rig.start()
    status = rig.wait_state("backoff")
    assert 90 < status["next_start_in_s"] <= 100
    assert (status["last_exit"]["code"], status["last_exit"]["reason"]) == (3, "crash")
    assert status["restarts"]["consecutive"] == 1
    assert rig.metric("vllm_supervisor_backoff_seconds") > 90
    rig.post("stop")
    status = rig.status()
    assert (status["state"], status["intent"], status["next_start_in_s"]) == ("stopped", "down", None)
    assert rig.post("stop")["state"] == "stopped", "a second stop changes nothing"

    rig.post("start")
    assert rig.wait_state("backoff", after=1)["restarts"]["consecutive"] == 1, "an operator's start forgives"
    rig.simulate()
    rig.post("restart", reason="again")
    status = rig.wait_state("ready", after=2)
    assert launches(rig) == 3
    assert status["restarts"]["by_reason"] | {"crash": 1} == status["restarts"]["by_reason"]
    assert status["restarts"]["consecutive"] == 0, "and so does a restart"
    assert rig.post("start")["generation"] == status["generation"], "a start of a ready engine changes nothing"

    rig.post("stop")
    rig.wait_state("stopped")
    nothing_left(rig)
    assert rig.post("restart")["intent"] == "up", "a restart of a stopped engine starts it"
    status = rig.wait_state("ready", after=status["generation"])
    assert status["restarts"]["by_reason"]["requested"] == 0


def test_stop_while_the_port_is_held(pliable: Make) -> None:
    """Blocked is not failing: a stop clears it, and a start tries at once."""
    rig = pliable({"restart": SLOW_RESTART["restart"] | {"never_ready_limit": 1}})
    with socket.create_server(("127.0.0.1", rig.port)):
        rig.start()
        assert rig.wait_state("backoff")["blocker"]["kind"] == "port"
        rig.post("stop")
        status = rig.status()
        assert (status["state"], status["blocker"]) == ("stopped", None)
        rig.post("start")
        rig.wait_state("backoff", after=1)
    rig.post("start")
    rig.wait_state("ready")
    assert launches(rig) == 1


def test_a_second_stop_and_a_start_during_the_drain(pliable: Make) -> None:
    """A drain ends with its requests, with a second stop that does not drain, and in a launch where one is wanted."""
    rig = pliable({"stop": {"drain_timeout": 100, "grace": 10}})
    rig.simulate(tokens_per_second=300)
    rig.start()
    rig.wait_state("ready")
    with streaming(rig, SIMULATED):
        rig.post("stop")
        status = rig.status()
        assert (status["state"], status["phase"]["name"]) == ("stopping", "draining")
        rig.until(lambda: rig.status()["load"]["running"] == 1, what="the load is still shown")
        rig.wait_state("stopped")
        drained = next(event for event in rig.events("phase_changed") if event["before"] == "stopping")
    assert 1 < drained["seconds"] < 60, "900 tokens take three seconds"

    rig.simulate(tokens_per_second=5)
    rig.post("start")
    rig.wait_state("ready")
    with streaming(rig, SIMULATED):
        rig.post("stop")
        rig.post("stop", drain=False)
        rig.wait_state("stopped", 15)
    nothing_left(rig)

    rig.post("start")
    before = rig.wait_state("ready")
    with streaming(rig, SIMULATED):
        rig.post("stop")
        rig.post("start")
        status = rig.status()
        assert (status["state"], status["intent"]) == ("stopping", "up")
        rig.post("restart", drain=False)
        after = rig.wait_state("ready", after=before["generation"])
    one_engine(rig)
    assert after["generation"] == before["generation"] + 1
    assert after["restarts"]["by_reason"]["requested"] == 1


def test_a_second_signal_skips_the_drain(pliable: Make) -> None:
    """SIGINT or SIGTERM drains and refuses new wishes; a second one ends at once, with exit 0."""
    rig = pliable({"stop": {"drain_timeout": 100, "grace": 10}})
    rig.simulate(tokens_per_second=5)
    rig.start()
    rig.wait_state("ready")
    with streaming(rig, SIMULATED):
        rig.send(signal.SIGINT)
        rig.until(lambda: rig.status()["phase"]["name"] == "draining", what="the drain")
        assert rig.status()["intent"] == "exit"
        for verb in ("start", "restart"):
            status, body = rig.request("POST", f"/v1/{verb}", {})
            assert (status, b"ending" in body) == (409, True)
        assert rig.request("POST", "/v1/stop", {})[0] == 202
        assert rig.status()["intent"] == "exit", "a stop does not keep the daemon from ending"
        rig.send(signal.SIGTERM)
        assert rig.wait_exit(15) == 0
    nothing_left(rig)
    assert not rig.socket.exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
def test_signals_until_nobody_is_there(pliable: Make, signum: signal.Signals) -> None:
    """Signals that come while the daemon is putting itself away change neither its exit status nor its words."""
    rig = pliable()
    rig.start()
    rig.wait_state("ready")

    def gone() -> bool:
        rig.send(signum)
        return rig.ended()

    rig.until(gone, every=0.0005, what="the daemon's end")
    assert rig.wait_exit() == 0
    assert "Traceback" not in rig.daemon_log()
    nothing_left(rig)


def in_state(pliable: Make, state: str) -> Rig:
    """Start a daemon whose engine comes to `state`, or to where a stop brings it there."""
    engine = SLOW_RESTART | {"stop": {"drain_timeout": 0, "grace": 0.5}}
    rig = pliable(engine | ({"restart": {"enabled": False}} if state == "failed" else {}))
    knobs: dict[str, dict[str, object]] = {
        "starting": {"load_seconds": 60},
        "backoff": {"exit_code": 1},
        "failed": {"exit_code": 1},
        "stopping": {"ignore_sigterm": 1, "worker_setsid": 1},
    }
    rig.simulate(**knobs.get(state, {}))
    if state == "blocked":
        rig.config["engine"]["vllm"]["launcher"] = ["/no/such/launcher"]
    rig.start(wait=False)
    return rig


def test_the_daemon_ends_from_any_state(pliable: Make) -> None:
    """SIGTERM ends the daemon with status 0 and no process left, wherever the engine stands."""
    states = ("unborn", "starting", "backoff", "blocked", "stopping", "stopped", "failed")
    rigs = {state: in_state(pliable, state) for state in states}
    unborn = rigs["unborn"]
    unborn.until(lambda: "phase_changed" in unborn.daemon_log(), every=0, what="the daemon's first act")
    unborn.send(signal.SIGTERM)
    for state, rig in rigs.items():
        if rig is unborn:
            continue
        rig.wait_answer()
        if state in ("stopping", "stopped"):
            rig.wait_state("ready")
            rig.post("stop")
        rig.wait_state("backoff" if state == "blocked" else state)
        rig.send(signal.SIGTERM)
    assert {state: rig.wait_exit(15) for state, rig in rigs.items()} == dict.fromkeys(states, 0)
    for rig in rigs.values():
        nothing_left(rig)


def test_a_start_asked_for_while_stopping_is_a_launch(pliable: Make) -> None:
    """Stop, then start, while the members are still being ended: one new engine, after the old one is proven gone."""
    rig = pliable({"stop": {"drain_timeout": 0, "grace": 2}})
    rig.simulate(ignore_sigterm=1, worker_setsid=1)
    rig.start()
    before = rig.wait_state("ready")
    old = {process.pid for process in rig.members()}
    rig.simulate()
    rig.post("stop")
    rig.post("start")
    assert rig.status()["state"] == "stopping"
    after = rig.wait_state("ready", after=before["generation"])
    assert old.isdisjoint({process.pid for process in rig.members()})
    assert after["generation"] == before["generation"] + 1
    one_engine(rig)
