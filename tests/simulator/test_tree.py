"""The tree looks like vLLM's, and its members live and die as vLLM's do."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.proc import alive
from tests.simulator.sim import Sim, status_field

Launch = Callable[..., Sim]


def cmdline(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()


def test_tree_has_vllms_shape(launch: Launch) -> None:
    """Tracker and EngineCore are children of the leader, the worker is the EngineCore's; one group, one session."""
    sim = launch().ready()
    engine, worker, tracker = (sim.member(name) for name in ("EngineCore", "Worker", "resource_tracker"))
    assert status_field(engine, "PPid") == status_field(tracker, "PPid") == str(sim.pid)
    assert status_field(worker, "PPid") == str(engine)
    for pid in (engine, worker, tracker):
        assert os.getpgid(pid) == os.getsid(pid) == sim.pid
    assert status_field(sim.pid, "Name") == "vllm"
    assert (cmdline(engine), status_field(engine, "Name")) == ("VLLM::EngineCore", "VLLM::EngineCor")
    assert (cmdline(worker), status_field(worker, "Name")) == ("VLLM::Worker", "VLLM::Worker")
    # Nobody waits for it: the server may be ready before it has its title.
    eventually(lambda: "multiprocessing.resource_tracker" in cmdline(tracker), what="the tracker has its title")


def test_tensor_parallel_workers_are_numbered(launch: Launch) -> None:
    """With --tensor-parallel-size 3 there are three workers, named by rank."""
    sim = launch("--tensor-parallel-size", "3").ready()
    assert [cmdline(sim.member(f"Worker_TP{rank}")) for rank in range(3)] == [f"VLLM::Worker_TP{r}" for r in range(3)]
    assert sim.complete().status == 200


@pytest.mark.parametrize("kept", [False, True])
def test_environment_of_members(launch: Launch, kept: bool) -> None:
    """Retitling erases the members' environment, marker included, unless SPT_NOENV is set; the leader keeps its own."""
    env = {"MY_MARKER": "seven", **({"SPT_NOENV": "1"} if kept else {})}
    sim = launch(env=env).ready()
    for name in ("EngineCore", "Worker"):
        environ = Path(f"/proc/{sim.member(name)}/environ").read_bytes()
        assert (b"MY_MARKER=seven" in environ) is kept
        assert kept or not environ.strip(b"\0")
    for name in ("APIServer", "resource_tracker"):
        assert b"MY_MARKER=seven" in Path(f"/proc/{sim.member(name)}/environ").read_bytes()


def test_killed_worker_takes_engine_and_server_with_it(launch: Launch) -> None:
    """Worker killed: the EngineCore dies by itself, /health is 503, later the server exits 0, and all is gone."""
    sim = launch("--sim-engine-exit-delay", "3").ready()
    engine = sim.member("EngineCore")
    os.kill(sim.member("Worker"), signal.SIGKILL)
    eventually(lambda: sim.get("/health").status == 503)
    eventually(lambda: not alive(engine))
    assert sim.get("/v1/models").status == 200
    assert sim.wait() == 0
    assert not sim.listening()
    eventually(sim.gone)
    assert "died unexpectedly (exit code: -9)" in sim.out
    assert "EngineDeadError" in sim.out


def test_killed_engine_takes_workers_with_it(launch: Launch) -> None:
    """EngineCore killed: the worker exits by its death pipe, the server answers 503, then exits 0."""
    sim = launch("--sim-engine-exit-delay", "0.5", "--tensor-parallel-size", "2").ready()
    os.kill(sim.member("EngineCore"), signal.SIGKILL)
    eventually(lambda: not alive(sim.member("Worker_TP0")) and not alive(sim.member("Worker_TP1")))
    assert sim.wait() == 0
    eventually(sim.gone)


def test_server_stays_without_engine_when_told_so(launch: Launch) -> None:
    """VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1: 503, 200 for models, 500 for completions, and no exit before SIGTERM."""
    sim = launch("--sim-engine-exit-delay", "0", env={"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}).ready()
    os.kill(sim.member("EngineCore"), signal.SIGKILL)
    eventually(lambda: sim.get("/health").status == 503)
    assert sim.complete().status == 500
    assert sim.get("/v1/models").status == 200
    assert sim.get("/version").json == {"version": "0.32.0"}
    assert sim.process.poll() is None
    sim.kill()
    assert sim.wait() == 0


def test_a_request_that_meets_the_dead_engine_ends_the_server(launch: Launch) -> None:
    """As real vLLM does: a client gets EngineDeadError, and the server exits 0 without its five seconds."""
    sim = launch("--sim-tokens-per-second", "5", "--sim-engine-exit-delay", "50").ready()
    with sim.open("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 500, "stream": True}) as response:
        assert response.readline().startswith(b"data: {")
        os.kill(sim.member("EngineCore"), signal.SIGKILL)
        rest = response.read().decode()
    assert '"message": "EngineCore encountered an issue.' in rest
    assert rest.endswith("data: [DONE]\n\n")
    assert sim.wait() == 0


def test_orphans_survive_a_killed_leader(launch: Launch) -> None:
    """SIGKILL of the API server leaves EngineCore and worker alive, in their group; the port is free."""
    sim = launch().ready()
    sim.kill(signal.SIGKILL)
    assert sim.wait() == -signal.SIGKILL
    engine, worker = sim.member("EngineCore"), sim.member("Worker")
    eventually(lambda: status_field(engine, "PPid") != str(sim.pid))
    assert alive(engine)
    assert alive(worker)
    assert os.getpgid(engine) == os.getpgid(worker) == sim.pid
    assert not sim.listening()
    os.killpg(sim.pid, signal.SIGTERM)
    eventually(sim.gone)


def test_engine_that_dies_while_loading_fails_the_start(launch: Launch) -> None:
    """EngineCore killed before it is ready: exit 1 with vLLM's words, and no process is left."""
    sim = launch("--sim-never-ready")
    sim.member("Worker")
    os.kill(sim.member("EngineCore"), signal.SIGKILL)
    assert sim.wait() == 1
    assert "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): " in sim.err
    eventually(sim.gone)


def test_worker_that_dies_while_loading_fails_the_start(launch: Launch) -> None:
    """A worker killed while loading takes the EngineCore with it, and the server exits 1."""
    sim = launch("--sim-never-ready")
    os.kill(sim.member("Worker"), signal.SIGKILL)
    assert sim.wait() == 1
    assert "WorkerProc initialization failed" in sim.out
    assert "{'EngineCore': 1}" in sim.err


@pytest.mark.parametrize("who", ["EngineCore", "Worker"])
def test_stopped_engine_freezes_completions_only(launch: Launch, who: str) -> None:
    """SIGSTOP: completions hang, counters and gauges stand still, /health and /metrics answer; SIGCONT resumes."""
    sim = launch("--sim-tokens-per-second", "50", "--enable-server-load-tracking").ready()
    with sim.open("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 120, "stream": True}) as response:
        response.readline()
        os.kill(sim.member(who), signal.SIGSTOP)
        eventually(lambda: status_field(sim.member(who), "State").startswith("T"))

        def figures() -> tuple[float, ...]:
            return (
                sim.metric("vllm:generation_tokens_total"),
                sim.metric("vllm:iteration_tokens_total_count"),
                sim.metric("vllm:num_requests_running"),
            )

        # What was under way when the signal came may still arrive.
        before = eventually(lambda: figures() if figures() == figures() else None)
        with pytest.raises(TimeoutError):
            sim.complete(timeout=0.3)
        assert sim.get("/health").status == 200
        assert figures() == before
        assert before[2] == 1
        eventually(lambda: sim.get("/load").json == {"server_load": 1})
        os.kill(sim.member(who), signal.SIGCONT)
        assert response.read().endswith(b"data: [DONE]\n\n")
    assert sim.metric("vllm:generation_tokens_total") >= 120
