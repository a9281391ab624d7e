"""What follows from `/health` once an engine is ready: patience with the busy, an end for the stuck and the dead."""

import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.daemon.conftest import QUICK, SIMULATED
from tests.daemon.test_promises import one_engine, streaming
from tests.rig import Rig

Make = Callable[..., Rig]


def probes(rig: Rig, result: str) -> float:
    _, body = rig.request("GET", "/metrics")
    name = f'vllm_supervisor_probe_results_total{{probe="health",result="{result}"}}'
    lines = [line for line in body.decode().splitlines() if line.startswith(name)]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


def asleep(rig: Rig) -> bool:
    """Whether the engine core is beyond the reach of SIGTERM, as one that hangs inside the driver is."""
    text = Path(f"/proc/{rig.member('VLLM::EngineCor').pid}/status").read_text()
    ignored = next(line for line in text.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def phases(rig: Rig) -> list[str]:
    return [event["after"] for event in rig.events("phase_changed")]


DEAF = """
import http.server, os, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if os.path.exists(sys.argv[1]) and self.path != "/metrics":
            os.unlink(sys.argv[1])
            server.socket.close()
            while True: __import__("signal").pause()
        body = b'{"data": [{"id": "demo/model"}]}'
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answers)
server.serve_forever()
"""
"""An engine that is ready without a token, and stops listening, though it lives, once there is a file (removed)."""


@pytest.fixture(scope="module", autouse=True)
def dying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Rig]]:
    """Engines that say that they are dead, and stay: started first, since it takes ten seconds until we believe it."""
    rigs = [Rig(tmp_path_factory.mktemp("dying"), QUICK) for _ in range(3)]
    dead, down, deaf = rigs
    for rig in rigs:
        rig.config["engine"]["vllm"]["launcher"] = rig.launch_script()
    once: dict[str, object] = {"fault_starts": 1, "max_seconds": 300}
    dead.simulate(VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1, max_seconds=300)
    down.simulate(health_status=503, fault_while=down.folder / "fault", state_dir=down.folder / "sim", **once)
    deaf.config["engine"]["vllm"] |= {
        "launcher": [sys.executable, "-c", DEAF, str(deaf.folder / "fault")],
        "startup": {"warmup": False},
    }
    for rig in rigs:
        rig.start(wait=False)
    for rig in rigs:
        rig.wait_answer()
        rig.wait_state("ready")
    dead.member("VLLM::EngineCor").kill()
    for rig in (down, deaf):
        (rig.folder / "fault").touch()
    yield rigs
    left = [line for rig in rigs for line in rig.clean_up()]
    assert not left, left


def test_a_slow_engine_is_unhealthy_and_comes_back_or_is_replaced(pliable: Make) -> None:
    """Unanswered probes make `unhealthy`; an answer makes `ready` again, and none within restart_after an end."""
    rig = pliable({"probe": {"interval": 0.1, "timeout": 1, "failure_threshold": 2, "restart_after": 5}})
    fault = rig.folder / "fault"
    rig.simulate(health_delay=3, fault_while=fault)
    rig.start()
    first = rig.wait_state("ready")
    fault.touch()
    status = rig.wait_state("unhealthy")
    assert status["probe"]["consecutive_failures"] >= 2
    assert "; restart in " in status["phase"]["detail"]
    assert rig.request("GET", "/readyz")[0] == 503
    assert rig.get("/v1/models") == {"models": []}
    fault.unlink()
    status = rig.wait_state("ready")
    assert (status["generation"], status["restarts"]["total"]) == (first["generation"], 0)

    rig.simulate(health_hang=1, fault_while=fault)
    rig.post("restart")
    hung = rig.wait_state("ready", after=first["generation"])
    rig.simulate()
    fault.touch()
    status = rig.wait_state("ready", after=hung["generation"])
    assert status["last_exit"]["reason"] == "unhealthy"
    assert "health probes in a row failed, the last: " in status["last_exit"]["detail"]
    assert status["restarts"]["by_reason"] | {"requested": 1, "unhealthy": 1} == status["restarts"]["by_reason"]
    assert phases(rig)[-5:] == ["unhealthy", "stopping", "backoff", "starting", "ready"], "no drain, no kill"
    assert probes(rig, "timeout") >= 4


def test_a_busy_engine_is_never_unhealthy(pliable: Make) -> None:
    """While tokens flow, probes that time out say nothing against the engine."""
    rig = pliable({"probe": {"interval": 0.05, "timeout": 1, "failure_threshold": 1, "restart_after": 0}})
    fault = rig.folder / "fault"
    rig.simulate(health_hang=1, fault_while=fault, tokens_per_second=50)
    rig.start()
    first = rig.wait_state("ready")
    with streaming(rig, SIMULATED):
        fault.touch()
        rig.until(lambda: probes(rig, "busy") >= 3, what="probes that time out while tokens flow")
        assert phases(rig).count("unhealthy") == 0
        assert rig.request("GET", "/readyz")[0] == 200
        fault.unlink()
        ok = probes(rig, "ok")
        rig.until(lambda: probes(rig, "ok") > ok, what="a good probe")
    assert rig.status()["generation"] == first["generation"]


def test_an_engine_that_died_has_time_to_exit_by_itself(pliable: Make) -> None:
    """503, then exit 0: `unhealthy` at once, and a crash with code 0 rather than our SIGTERM."""
    rig = pliable()
    rig.simulate(engine_exit_delay=2)
    rig.start()
    rig.wait_state("ready")
    rig.member("VLLM::EngineCor").kill()
    status = rig.wait_state("ready", after=1)
    assert "unhealthy" in phases(rig)
    assert "stopping" not in phases(rig)
    assert (status["last_exit"]["code"], status["last_exit"]["reason"]) == (0, "crash")
    assert status["restarts"]["by_reason"] == dict.fromkeys(status["restarts"]["by_reason"], 0) | {"crash": 1}
    assert rig.metric('vllm_supervisor_restarts_total{reason="crash"}') == 1


def test_a_frozen_engine_with_good_health_is_stopped_all_the_same(pliable: Make) -> None:
    """An engine that no longer steps stays ready while `/health` is 200, and a stop of it ends in proof."""
    rig = pliable({"stop": {"drain_timeout": 0.7, "grace": 2}})
    rig.simulate(freeze_after=3, no_metrics=1)
    rig.start()
    rig.wait_state("ready")
    rig.until(lambda: asleep(rig), what="an engine core that ignores SIGTERM, being frozen")
    before = probes(rig, "ok")
    rig.until(lambda: probes(rig, "ok") > before + 3, what="good probes")
    status = rig.status()
    assert status["state"] == "ready"
    assert status["load"] == {"running": None, "waiting": None, "kv_cache_usage": None}
    asked = time.monotonic()
    rig.post("stop")
    rig.wait_state("stopped")
    assert time.monotonic() - asked > 0.7, "without figures the drain lasts its whole time"
    assert rig.members() == []


def test_a_stopped_leader_is_unhealthy_and_killed(pliable: Make) -> None:
    """A leader that SIGSTOP froze takes no SIGTERM: it is found by silence, and ended by SIGKILL after the grace."""
    rig = pliable({"stop": {"drain_timeout": 0, "grace": 0.3}})
    rig.start()
    rig.wait_state("ready")
    frozen = psutil.Process(rig.leader())
    frozen.send_signal(signal.SIGSTOP)
    status = rig.wait_state("ready", after=1)
    assert status["last_exit"]["signal"] == signal.SIGKILL
    assert status["last_exit"]["reason"] == "unhealthy"
    assert not frozen.is_running()
    with socket.create_connection(("127.0.0.1", rig.port), 5):
        one_engine(rig)


def test_an_engine_that_says_it_is_dead_and_stays_is_replaced(dying: list[Rig]) -> None:
    """503 (VLLM_KEEP_ALIVE_ON_ENGINE_DEATH, or of a proxy) and refused: ten seconds to exit by itself, then our end."""
    for rig, result in zip(dying, ("error", "error", "refused"), strict=True):
        status = rig.wait_state("ready", after=1)
        assert status["last_exit"]["reason"] == "unhealthy"
        assert status["restarts"]["by_reason"] == dict.fromkeys(status["restarts"]["by_reason"], 0) | {"unhealthy": 1}
        gone = next(event for event in rig.events("phase_changed") if event["before"] == "unhealthy")
        assert 9 < gone["seconds"] < 60
        assert probes(rig, result) > 3
    one_engine(dying[0])
