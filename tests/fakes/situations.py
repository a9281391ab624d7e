"""How a house comes into each phase, by the front door."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from tests.fakes.engine import EngineScript, MemberScript
from tests.fakes.house import House
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.domain.messages import (
    RestartAsked,
    StartAsked,
)
from vllm_supervisor.domain.model import Blocker, BlockerKind, Outcome, Phase

BUSY = EngineMetrics(running=2, waiting=0)
QUEUED = EngineMetrics(running=0, waiting=1)
IDLE = EngineMetrics(running=0, waiting=0)
IMMORTAL = MemberScript("VLLM::Worker", after_term=None, after_kill=None)
DEAF = MemberScript("vllm", after_term=None)


async def stopped(house: House) -> None:
    await house.a_moment()


async def clearing(house: House) -> None:
    house.launcher.calls.takes["check"] = 50.0
    house.supervisor.post(StartAsked())
    await house.until(Phase.STARTING)


async def loading(house: House) -> None:
    house.supervisor.post(StartAsked())
    await house.observer.until(lambda: house.launcher.engines)
    await anyio.sleep(3)


async def warming(house: House) -> None:
    house.client.calls.takes["warm_up"] = 50.0
    house.supervisor.post(StartAsked())
    await house.observer.until(lambda: house.client.calls.running().get("warm_up"))


async def ready(house: House) -> None:
    await house.started()
    await anyio.sleep(1)


async def unhealthy(house: House) -> None:
    await house.started()
    house.client.health_is = Outcome.TIMEOUT
    await house.until(Phase.UNHEALTHY)


async def draining(house: House) -> None:
    await house.started()
    house.client.metrics_is = BUSY
    house.supervisor.post(RestartAsked())
    await house.until(Phase.STOPPING)


async def stopping(house: House) -> None:
    await house.started()
    house.supervisor.post(RestartAsked(drain=False))
    await house.until(Phase.STOPPING)


async def killing(house: House) -> None:
    house.launcher.scripts[0] = EngineScript(leader=MemberScript(after_term=None, after_kill=5.0))
    await house.started()
    house.supervisor.post(RestartAsked(drain=False))
    await house.until(Phase.KILLING)


async def reaping(house: House) -> None:
    house.launcher.scripts[0] = EngineScript(others=(MemberScript(after_kill=5.0),))
    (await house.started()).exit(1)
    await house.until(Phase.REAPING)


async def backoff(house: House) -> None:
    (await house.started()).exit(1)
    await house.until(Phase.BACKOFF)


async def blocked(house: House) -> None:
    house.launcher.blockers = [Blocker(BlockerKind.PORT, "taken", "free it")]
    house.supervisor.post(StartAsked())
    await house.until(Phase.BACKOFF)


async def failed(house: House) -> None:
    house.launcher.scripts[0] = EngineScript(healthy_after=None, exits_after=1.0)
    house.supervisor.post(StartAsked())
    await house.until(Phase.FAILED)


async def failed_unkillable(house: House) -> None:
    house.launcher.scripts[0] = EngineScript(others=(IMMORTAL,))
    (await house.started()).exit(1)
    await house.until(Phase.FAILED)


PHASES: list[Callable[[House], Awaitable[None]]] = [
    stopped, clearing, loading, warming, ready, unhealthy, draining, stopping, killing, reaping, backoff, blocked,
    failed,
]  # fmt: skip
in_every_phase = pytest.mark.parametrize("reach", PHASES, ids=lambda reach: reach.__name__)
