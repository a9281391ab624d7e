"""Many lives of an engine leave nothing behind in the loop. `make soak` has a thousand of them."""

import os

import pytest
import trio

from tests.fakes.house import build
from vllm_supervisor.domain.model import Phase, Policy

RESTARTS = int(os.environ.get("SOAK_RESTARTS", "40"))

pytestmark = pytest.mark.anyio


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_restarts_leave_no_task_behind() -> None:
    """Ready for the last time, the loop runs the tasks that it ran the first time, and no other."""
    house = build(policy=Policy(min_backoff=0.1, max_backoff=0.1))
    async with house.run():
        await house.started()
        await house.a_moment()
        before = tasks()
        for _ in range(RESTARTS):
            house.engine.exit(0)
            await house.until(Phase.BACKOFF)
            await house.until(Phase.READY)
            # The house keeps what it saw; here that would only cost time.
            house.observer.records.clear()
            del house.launcher.engines[:-1]
        await house.a_moment()
        assert tasks() == before
        assert house.state.generation == 1 + RESTARTS
