"""The promises, on a whole daemon: the same on the simulator and on a real vLLM, which keeps the former honest."""

import contextlib
import json
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.daemon.conftest import Kit
from tests.rig import Rig, Status, comm

Make = Callable[..., Rig]


def started(make_rig: Make, kit: Kit, **more: object) -> Rig:
    rig = make_rig({**kit.section, "model_aliases": {"short": kit.model}, **more})
    rig.start()
    return rig


def loading_for(kit: Kit, seconds: float) -> dict[str, object]:
    """Have the simulator take its time; a real vLLM does so by itself."""
    return {"env": kit.section["env"] | {"SIM_LOAD_SECONDS": str(seconds)}} if kit.name == "simulator" else {}


def ready(rig: Rig, kit: Kit, after: int = -1) -> Status:
    return rig.wait_state("ready", kit.ready_within, after=after)


def names(rig: Rig) -> list[str]:
    return [comm(process.pid) for process in rig.members()]


def one_engine(rig: Rig) -> None:
    cores = [name for name in names(rig) if name.startswith("VLLM::EngineCor")]
    assert len(cores) == 1, names(rig)


def nothing_left(rig: Rig) -> None:
    assert rig.members() == []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", rig.port))


def test_ready_means_that_it_served_and_stop_ends_in_proof(make_rig: Make, kit: Kit) -> None:
    """Nothing is advertised before a token came back; two restarts in a row make one engine; a stop leaves nothing."""
    rig = started(make_rig, kit, **loading_for(kit, 1))
    status = rig.status()
    assert status["state"] == "starting"
    assert rig.get("/v1/models") == {"models": []}
    assert rig.request("GET", "/readyz")[0] == 503
    status = ready(rig, kit)
    assert rig.get("/v1/models") == {
        "models": [{"name": kit.model, "served": kit.model}, {"name": "short", "served": kit.model}]
    }
    assert rig.request("GET", "/readyz")[0] == 200
    assert rig.metric("vllm_supervisor_ready") == 1
    _, text = rig.ask_engine("/metrics")
    tokens = [line for line in text.decode().splitlines() if line.startswith("vllm:generation_tokens_total")]
    assert float(tokens[0].rpartition(" ")[2]) >= 1, "the warm-up made a token"
    rig.until(lambda: rig.status()["engine"]["vllm_version"], what="the version is known")
    assert rig.status()["engine"]["kv_cache_tokens"] > 0

    rig.post("restart", reason="first", drain=False)
    rig.post("restart", reason="second", drain=False)
    status = ready(rig, kit, after=status["generation"])
    one_engine(rig)
    assert status["restarts"]["by_reason"]["requested"] == 1
    assert status["restarts"]["total"] == 1

    rig.post("stop", reason="enough")
    rig.wait_state("stopped", 60)
    nothing_left(rig)
    assert rig.get("/v1/models") == {"models": []}
    assert rig.status()["last_exit"]["reason"] == "stop"
    assert rig.stop() == 0


def test_each_member_killed_is_followed_by_one_new_engine(make_rig: Make, kit: Kit) -> None:
    """SIGKILL of the worker, the engine core, the API server: a crash each, exit 0 included, and no stray."""
    rig = started(make_rig, kit)
    for crashes, (title, code, by) in enumerate(
        [("VLLM::Worker", 0, None), ("VLLM::EngineCor", 0, None), ("leader", None, 9)], start=1
    ):
        before = ready(rig, kit)
        old = {process.pid for process in rig.members()}
        victim = rig.leader() if title == "leader" else rig.member(title).pid
        psutil.Process(victim).kill()
        status = ready(rig, kit, after=before["generation"])
        assert status["generation"] == before["generation"] + 1
        one_engine(rig)
        assert old.isdisjoint({process.pid for process in rig.members()}), f"a stray after {title}"
        last = status["last_exit"]
        assert (last["code"], last["signal"], last["reason"]) == (code, by, "crash")
        assert status["restarts"]["by_reason"]["crash"] == crashes
    assert rig.metric('vllm_supervisor_restarts_total{reason="crash"}') == 3
    assert rig.stop() == 0
    nothing_left(rig)


@pytest.mark.parametrize("engine_exists", [False, True], ids=["before the engine core", "after it"])
def test_stop_while_starting_wins(make_rig: Make, kit: Kit, *, engine_exists: bool) -> None:
    """A stop during start-up ends everything, and readiness is never reported after it."""
    rig = started(make_rig, kit, **loading_for(kit, 60))
    rig.until(rig.members, 20, what="a member")
    if engine_exists:
        core = "VLLM::EngineCor"
        rig.until(lambda: any(n.startswith(core) for n in names(rig)), kit.engine_exists_within, what="an engine core")
    assert rig.status()["state"] == "starting"
    rig.post("stop")
    rig.wait_state("stopped", 60)
    nothing_left(rig)
    assert not [e for e in rig.events("phase_changed") if e["after"] == "ready"]
    assert rig.stop() == 0


@contextmanager
def streaming(rig: Rig, kit: Kit) -> Iterator[socket.socket]:
    """A completion that streams for as long as it may, its first token here."""
    body = json.dumps(
        {"model": kit.model, "prompt": "x", "max_tokens": 900, "stream": True, "ignore_eos": True, "temperature": 0}
    )
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", rig.port), 60) as client:
        client.sendall((head + body).encode())
        seen = b""
        while b"data:" not in seen:
            part = client.recv(65536)
            assert part, seen
            seen += part
        yield client


def test_stop_with_a_stream_open(make_rig: Make, kit: Kit) -> None:
    """The drain waits for the stream for drain_timeout and no longer, and the end is proof all the same."""
    env = kit.section["env"] | {"SIM_TOKENS_PER_SECOND": "5", "SIM_WAIT_FOR_STREAMS": "1"}
    section = {"env": env} if kit.name == "simulator" else {}
    rig = started(make_rig, kit, **section, stop={"drain_timeout": 1.0, "grace": 4.0})
    ready(rig, kit)
    with streaming(rig, kit):
        rig.post("stop")
        assert rig.request("GET", "/readyz")[0] == 503
        assert rig.get("/v1/models") == {"models": []}
        rig.wait_state("stopped", 60)
    nothing_left(rig)
    assert rig.stop() == 0


def test_port_taken_then_key_and_wildcard_address(make_rig: Make, kit: Kit) -> None:
    """A taken port is no start and names its holder; once free, an engine on 0.0.0.0 with a key becomes ready."""
    rig = make_rig({**kit.section, "api_key": "not-for-eyes", "host": "0.0.0.0"})
    with socket.create_server(("127.0.0.1", rig.port)):
        rig.start()
        status = rig.wait_state("backoff")
        assert status["blocker"]["kind"] == "port"
        assert f"pid {psutil.Process().pid}" in status["blocker"]["why"]
        assert rig.metric("vllm_supervisor_starts_total") == 0
    status = ready(rig, kit)
    assert status["base_url"] == f"http://127.0.0.1:{rig.port}"
    body = {"model": kit.model, "prompt": "x", "max_tokens": 1}
    assert rig.ask_engine("/v1/completions", body)[0] == 401
    assert rig.ask_engine("/v1/completions", body, key="not-for-eyes")[0] == 200
    shown = (
        json.dumps(rig.status())
        + rig.daemon_log()
        + json.dumps(rig.events())
        + rig.request("GET", "/metrics")[1].decode()
    )
    assert "not-for-eyes" not in shown
    argv = [" ".join(process.cmdline()) for process in rig.members()]
    assert not [line for line in argv if "not-for-eyes" in line]
    assert rig.stop() == 0


def test_killed_daemon_is_followed_by_one_engine(make_rig: Make, kit: Kit) -> None:
    """The engine outlives a SIGKILL of its daemon, and the next daemon ends it before it launches its own."""
    rig = started(make_rig, kit)
    before = ready(rig, kit)
    old = {process.pid for process in rig.members()}
    rig.send(signal.SIGKILL)
    rig.wait_exit()
    assert {process.pid for process in rig.members()} == old
    rig.start()
    after = ready(rig, kit, after=before["generation"])
    assert after["restarts"]["total"] == 0
    one_engine(rig)
    assert old.isdisjoint({process.pid for process in rig.members()})
    assert rig.stop() == 0
    with contextlib.suppress(subprocess.TimeoutExpired):
        assert rig.wait_exit(1) == 0
