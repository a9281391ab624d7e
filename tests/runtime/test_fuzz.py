"""Random lives, by seed: whatever happens, the promises hold and the daemon ends."""

import random
from collections.abc import Callable

import anyio
import pytest

from tests.fakes.engine import EngineScript, FakeEngine, MemberScript
from tests.fakes.house import MODEL, House, build
from tests.fakes.situations import BUSY, IDLE
from vllm_supervisor.domain.engine import ModelList, Warmup, WarmupResult
from vllm_supervisor.domain.messages import Event, RestartAsked, ShutdownAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import Blocker, BlockerKind, ExitStatus, Intent, Outcome, Phase, Policy
from vllm_supervisor.errors import LaunchError

pytestmark = pytest.mark.anyio

ASKED: tuple[Event, ...] = (
    StartAsked(),
    StopAsked(),
    StopAsked(drain=False),
    RestartAsked(),
    RestartAsked(drain=False),
)
OWN_FAILURE = OSError(24, "Too many open files")


def member(rng: random.Random, name: str, *, killable: bool = True) -> MemberScript:
    return MemberScript(
        name,
        after_term=rng.choice([None, 0.0, 0.5, 5.0, 40.0]),
        after_kill=rng.choice([0.0, 0.1, 3.0]) if killable else None,
        with_leader=rng.choice([None, 0.0, 0.2]),
    )


def script(rng: random.Random) -> EngineScript:
    others = tuple(member(rng, f"w{n}", killable=rng.random() > 0.05) for n in range(rng.randrange(4)))
    return EngineScript(
        healthy_after=rng.choice([None, 0.0, 1.0, 20.0, 20.0]),
        exits_after=rng.choice([None, None, None, 0.0, 2.0, 30.0, 200.0]),
        status=rng.choice([ExitStatus(code=0), ExitStatus(code=1), ExitStatus(signal=9), ExitStatus()]),
        leader=member(rng, "vllm", killable=rng.random() > 0.02),
        others=others,
        owns_listener=rng.choice([True, True, True, None, False]),
    )


def disturb(rng: random.Random, house: House) -> None:
    """Change the world in one way."""
    client, launcher = house.client, house.launcher
    blocker = Blocker(BlockerKind.PORT, "taken", "free it")
    calls = [client.calls, launcher.calls, *(engine.calls for engine in launcher.engines[-1:])]

    def exits() -> None:
        if launcher.alive:
            launcher.alive[-1].exit(rng.randrange(3))

    def fails() -> None:
        kind = "leftover health models warm_up metrics version check forget wait_leader wait_gone signal members"
        rng.choice(calls).fail(rng.choice(kind.split()), OWN_FAILURE)

    changes: list[Callable[[], object]] = [
        exits,
        fails,
        fails,
        lambda: launcher.calls.fail("spawn", LaunchError("vllm", "gone", "install it")),
        lambda: setattr(launcher, "blocked_by", rng.choice([None, None, blocker])),
        lambda: setattr(client, "health_is", rng.choice([None, None, *Outcome])),
        lambda: setattr(client, "metrics_is", rng.choice([None, BUSY, IDLE, IDLE])),
        lambda: setattr(client, "models_is", rng.choice([ModelList((MODEL,)), ModelList((MODEL,)), ModelList(None)])),
        lambda: setattr(client, "warm_up_is", WarmupResult(rng.choice(list(Warmup)), 0.1)),
        lambda: setattr(client, "stepping", rng.random() < 0.5),
        lambda: client.calls.takes.update({rng.choice(["health", "metrics", "warm_up"]): rng.choice([0.0, 0.0, 8.0])}),
        lambda: launcher.calls.takes.update({rng.choice(["check", "spawn"]): rng.choice([0.0, 2.0])}),
    ]
    rng.choice(changes)()


def hold(house: House) -> None:
    """Check what holds at any time."""
    state, status = house.state, house.supervisor.status()
    assert status["ready"] == (state.phase is Phase.READY)
    if state.phase is Phase.READY:
        assert state.intent is Intent.UP
        assert state.leader_alive
    else:
        assert house.supervisor.models() == []
    if state.phase in (Phase.STOPPED, Phase.BACKOFF):
        assert house.launcher.alive == []
        assert house.running() == {}


@pytest.mark.parametrize("seed", range(25))
async def test_a_random_life_keeps_the_promises_and_ends(seed: int) -> None:
    """One engine at most, none left, ready only while wanted, and an end within drain, grace and kill."""
    rng = random.Random(seed)
    policy = Policy(
        restart_enabled=rng.random() < 0.9,
        healthy_reset=rng.choice([10.0, 600.0]),
        retry_failed_every=rng.choice([0.0, 60.0]),
        startup_timeout=rng.choice([None, 50.0]),
        stop_grace=rng.choice([0.0, 30.0]),
        drain_timeout=rng.choice([0.0, 30.0]),
        min_backoff=rng.choice([0.1, 1.0]),
    )
    house = build(policy=policy, u=rng.random, last_generation=7)
    house.launcher.scripts = [script(rng) for _ in range(200)]
    if rng.random() < 0.3:
        house.launcher.left = FakeEngine(7, 700, script(rng))
    async with house.run():
        for _ in range(60):
            action = rng.random()
            if action < 0.3:
                house.supervisor.post(rng.choice(ASKED))
            elif action < 0.7:
                disturb(rng, house)
            await anyio.sleep(rng.choice([0.0, 0.01, 0.3, 3.0, 30.0]))
            await house.a_moment()
            hold(house)
        house.supervisor.post(ShutdownAsked())
        status = await house.ended(within=policy.drain_timeout + policy.stop_grace + policy.kill_timeout + 20.0)
        survivors = [engine for engine in house.launcher.engines if not engine.gone]
        assert status == (11 if survivors or (house.launcher.left and not house.launcher.left.gone) else 0)
        ready = [record.generation for record in house.observer.records if record.after is Phase.READY]
        assert all(generation > 7 for generation in ready)
    assert len(house.observer.noticed("members_survived")) <= len(house.observer.records)
