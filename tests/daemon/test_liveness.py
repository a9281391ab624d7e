"""A stuck engine is found although `/health` says 200, and a busy, a slow or a sleeping one is left alone."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.daemon.conftest import SIMULATED
from tests.daemon.test_promises import one_engine, streaming
from tests.rig import Rig, Status

Make = Callable[..., Rig]

INTERVAL, TIMEOUT = 0.6, 1.8
SLACK = 5.0
"""For two busy cores; the bound itself is tested in virtual time."""
QUICK: dict[str, object] = {
    "liveness": {"interval": INTERVAL, "timeout": TIMEOUT},
    "probe": {"interval": 0.2, "timeout": 2},
    "stop": {"drain_timeout": 0.1, "grace": 1},
}


def liveness(rig: Rig) -> Status:
    part: Status = rig.status()["liveness"]
    return part


def verdicts(rig: Rig) -> list[str]:
    return [event["verdict"] for event in rig.events("liveness")]


def canaries(rig: Rig, result: str = "ok") -> float:
    return rig.metric(f'vllm_supervisor_probe_results_total{{probe="canary",result="{result}"}}')


def restarted(rig: Rig, after: Status) -> None:
    """Wait for the engine that follows a hang, and check how the one before ended."""
    status = rig.wait_state("ready", after=after["generation"])
    assert status["last_exit"]["reason"] == "hang"
    assert status["restarts"]["by_reason"]["hang"] == after["restarts"]["by_reason"]["hang"] + 1
    assert status["restarts"]["total"] == after["restarts"]["total"] + 1
    one_engine(rig)


def still_there(rig: Rig, status: Status, seconds: float) -> None:
    """Watch for a while that nothing is restarted, nor unhealthy."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        now = rig.status()
        assert (now["state"], now["generation"]) == ("ready", status["generation"]), rig.daemon_log()
        time.sleep(0.05)


@contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        if process.is_running():
            process.resume()


@pytest.fixture
def live(make_rig: Make) -> Callable[..., Rig]:
    """Start a daemon that finds hangs within seconds, and wait until it is ready."""

    def make(*args: str, drain: float = 0.1, timeout: float = TIMEOUT, **env: object) -> Rig:
        named = {name if name.isupper() else f"SIM_{name.upper()}": str(value) for name, value in env.items()}
        stop = {"drain_timeout": drain, "grace": 1}
        limits = {"interval": INTERVAL, "timeout": timeout}
        rig = make_rig(QUICK | {"extra_args": list(args), "env": named, "stop": stop, "liveness": limits})
        rig.start()
        rig.wait_state("ready")
        return rig

    return make


@pytest.mark.parametrize("title", ["VLLM::EngineCor", "VLLM::Worker"])
@pytest.mark.parametrize("loaded", [False, True], ids=["idle", "loaded"])
def test_a_frozen_member_is_found_and_replaced(live: Callable[..., Rig], title: str, loaded: bool) -> None:
    """SIGSTOP of the core and of a worker, idle and with a stream open; without a drain, which would last for 20 s."""
    rig = live(drain=20, tokens_per_second=20)
    first = rig.status()
    with ExitStack() as load:
        if loaded:
            load.enter_context(streaming(rig, SIMULATED))
        rig.until(lambda: liveness(rig)["verdict"] is not None, what="a verdict")
        began = time.monotonic()
        rig.member(title).suspend()
        rig.until(lambda: rig.status()["state"] != "ready", TIMEOUT + INTERVAL + SLACK, what="found")
        assert time.monotonic() - began > TIMEOUT - INTERVAL
        assert rig.request("GET", "/readyz")[0] == 503
        restarted(rig, first)
    assert verdicts(rig)[-1] == "stuck"
    assert "no counter" in rig.events("liveness")[-1]["detail"]
    assert rig.metric('vllm_supervisor_restarts_total{reason="hang"}') == 1


def test_a_freeze_within_the_engine_is_found_once(live: Callable[..., Rig], tmp_path: object) -> None:
    """A step that hangs in the driver takes no SIGTERM either; the next engine is left in peace."""
    rig = live(freeze_after=3, fault_starts=1, state_dir=f"{tmp_path}/sim")
    restarted(rig, {"generation": 1, "restarts": {"by_reason": {"hang": 0}, "total": 0}})
    still_there(rig, rig.status(), 2 * TIMEOUT)
    assert canaries(rig) > 2
    assert rig.metric("vllm_supervisor_canary_duration_seconds") > 0
    assert abs(rig.metric("vllm_supervisor_last_progress_timestamp_seconds") - time.time()) < SLACK
    assert liveness(rig)["last_canary_s"] > 0


@pytest.mark.parametrize("title", ["VLLM::EngineCor", "VLLM::Worker"])
def test_a_short_freeze_is_let_pass(live: Callable[..., Rig], title: str) -> None:
    """SIGSTOP for less than the timeout, then SIGCONT: no restart."""
    # The rest of the timeout is what two busy cores may take to let the engine answer again.
    rig = live(tokens_per_second=50, timeout=3 * TIMEOUT)
    first = rig.status()
    member = rig.member(title)
    for _ in range(2):
        with frozen(member):
            still_there(rig, first, TIMEOUT)
        rig.until(lambda: liveness(rig)["verdict"] in ("alive", "idle", "busy"), what="a good verdict again")
    still_there(rig, first, 2 * TIMEOUT + 2 * INTERVAL)
    assert "stuck" not in verdicts(rig)


def test_health_that_hangs_while_tokens_flow_is_busy(live: Callable[..., Rig], tmp_path: Path) -> None:
    """The counters say that it lives, and no canary is sent."""
    fault = tmp_path / "fault"
    rig = live(health_hang=1, fault_while=fault, tokens_per_second=30)
    fault.touch()
    first = rig.status()
    with streaming(rig, SIMULATED):
        still_there(rig, first, 2)
        before = canaries(rig)
        still_there(rig, first, TIMEOUT + 2 * INTERVAL)
        assert canaries(rig) == before
        assert liveness(rig)["verdict"] == "alive"


@pytest.mark.parametrize("status", [401, 404])
def test_canaries_that_are_refused_make_blind(live: Callable[..., Rig], tmp_path: Path, status: int) -> None:
    """An event and a status field, never a restart."""
    fault = tmp_path / "fault"
    rig = live(completions_status=status, fault_while=fault)
    fault.touch()
    first = rig.status()
    rig.until(lambda: liveness(rig)["verdict"] == "blind", what="blind")
    still_there(rig, first, TIMEOUT + 2 * INTERVAL)
    assert verdicts(rig) == ["blind"]
    assert f"HTTP {status}" in liveness(rig)["evidence"]
    assert canaries(rig, "error") >= 2


def test_a_sleeping_engine_is_not_asked(live: Callable[..., Rig]) -> None:
    """A request that waits for its waking proves nothing; once awake it is watched again."""
    rig = live("--enable-sleep-mode", "--enable-server-load-tracking", VLLM_SERVER_DEV_MODE=1)
    first = rig.status()
    assert rig.ask_engine("/sleep", {})[0] == 200
    rig.until(lambda: "asleep" in (liveness(rig)["evidence"] or ""), what="asleep")
    before = canaries(rig)
    with streaming_later(rig):
        still_there(rig, first, TIMEOUT + 2 * INTERVAL)
        assert (canaries(rig), liveness(rig)["verdict"]) == (before, "idle")
        assert rig.ask_engine("/wake_up", {})[0] == 200
        rig.until(lambda: canaries(rig) > before, what="a canary")
    rig.member("VLLM::EngineCor").suspend()
    restarted(rig, first)


@contextmanager
def streaming_later(rig: Rig) -> Iterator[None]:
    """Have a request in the API server that gets no answer for now."""
    body = b'{"model": "demo/model", "prompt": "x", "max_tokens": 1}'
    with socket.create_connection(("127.0.0.1", rig.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        yield


@pytest.mark.parametrize("tracked", [False, True])
def test_without_counters_only_load_proves_it(live: Callable[..., Rig], tracked: bool) -> None:
    """`--disable-log-stats`: a late canary is suspect; with `--enable-server-load-tracking` it is proof."""
    rig = live("--disable-log-stats", *(["--enable-server-load-tracking"] if tracked else []))
    first = rig.status()
    rig.until(lambda: canaries(rig) > 1, what="canaries that are answered")
    with frozen(rig.member("VLLM::EngineCor")):
        if tracked:
            restarted(rig, first)
        else:
            rig.until(lambda: liveness(rig)["verdict"] == "suspect", what="suspect")
            still_there(rig, first, TIMEOUT + 2 * INTERVAL)


def test_mode_none_asks_nothing(make_rig: Make) -> None:
    """No canary is sent."""
    rig = make_rig(QUICK | {"liveness": {"mode": "none", "interval": 0.3, "timeout": 1}})
    rig.start()
    first = rig.wait_state("ready")
    still_there(rig, first, 2)
    assert canaries(rig) == 0
