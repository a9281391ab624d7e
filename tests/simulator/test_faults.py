"""Each fault does what the manual says of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.proc import alive
from tests.simulator.sim import Sim
from vllm_supervisor import simulator
from vllm_supervisor.simulator.knobs import Knobs

Launch = Callable[..., Sim]


@pytest.mark.parametrize("phase", ["import", "load", "ready"])
def test_exit_code_at_each_phase(launch: Launch, phase: str) -> None:
    """`exit-code` ends the start with that code, and all of the tree."""
    sim = launch("--sim-exit-code", "7", "--sim-exit-phase", phase, "--sim-load-seconds", "0.1")
    assert sim.wait() == 7
    assert ("EngineCore" in sim.members()) is (phase != "import")
    assert ("Application startup complete" in sim.err) is (phase == "ready")
    eventually(sim.gone)


def test_exit_after(launch: Launch) -> None:
    """`exit-after` counts from the phase: it was ready first."""
    sim = launch("--sim-exit-code", "1", "--sim-exit-phase", "ready", "--sim-exit-after", "2").ready()
    assert sim.wait() == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_exit_signal(launch: Launch, number: int) -> None:
    """`exit-signal`: ended by it, as by the OOM killer or a segmentation fault; the rest is orphaned."""
    sim = launch(f"--sim-exit-signal={int(number)}", "--sim-exit-phase", "ready")
    assert sim.wait() == -number
    assert alive(sim.member("EngineCore"))


def test_leader_sigkill(launch: Launch) -> None:
    """`leader-sigkill-after`: -9 once ready, EngineCore and worker live on."""
    sim = launch(env={"SIM_LEADER_SIGKILL_AFTER": "0"})
    assert sim.wait() == -signal.SIGKILL
    assert "Application startup complete" in sim.err
    assert alive(sim.member("EngineCore"))
    assert alive(sim.member("Worker"))


@pytest.mark.parametrize("fault", ["engine-death-after", "worker-death-after"])
def test_engine_death(launch: Launch, fault: str) -> None:
    """503 first, exit 0 later."""
    sim = launch(f"--sim-{fault}", "0.3", "--sim-engine-exit-delay", "2")
    eventually(lambda: sim.listening() and sim.get("/health").status == 503)
    assert sim.wait() == 0
    assert "EngineCore encountered a fatal error." in sim.out
    eventually(sim.gone)


def test_freeze(launch: Launch) -> None:
    """`freeze-after`: completions hang, /health is 200, and SIGTERM ends it with 0 all the same."""
    sim = launch("--sim-freeze-after", "0").ready()
    with pytest.raises(TimeoutError):
        sim.complete(timeout=0.3)
    assert sim.get("/health").status == 200
    os.killpg(sim.pid, signal.SIGTERM)
    assert sim.wait() == 0
    eventually(sim.gone)


def test_never_ready(launch: Launch) -> None:
    """`never-ready`: the bar stands at half, nobody listens."""
    sim = launch("--sim-never-ready")
    eventually(lambda: "50% Completed" in sim.err)
    assert not sim.listening()
    assert "75% Completed" not in sim.err


def test_health_faults_follow_a_switch_file(launch: Launch, tmp_path: Path) -> None:
    """`fault-while`: /health is as told while the file exists, and recovers when it is gone."""
    switch = tmp_path / "switch"
    sim = launch("--sim-health-status", "503", "--sim-fault-while", str(switch)).ready()
    switch.touch()
    assert sim.get("/health").status == 503
    switch.unlink()
    assert sim.get("/health").status == 200


def test_health_hang_and_delay(launch: Launch, tmp_path: Path) -> None:
    """A hanging /health never answers, a slow one late; other endpoints are not concerned."""
    switch = tmp_path / "switch"
    hanging = launch("--sim-health-hang", "--sim-fault-while", str(switch)).ready()
    slow = launch("--sim-health-delay", "0.5", "--sim-fault-while", str(switch)).ready()
    switch.touch()
    for sim in (hanging, slow):
        with pytest.raises(TimeoutError):
            sim.get("/health", timeout=0.2)
        assert sim.get("/version").status == 200
    assert slow.get("/health").status == 200


def test_faults_begin_later(launch: Launch) -> None:
    """`fault-after`: the fault waits its time from ready."""
    sim = launch("--sim-completions-status", "500", "--sim-fault-after", "2").ready()
    assert sim.complete().status == 200
    eventually(lambda: sim.complete().status == 500)


@pytest.mark.parametrize(
    ("knob", "path", "body", "flags"),
    [
        ("completions", "/v1/completions", {"prompt": "a"}, ()),
        ("chat", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, ()),
        ("embeddings", "/v1/embeddings", {"input": "a"}, ("--runner", "pooling")),
    ],
)
def test_statuses(launch: Launch, knob: str, path: str, body: object, flags: tuple[str, ...]) -> None:
    """The endpoint answers the status asked for, in vLLM's shape of an error."""
    sim = launch(f"--sim-{knob}-status", "422", *flags).ready()
    answer = sim.post(path, body)
    assert answer.status == answer.json["error"]["code"] == 422


def test_no_metrics(launch: Launch) -> None:
    """`no-metrics`: 404."""
    assert launch("--sim-no-metrics").ready().get("/metrics").status == 404


def test_worker_setsid(launch: Launch) -> None:
    """One worker leaves the session; another is daemonised away, and outlives an orderly end of the tree."""
    sim = launch("--sim-worker-setsid", env={"SPT_NOENV": "1", "MY_MARKER": "seven"}).ready()
    stray, worker = sim.member("stray"), sim.member("Worker")
    assert os.getsid(worker) == worker
    assert os.getsid(stray) not in {sim.pid, worker}
    assert b"MY_MARKER=seven" in Path(f"/proc/{stray}/environ").read_bytes()
    sim.kill()
    assert sim.wait() == 0
    eventually(lambda: sim.survivors() == ["stray"])


def test_log_flood(launch: Launch) -> None:
    """`log-flood`: megabytes a second, and the server answers meanwhile."""
    sim = launch("--sim-log-flood", "5").ready()
    eventually(lambda: len(sim.out) > 1_000_000)
    assert sim.complete().status == 200


def test_non_utf8(launch: Launch) -> None:
    """`non-utf8`: the log cannot be decoded."""
    sim = launch("--sim-non-utf8").ready()
    with pytest.raises(UnicodeDecodeError):
        (sim.root / "out.log").read_text(encoding="utf-8")


def test_replay(launch: Launch, tmp_path: Path) -> None:
    """`replay`: the file byte for byte, then the code."""
    log = tmp_path / "failure.log"
    log.write_bytes(b"(EngineCore pid=7) ERROR\r\nCUDA out of memory \xff\n")
    sim = launch("--sim-replay", str(log))
    assert sim.wait() == 1
    assert (sim.root / "out.log").read_bytes() == log.read_bytes()
    assert launch("--sim-replay", str(log), "--sim-exit-code", "0").wait() == 0


def test_lifetime_is_bounded(launch: Launch) -> None:
    """`max-seconds`: orphans, strays and those that ignore SIGTERM end themselves."""
    sim = launch("--sim-ignore-sigterm", "--sim-worker-setsid", env={"SIM_MAX_SECONDS": "1"})
    assert sim.wait() == -signal.SIGALRM
    eventually(sim.gone)


def test_faults_only_in_the_first_starts(tmp_path: Path) -> None:
    """`fault-starts` 1: the first start crashes, the second comes up, over one state directory."""
    state = tmp_path / "state"
    state.mkdir()
    env = {"SIM_FAULT_STARTS": "1", "SIM_EXIT_CODE": "3"}
    crashing = Sim(state, env=env)
    try:
        assert crashing.wait() == 3
        working = Sim(state, env=env)
        try:
            working.ready()
        finally:
            working.clear()
    finally:
        crashing.clear()


def test_manual_names_every_knob() -> None:
    """The docstring, which --help prints, and the knobs agree."""
    manual = simulator.__doc__ or ""
    for name in Knobs._fields:
        assert name.replace("_", "-") in manual, name
    command = [sys.executable, "-m", "vllm_supervisor.simulator", "serve", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == manual.strip()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--no-such-flag",), "vllm: error: unrecognized arguments: --no-such-flag"),
        (("--port", "abc"), "vllm serve: error: argument --port: invalid int value: 'abc'"),
        (("--sim-nonsense", "1"), "vllm serve: error: unrecognized arguments: --sim-nonsense"),
    ],
)
def test_usage_errors(launch: Launch, flags: tuple[str, ...], message: str) -> None:
    """Exit 2, and argparse's last line."""
    sim = launch(*flags)
    assert sim.wait() == 2
    assert sim.err.splitlines()[-1] == message
