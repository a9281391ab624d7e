"""What a service manager is told of time, over a day of the machine: in virtual time, with a manager that listens."""

import itertools
from dataclasses import dataclass, field

import anyio
import pytest

from tests.fakes.engine import EngineScript
from tests.fakes.house import House, build
from tests.fakes.situations import BUSY, DEAF
from vllm_supervisor.domain.messages import ShutdownAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import Phase, Policy
from vllm_supervisor.runtime.readiness import EXTENSION, INTERVAL, EndingNotice, ReadinessNotice

pytestmark = pytest.mark.anyio


@dataclass
class Manager:
    """Hears, with the time, what it is told. `takes` is whether it takes in that we are ready."""

    takes: bool = True
    ready: list[tuple[float, str]] = field(default_factory=list)
    extended: list[tuple[float, float]] = field(default_factory=list)

    def hear_ready(self, word: str) -> bool:
        self.ready.append((anyio.current_time(), word))
        return self.takes

    def extend(self, seconds: float) -> None:
        self.extended.append((anyio.current_time(), seconds))


def starting(*scripts: EngineScript) -> tuple[House, Manager]:
    manager = Manager()
    return build(*scripts, more=(ReadinessNotice(manager.hear_ready, manager.extend, lambda: None),)), manager


async def test_a_start_asks_for_time_until_it_is_ready() -> None:
    """From the launch on and every ten seconds a minute more; ready is told once, and nothing after it."""
    house, manager = starting(EngineScript(healthy_after=95.0))
    async with house.run():
        await anyio.sleep(30)
        assert (manager.ready, manager.extended) == ([], []), "an engine that is not wanted takes no time"
        began = anyio.current_time()
        engine = await house.started()
        asked = [at - began for at, _ in manager.extended]
        assert asked[0] < 1
        assert all(INTERVAL <= after - before <= INTERVAL + 3 for before, after in itertools.pairwise(asked))
        assert {seconds for _, seconds in manager.extended} == {EXTENSION}
        [(at, word)] = manager.ready
        assert word == "ready"
        assert at == pytest.approx(anyio.current_time(), abs=0.1)
        heard = len(manager.extended)
        engine.exit(1)
        await house.until(Phase.STARTING)
        await house.until(Phase.READY)
        assert (len(manager.ready), len(manager.extended)) == (1, heard), "for systemd the unit has been ready since"


async def test_readiness_that_was_not_taken_is_told_again() -> None:
    """A manager that is behind with reading hears of it with the next probe, until it has taken it."""
    house, manager = starting()
    manager.takes = False
    async with house.run():
        await house.started()
        await anyio.sleep(60)
        assert len(manager.ready) > 3
        manager.takes = True
        await anyio.sleep(60)
        told = len(manager.ready)
        await anyio.sleep(600)
        assert len(manager.ready) == told


async def test_a_start_that_has_no_engine_asks_for_nothing() -> None:
    """What lasts is a check before the launch, or a backoff: neither is the engine that loads for an hour."""
    house, manager = starting()
    house.launcher.calls.takes["check"] = 100.0
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.STARTING)
        await anyio.sleep(50)
        assert manager.extended == []


async def test_an_end_asks_for_as_long_as_its_step_may_take() -> None:
    """One word for each deadline of the end: what is left of it, and a minute for what follows."""
    manager = Manager()
    policy = Policy(drain_timeout=500.0, stop_grace=40.0)
    house = build(EngineScript(leader=DEAF), policy=policy, more=(EndingNotice(manager.extend),))
    async with house.run():
        await house.started()
        house.client.metrics_is = BUSY
        began = anyio.current_time()
        house.supervisor.post(ShutdownAsked())
        await house.ended()
        at, seconds = zip(*manager.extended, strict=True)
        assert [at[0] - began, at[1] - began] == pytest.approx([0, 500], abs=0.1)
        assert list(seconds[:2]) == pytest.approx([500 + EXTENSION, 40 + EXTENSION], abs=0.1)
        assert len(set(at)) == len(at), "a deadline is told once"


async def test_an_operators_stop_is_no_end_of_the_daemon() -> None:
    """The manager waits for nothing then."""
    manager = Manager()
    house = build(more=(EndingNotice(manager.extend),))
    async with house.run():
        await house.started()
        house.client.metrics_is = BUSY
        house.supervisor.post(StopAsked())
        await house.until(Phase.STOPPED)
        assert manager.extended == []
