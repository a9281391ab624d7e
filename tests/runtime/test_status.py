"""The status object, in every phase."""

import json
from collections.abc import Awaitable, Callable, Mapping

import anyio
import pytest

from tests.fakes.engine import EngineScript
from tests.fakes.house import EPOCH, MODEL, House, build
from tests.fakes.situations import BUSY, backoff, blocked, clearing, draining, failed, in_every_phase, loading, stopped
from vllm_supervisor import __version__
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.domain.messages import ShutdownAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import RESTART_REASONS, Outcome, Phase, PublicState

pytestmark = pytest.mark.anyio

SCHEMA: Mapping[str, frozenset[str]] = {
    "log": frozenset(("readable", "detail")),
    "": frozenset(
        (
            "version",
            "state",
            "ready",
            "intent",
            "generation",
            "model",
            "revision",
            "base_url",
            "concurrency",
            "timeout",
            "pid",
            "since",
            "uptime_s",
            "phase",
            "log",
            "restarts",
            "next_start_in_s",
            "last_exit",
            "probe",
            "liveness",
            "engine",
            "load",
            "advice",
            "blocker",
            "fail_why",
            "survivors",
            "config",
        )
    ),
    "phase": frozenset(["name", "progress", "detail", "eta_s"]),
    "restarts": frozenset(["total", "by_reason", "consecutive"]),
    "probe": frozenset(["last_ok_age_s", "consecutive_failures", "latency_s"]),
    "liveness": frozenset(["verdict", "evidence", "last_progress_age_s", "last_canary_s"]),
    "engine": frozenset(["vllm_version", "models", "kv_cache_tokens", "max_concurrency", "startup"]),
    "load": frozenset(["running", "waiting", "kv_cache_usage"]),
}
LAST_EXIT = frozenset(
    ["code", "signal", "at", "reason", "diagnosis", "bundle", "retry_why", "detail", "where_to_look", "bundle_lost"]
)


def part(status: Mapping[str, object], name: str) -> dict[str, object]:
    """Return an object within the status."""
    value = status[name]
    assert isinstance(value, dict)
    return value


@in_every_phase
async def test_all_keys_are_there_in_every_phase_and_it_is_strict_json(
    reach: Callable[[House], Awaitable[None]],
) -> None:
    """Nothing is missing, whatever is unknown; what is said fits the state; also at the end."""
    house = build(EngineScript())
    async with house.run():
        await reach(house)
        for ending in (False, True):
            if ending:
                house.supervisor.post(ShutdownAsked())
                await house.ended()
            status = house.supervisor.status()
            assert json.loads(json.dumps(status, allow_nan=False)) == status
            assert set(status) == SCHEMA[""]
            for name in SCHEMA.keys() - {""}:
                assert set(part(status, name)) == SCHEMA[name]
            assert status["last_exit"] is None or set(part(status, "last_exit")) == LAST_EXIT
            assert status["state"] in set(PublicState)
            assert status["ready"] == (status["state"] == "ready") == bool(part(status, "engine")["models"])
            assert set(part(part(status, "restarts"), "by_reason")) == set(RESTART_REASONS)
            assert (status["pid"] is None) == (not house.state.leader_alive)
            assert (status["uptime_s"] is None) == (house.state.process is None)
            assert (status["next_start_in_s"] is not None) == (house.phase is Phase.BACKOFF)


async def test_ready_says_what_clients_need() -> None:
    """Figures of a ready engine."""
    house = build()
    house.client.metrics_is = EngineMetrics(
        running=2, waiting=1, kv_cache_usage=0.25, kv_cache_tokens=1000, max_concurrency=7.5
    )
    async with house.run():
        engine = await house.started()
        since = anyio.current_time()
        await anyio.sleep(7)
        status = house.supervisor.status()
        assert status["version"] == __version__
        assert (status["state"], status["ready"], status["intent"]) == ("ready", True, "up")
        assert (status["generation"], status["model"], status["revision"]) == (1, MODEL, None)
        assert (status["base_url"], status["concurrency"], status["timeout"]) == ("http://127.0.0.1:8000", 32, 600.0)
        assert status["pid"] == engine.pid
        assert status["uptime_s"] == round(anyio.current_time() - engine.launched_at, 3)
        assert str(status["since"]).startswith("2023-11-14T22:13:")
        assert str(status["since"]).endswith("Z")
        assert house.supervisor.facts.since_wall == pytest.approx(EPOCH + since, abs=0.01)
        assert part(status, "phase") == {"name": "ready", "progress": None, "detail": None, "eta_s": None}
        probe = part(status, "probe")
        assert (probe["last_ok_age_s"], probe["latency_s"]) == (pytest.approx(2.0, abs=0.1), 0.003)
        assert part(status, "engine") == {
            "vllm_version": "0.32.0",
            "models": [MODEL, "gpt-oss-20b"],
            "kv_cache_tokens": 1000,
            "max_concurrency": 7.5,
            "startup": dict.fromkeys(
                ("weights_gib", "load_s", "compile_s", "kv_cache_gib", "graph_gib", "init_s"),
            ),
        }
        assert part(status, "load") == {"running": 2, "waiting": 1, "kv_cache_usage": 0.25}


@pytest.mark.parametrize(
    ("reach", "state", "name"),
    [
        (stopped, "stopped", "stopped"),
        (clearing, "starting", "launching"),
        (loading, "starting", "launching"),
        (draining, "stopping", "draining"),
        (backoff, "backoff", "backoff"),
        (failed, "failed", "failed"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_the_phase_is_named(reach: Callable[[House], Awaitable[None]], state: str, name: str) -> None:
    """In words that the public states do not have."""
    house = build(EngineScript())
    async with house.run():
        await reach(house)
        status = house.supervisor.status()
        assert (status["state"], part(status, "phase")["name"]) == (state, name)
        detail = part(status, "phase")["detail"]
        assert detail == (status["fail_why"] if state == "failed" else None)


async def test_a_blocked_launch_says_why_and_when_it_is_tried_again() -> None:
    """For `status` and for whoever reads only the phase."""
    house = build(EngineScript())
    async with house.run():
        await blocked(house)
        status = house.supervisor.status()
        assert part(status, "phase")["detail"] == "taken"
        assert part(status, "blocker") == {"kind": "port", "why": "taken", "remedy": "free it"}
        assert status["next_start_in_s"] == pytest.approx(1.5, abs=0.01)


async def test_failures_are_counted_as_they_come() -> None:
    """Probe failures while serving; the age of the last good one grows."""
    house = build()
    async with house.run():
        await house.started()
        house.client.health_is = Outcome.TIMEOUT
        await anyio.sleep(11)
        probe = part(house.supervisor.status(), "probe")
        assert probe["consecutive_failures"] == 2
        assert probe["last_ok_age_s"] == pytest.approx(11.0, abs=0.1)


async def test_an_engine_that_is_gone_has_no_load() -> None:
    """The figures of the last look are not shown as if they were of now."""
    house = build()
    house.client.metrics_is = BUSY
    async with house.run():
        await house.started()
        await anyio.sleep(1)
        assert part(house.supervisor.status(), "load")["running"] == 2
        await house.supervisor.ask(StopAsked(drain=False))
        await house.until(Phase.STOPPED)
        assert part(house.supervisor.status(), "load") == {"running": None, "waiting": None, "kv_cache_usage": None}


async def test_the_last_exit_of_an_asked_for_stop_is_no_crash() -> None:
    """Its reason is the stop."""
    house = build()
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.READY)
        await house.supervisor.ask(StopAsked())
        await house.until(Phase.STOPPED)
        last = part(house.supervisor.status(), "last_exit")
        assert (last["code"], last["signal"], last["reason"]) == (0, None, "stop")
        assert str(last["at"]).endswith("Z")
