"""Stops, restarts and the daemon's own end, from every phase: they win, and they end in proof."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from tests.fakes.engine import EngineScript
from tests.fakes.house import House, build
from tests.fakes.situations import BUSY, IDLE, QUEUED, clearing, in_every_phase
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.domain.messages import (
    RestartAsked,
    Served,
    ShutdownAsked,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import Cause, Intent, Outcome, Phase, Sig

pytestmark = pytest.mark.anyio


@in_every_phase
async def test_a_stop_wins_in_every_phase(reach: Callable[[House], Awaitable[None]]) -> None:
    """All members gone, nothing running, ready never reported again, also when a late Served comes."""
    house = build(EngineScript())
    async with house.run():
        await reach(house)
        told = len(house.observer.records)
        asked = anyio.current_time()
        assert await house.supervisor.ask(StopAsked()) is None
        for _ in range(100):
            house.supervisor.post(Served(house.state.generation))
            await anyio.sleep(1)
        assert house.phase is Phase.STOPPED
        assert house.state.intent is Intent.DOWN
        assert Phase.READY not in house.observer.phases[told:]
        assert house.launcher.alive == []
        assert house.running() == {}
        assert house.launcher.forgotten == [engine.generation for engine in house.launcher.engines]
        assert all(engine.launched_at <= asked for engine in house.launcher.engines)
        house.launcher.calls.takes.clear()
        house.client.calls.takes.clear()
        house.client.health_is = None
        house.launcher.scripts = [EngineScript()]
        await house.started()


@in_every_phase
async def test_the_daemons_end_comes_from_every_phase(reach: Callable[[House], Awaitable[None]]) -> None:
    """`run` returns 0, with no member alive, within drain, grace and kill."""
    house = build(EngineScript())
    async with house.run():
        await reach(house)
        house.supervisor.post(ShutdownAsked())
        assert await house.ended(within=100) == 0
        assert house.phase is Phase.EXITED
        assert house.launcher.alive == []
        assert house.running() == {}


@in_every_phase
async def test_a_restart_from_every_phase_ends_ready_with_one_new_engine(
    reach: Callable[[House], Awaitable[None]],
) -> None:
    """Whatever ran is gone, and one new engine is ready."""
    house = build(EngineScript())
    async with house.run():
        await reach(house)
        engines, generation = len(house.launcher.engines), house.state.generation
        house.launcher.scripts = [EngineScript()]
        house.client.calls.takes.clear()
        house.launcher.calls.takes.clear()
        house.supervisor.post(RestartAsked())
        await house.a_moment()
        house.client.health_is = None
        await house.until(Phase.READY)
        assert house.state.generation > generation or reach is clearing
        assert len(house.launcher.engines) == engines + 1
        assert house.state.failures == 0


# --- drain


async def test_a_drain_awaits_running_and_waiting_requests() -> None:
    """SIGTERM comes when two looks in a row found nothing; meanwhile nothing is advertised."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.metrics_is = BUSY
        house.supervisor.post(StopAsked())
        await house.until(Phase.STOPPING)
        assert house.supervisor.models() == []
        await anyio.sleep(5)
        house.client.metrics_is = QUEUED
        await anyio.sleep(5)
        assert engine.signals == []
        await house.a_moment()
        assert house.running() == {"wait_leader": 1}
        quiet_at = anyio.current_time()
        house.client.metrics_is = IDLE
        await house.until(Phase.STOPPED)
        assert engine.signals[0][1] is Sig.TERM
        assert 0.25 <= engine.signals[0][0] - quiet_at <= 0.51


async def test_one_quiet_look_is_not_enough_for_a_drain() -> None:
    """The gauges lag a request that has just been accepted."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.metrics_is = BUSY
        house.client.metrics_next = [IDLE, BUSY, IDLE, None] * 10
        house.supervisor.post(StopAsked())
        await house.observer.until(lambda: not house.client.metrics_next)
        assert engine.signals == []


@pytest.mark.parametrize("metrics", [BUSY, None, EngineMetrics()], ids=["busy", "unreadable", "without-gauges"])
async def test_a_drain_ends_at_its_deadline(metrics: EngineMetrics | None) -> None:
    """Also where nobody can tell whether requests are running, as long as somebody listens."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.metrics_is = metrics
        asked = anyio.current_time()
        house.supervisor.post(StopAsked())
        await house.until(Phase.STOPPED)
        assert engine.signals[0][0] - asked == pytest.approx(30.0, abs=0.1)


async def test_a_drain_ends_when_nobody_listens_any_more() -> None:
    """There is nobody to wait for."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.metrics_is = None
        house.client.health_is = Outcome.REFUSED
        asked = anyio.current_time()
        house.supervisor.post(StopAsked())
        await house.until(Phase.STOPPED)
        assert engine.signals[0][0] - asked < 1.0


async def test_a_second_shutdown_skips_the_drain() -> None:
    """SIGTERM to the daemon twice: the engine gets its SIGTERM at once."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.metrics_is = BUSY
        house.supervisor.post(ShutdownAsked())
        await anyio.sleep(2)
        assert engine.signals == []
        house.supervisor.post(ShutdownAsked())
        assert await house.ended(within=1.0) == 0


async def test_a_stop_without_drain_signals_at_once() -> None:
    """`--no-drain`."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.metrics_is = BUSY
        asked = anyio.current_time()
        house.supervisor.post(StopAsked(drain=False))
        await house.until(Phase.STOPPED)
        [(at, sig)] = engine.signals
        assert at == pytest.approx(asked, abs=0.01)
        assert sig is Sig.TERM


async def test_a_crash_while_draining_ends_in_the_stop_that_was_asked_for() -> None:
    """The rest is ended, and nothing is relaunched."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.metrics_is = BUSY
        house.supervisor.post(StopAsked())
        await house.until(Phase.STOPPING)
        engine.exit(signal=9)
        await house.until(Phase.STOPPED, within=1.0)
        assert len(house.launcher.engines) == 1


# --- restarts


async def test_a_restart_while_draining_without_drain_skips_it() -> None:
    """And the engine comes back."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.metrics_is = BUSY
        house.supervisor.post(StopAsked())
        await anyio.sleep(3)
        asked = anyio.current_time()
        house.supervisor.post(RestartAsked(drain=False))
        await house.until(Phase.STARTING)
        assert engine.signals[0][0] == pytest.approx(asked, abs=0.1)
        await house.until(Phase.READY)
        assert house.supervisor.facts.restarts[Cause.REQUESTED] == 1


async def test_a_start_while_stopping_launches_at_once_when_all_are_gone() -> None:
    """No pause, no restart counted, no failure."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.supervisor.post(StopAsked(drain=False))
        await house.until(Phase.STOPPING)
        house.supervisor.post(StartAsked())
        await house.until(Phase.READY)
        assert house.engine.launched_at - engine.signals[0][0] == pytest.approx(0.6, abs=0.1)
        assert sum(house.supervisor.facts.restarts.values()) == 0


async def test_two_restarts_in_a_row_are_one_after_the_other() -> None:
    """Asked for together they make one new engine; the second asked for later makes another."""
    house = build()
    async with house.run():
        await house.started()
        house.supervisor.post(RestartAsked())
        house.supervisor.post(RestartAsked())
        await house.until(Phase.STARTING)
        await house.until(Phase.READY)
        assert len(house.launcher.engines) == 2
        house.supervisor.post(RestartAsked())
        await house.until(Phase.STARTING)
        await house.until(Phase.READY)
        assert len(house.launcher.engines) == 3


async def test_a_stop_during_the_launch_itself_is_obeyed_right_after_it() -> None:
    """A slow spawn is not cut in half; the engine that it made is ended."""
    house = build()
    house.launcher.calls.takes["spawn"] = 5.0
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.observer.until(lambda: house.state.spawning)
        await house.supervisor.ask(StopAsked())
        assert anyio.current_time() >= 5.0
        await house.until(Phase.STOPPED)
        assert house.engine.gone
        assert Phase.READY not in house.observer.phases
