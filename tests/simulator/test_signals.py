"""Signals and exit codes are those measured on vLLM 0.32."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.eventually import eventually
from tests.simulator.sim import Sim

Launch = Callable[..., Sim]


def test_sigterm_before_the_engine_exists_kills_at_once(launch: Launch) -> None:
    """While importing, nothing handles SIGTERM: -15."""
    sim = launch("--sim-import-seconds", "50")
    sim.member("APIServer")
    sim.kill()
    assert sim.wait() == -signal.SIGTERM
    assert sim.out == ""


def test_sigterm_while_starting_ends_as_an_interrupt(launch: Launch) -> None:
    """Once the EngineCore exists, SIGTERM is turned into KeyboardInterrupt: -2, and nobody is left."""
    sim = launch("--sim-never-ready")
    sim.member("Worker")
    sim.kill()
    assert sim.wait() == -signal.SIGINT
    assert "KeyboardInterrupt: terminated" in sim.err
    eventually(sim.gone)


def test_lost_sigterm_then_a_second_while_starting(launch: Launch) -> None:
    """`lose-first-sigterm`: the first, to the whole group, has no effect; the second ends the start with -2."""
    sim = launch("--sim-never-ready", "--sim-lose-first-sigterm")
    eventually(lambda: "50% Completed" in sim.err)
    os.killpg(sim.pid, signal.SIGTERM)
    eventually(lambda: _handled(sim))
    assert sorted(sim.survivors()) == ["APIServer", "EngineCore", "Worker", "resource_tracker"]
    os.killpg(sim.pid, signal.SIGTERM)
    assert sim.wait() == -signal.SIGINT
    eventually(sim.gone)


def test_lost_sigterm_then_a_second_once_ready(launch: Launch) -> None:
    """`lose-first-sigterm`: the start goes on to ready although it was told to stop; the second then ends it with 0."""
    sim = launch("--sim-load-seconds", "2", "--sim-lose-first-sigterm")
    sim.member("Worker")
    os.killpg(sim.pid, signal.SIGTERM)
    sim.ready()
    os.killpg(sim.pid, signal.SIGTERM)
    assert sim.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_once_ready_exits_zero_with_nothing_left(launch: Launch, number: int) -> None:
    """SIGTERM and SIGINT take the same way out: 0, with vLLM's lines, and no member survives."""
    sim = launch().ready()
    sim.kill(number)
    assert sim.wait() == 0
    eventually(sim.gone)
    assert "[shutdown] API server: shutdown triggered" in sim.out
    assert f"force killing remaining process EngineCore pid {sim.member('EngineCore')}" in sim.out
    assert "INFO:     Application shutdown complete." in sim.err


def test_sigterm_to_the_whole_group_exits_zero(launch: Launch) -> None:
    """A supervisor signals every member: the leader still takes its orderly way out."""
    sim = launch("--sim-engine-exit-delay", "30").ready()
    os.killpg(sim.pid, signal.SIGTERM)
    assert sim.wait() == 0
    eventually(sim.gone)


def test_sigterm_with_a_stopped_engine_exits_zero(launch: Launch) -> None:
    """A frozen engine does not keep the server."""
    sim = launch().ready()
    os.kill(sim.member("EngineCore"), signal.SIGSTOP)
    sim.kill()
    assert sim.wait() == 0


def test_sigterm_cuts_open_streams_by_default(launch: Launch) -> None:
    """Without `wait-for-streams` an open stream keeps nobody."""
    sim = launch("--sim-tokens-per-second", "2").ready()
    with sim.open("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 500, "stream": True}) as response:
        response.readline()
        sim.kill()
        assert sim.wait() == 0


def test_wait_for_streams_stays_until_the_client_hangs_up(launch: Launch) -> None:
    """`wait-for-streams`: engine dead, port closed, further SIGTERMs ignored, process alive while a stream is open."""
    sim = launch("--sim-tokens-per-second", "2", "--sim-wait-for-streams").ready()
    with sim.open("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 500, "stream": True}) as response:
        response.readline()
        sim.kill()
        eventually(lambda: "Waiting for connections to close. (CTRL+C to force quit)" in sim.err)
        eventually(lambda: sim.survivors() == ["APIServer", "resource_tracker"], what=str(sim.survivors()))
        sim.kill()
        assert not sim.listening()
        assert sim.process.poll() is None
    assert sim.wait() == 0


def test_shutdown_timeout_drains(launch: Launch) -> None:
    """--shutdown-timeout: /health stays 200, new requests get 500, what runs is finished, then exit 0."""
    sim = launch("--sim-tokens-per-second", "4", "--shutdown-timeout", "30").ready()
    with sim.open("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 10, "stream": True}) as response:
        response.readline()
        sim.kill()
        eventually(lambda: "mode=drain" in sim.out)
        assert sim.get("/health").status == 200
        refused = sim.complete()
        assert (refused.status, refused.json["error"]["message"]) == (500, "cannot schedule new futures after shutdown")
        assert response.read().count(b"data: {") == 9
    assert sim.wait() == 0


def test_ignored_sigterm(launch: Launch) -> None:
    """`ignore-sigterm`: no member heeds it; SIGKILL to the group ends them all."""
    sim = launch("--sim-ignore-sigterm").ready()
    os.killpg(sim.pid, signal.SIGTERM)
    # The group's own answer proves that the signal came and went.
    assert sim.complete(20).status == 200
    assert sorted(sim.survivors()) == ["APIServer", "EngineCore", "Worker", "resource_tracker"]
    os.killpg(sim.pid, signal.SIGKILL)
    assert sim.wait() == -signal.SIGKILL
    eventually(sim.gone)


def _handled(sim: Sim) -> bool:
    """Say whether no signal waits to be delivered to the leader."""
    with open(f"/proc/{sim.pid}/status") as status:  # noqa: PTH123 - read as a stream
        masks = dict(line.split(":", 1) for line in status)
    return int(masks["SigPnd"], 16) == 0 == int(masks["ShdPnd"], 16)
