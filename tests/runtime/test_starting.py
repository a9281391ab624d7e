"""From nothing to ready: what is done, in which order, and what is told meanwhile."""

from dataclasses import replace
from itertools import pairwise

import anyio
import pytest

from tests.fakes.engine import EngineScript
from tests.fakes.house import MODEL, SPEC, House, build
from vllm_supervisor.domain.engine import ModelList, Warmup, WarmupResult
from vllm_supervisor.domain.messages import StartAsked
from vllm_supervisor.domain.model import Blocker, BlockerKind, Cause, Phase, Policy
from vllm_supervisor.errors import LaunchError

pytestmark = pytest.mark.anyio

PORT_TAKEN = Blocker(BlockerKind.PORT, "port 8000 is held by pid 7", "stop it")


async def test_cold_start_to_ready_and_what_the_observer_saw() -> None:
    """One launch, two transitions, and ready as soon as the engine serves; nothing goes on that ready does not need."""
    house = build()
    async with house.run():
        engine = await house.started()
        assert house.observer.phases == [Phase.STARTING, Phase.READY]
        assert [record.generation for record in house.observer.records] == [1, 1]
        took = anyio.current_time() - engine.launched_at
        assert 20.0 <= took <= 20.3
        assert house.observer.records[1].seconds == pytest.approx(took)
        assert [note.kind for _, note in house.observer.notes] == []
        assert house.client.calls.times("warm_up") == [pytest.approx(anyio.current_time(), abs=0.01)]
        assert house.supervisor.facts.starts == 1
        assert sum(house.supervisor.facts.restarts.values()) == 0
        await anyio.sleep(62.6)
        assert house.running() == {"wait_leader": 1}
        assert house.observer.phases == [Phase.STARTING, Phase.READY]


async def test_nothing_is_advertised_before_it_served() -> None:
    """While the warm-up lasts, `/health` and `/v1/models` being good already, nothing is advertised."""
    house = build(EngineScript(healthy_after=5.0))
    house.client.calls.takes["warm_up"] = 40.0
    async with house.run():
        house.supervisor.post(StartAsked())
        while house.phase is not Phase.READY:
            status = house.supervisor.status()
            assert (status["ready"], house.supervisor.models()) == (False, [])
            await anyio.sleep(0.5)
        assert anyio.current_time() >= 45.0
        assert len(house.client.calls.times("warm_up")) == 1
        assert house.supervisor.models() == [(MODEL, MODEL), ("gpt-oss-20b", MODEL)]


async def test_a_start_asked_twice_is_one_start() -> None:
    """Further words of the same kind change nothing."""
    house = build()
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.started()
        house.supervisor.post(StartAsked())
        await anyio.sleep(30)
        assert len(house.launcher.engines) == 1


def foreign_listener(house: House) -> None:
    house.engine.script = replace(house.engine.script, owns_listener=False)


def own_listener(house: House) -> None:
    house.engine.script = replace(house.engine.script, owns_listener=True)


def models(names: tuple[str, ...] | None, status: int | None = None) -> ModelList:
    return ModelList(names, "models: no", status)


HURDLES = [
    pytest.param("unauthorized", {"models_is": models(None, 401)}, id="models-401"),
    pytest.param("unauthorized", {"models_is": models(None, 403)}, id="models-403"),
    pytest.param("models_unreadable", {"models_is": models(None, 500)}, id="models-500"),
    pytest.param("model_missing", {"models_is": models(("other",))}, id="model-missing"),
    pytest.param("model_missing", {"models_is": models(())}, id="no-model-at-all"),
    pytest.param("warmup_failed", {"warm_up_is": WarmupResult(Warmup.NOT_YET, 1, None, "500")}, id="warmup-5xx"),
    pytest.param("unauthorized", {"warm_up_is": WarmupResult(Warmup.UNAUTHORIZED, 1, None, "401")}, id="warmup-401"),
]


@pytest.mark.parametrize(("kind", "answers"), HURDLES)
async def test_a_hurdle_is_told_once_and_overcome(kind: str, answers: dict[str, object]) -> None:
    """Not ready for as long as it lasts, told once, named in the status, asked at a civil pace; then ready."""
    house = build()
    good = {name: getattr(house.client, name) for name in answers}
    async with house.run():
        house.supervisor.post(StartAsked())
        for name, answer in answers.items():
            setattr(house.client, name, answer)
        await house.observer.until(lambda: house.observer.noticed(kind))
        await anyio.sleep(100)
        assert house.phase is Phase.STARTING
        assert len(house.observer.noticed(kind)) == 1
        assert 80 < len([at for at in house.client.calls.times("models") if at > 20]) < 110
        phase = house.supervisor.status()["phase"]
        assert isinstance(phase, dict)
        assert (phase["name"], phase["detail"]) == ("warming_up", house.observer.noticed(kind)[0].fields["detail"])
        assert phase["detail"]
        for name, answer in good.items():
            setattr(house.client, name, answer)
        await house.until(Phase.READY, within=2)
        assert len(house.observer.noticed(kind)) == 1


async def test_a_foreign_listener_is_not_our_engine() -> None:
    """Another process answers 200 on our port: not asked for models, not ready, told once."""
    house = build()
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.observer.until(lambda: house.launcher.engines)
        foreign_listener(house)
        await house.observer.until(lambda: house.observer.noticed("foreign_listener"))
        await anyio.sleep(10)
        assert house.client.calls.times("models") == []
        assert house.phase is Phase.STARTING
        own_listener(house)
        await house.until(Phase.READY, within=2)
        assert len(house.observer.noticed("foreign_listener")) == 1


async def test_ready_where_the_owner_of_the_socket_cannot_be_read() -> None:
    """A free port before the launch and a live leader count then."""
    house = build(EngineScript(owns_listener=None))
    async with house.run():
        await house.started()


async def test_ready_with_a_note_where_every_rung_of_the_warm_up_is_unsupported() -> None:
    """A pooling model that knows none of our requests serves all the same."""
    house = build()
    house.client.warm_up_is = WarmupResult(Warmup.UNSUPPORTED, 0.1, None, "404 on every rung")
    async with house.run():
        await house.started()
        assert len(house.observer.noticed("warmup_unsupported")) == 1


async def test_ready_without_a_warm_up_where_it_is_switched_off() -> None:
    """`startup.warmup: false` is obeyed."""
    house = build(spec=replace(SPEC, warmup=False))
    async with house.run():
        await house.started()
        assert house.client.calls.times("warm_up") == []


async def test_an_alias_whose_target_is_missing_is_told_and_not_advertised() -> None:
    """The others are advertised."""
    house = build(spec=replace(SPEC, aliases={"good": MODEL, "bad": "nowhere"}))
    async with house.run():
        await house.started()
        [note] = house.observer.noticed("alias_target_missing")
        assert (note.fields["alias"], note.fields["target"]) == ("bad", "nowhere")
        assert house.supervisor.models() == [(MODEL, MODEL), ("good", MODEL)]


async def test_blocked_launches_are_retried_without_limit_and_count_as_no_start() -> None:
    """The delay grows to its maximum, jittered; the blocker is named; when it goes, the engine is launched."""
    house = build(policy=Policy(max_backoff=16.0), u=lambda: 0.999)
    house.launcher.blocked_by = PORT_TAKEN
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.observer.until(lambda: len(house.launcher.calls.times("check")) > 12)
        checks = house.launcher.calls.times("check")
        pauses = [round(b - a) for a, b in pairwise(checks)]
        assert pauses[:6] == [2, 4, 8, 16, 16, 16]
        assert set(pauses[6:]) == {16}
        assert house.launcher.engines == []
        assert house.supervisor.facts.starts == 0
        status = house.supervisor.status()
        assert status["blocker"] == {"kind": "port", "why": PORT_TAKEN.why, "remedy": "stop it"}
        assert status["restarts"] == {
            "total": 0,
            "by_reason": dict.fromkeys(("crash", "hang", "unhealthy", "startup_stall", "requested", "config"), 0),
            "consecutive": 0,
        }
        house.launcher.blocked_by = None
        await house.until(Phase.READY)
        assert house.supervisor.facts.starts == 1
        assert house.supervisor.status()["blocker"] is None


async def test_the_pause_after_a_blocked_launch_is_jittered() -> None:
    """`u` = 0 waits the least, whatever the count."""
    house = build(u=lambda: 0.0)
    house.launcher.blocked_by = PORT_TAKEN
    async with house.run():
        house.supervisor.post(StartAsked())
        await anyio.sleep(10.5)
        assert len(house.launcher.calls.times("check")) == 11


async def test_a_launcher_that_cannot_be_executed_blocks_and_is_tried_again() -> None:
    """LaunchError becomes the blocker, with its remedy; nothing is counted as a start."""
    house = build()
    house.launcher.calls.fail("spawn", LaunchError("vllm", "no such file", "install it", errno=2))
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.BACKOFF)
        assert house.state.blocker == Blocker(BlockerKind.LAUNCHER, "vllm: no such file", "install it")
        assert house.supervisor.facts.starts == 0
        await house.until(Phase.READY)
        assert house.supervisor.facts.starts == 1
        assert house.state.failures == 0


async def test_a_launch_that_fails_for_a_reason_of_ours_does_not_end_the_daemon() -> None:
    """An unexpected exception is a blocker too."""
    house = build()
    house.launcher.calls.fail("spawn", OSError(24, "Too many open files"))
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.BACKOFF)
        assert house.state.blocker is not None
        assert house.state.blocker.kind is BlockerKind.SPAWN
        assert "Too many open files" in house.state.blocker.why
        await house.until(Phase.READY)


async def test_a_check_that_fails_blocks_and_is_tried_again() -> None:
    """The check's own failure is named as internal."""
    house = build()
    house.launcher.calls.fail("check", OSError(24, "Too many open files"))
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.BACKOFF)
        assert house.state.blocker is not None
        assert house.state.blocker.kind is BlockerKind.INTERNAL
        await house.until(Phase.READY)


async def test_a_start_that_exceeds_its_time_is_a_stall() -> None:
    """SIGTERM, no drain, counted as a failure, then a new generation."""
    house = build(EngineScript(healthy_after=None), EngineScript(), policy=Policy(startup_timeout=100.0))
    async with house.run():
        await house.started()
        first, second = house.launcher.engines
        assert first.signals[0][0] == pytest.approx(100.0, abs=0.1)
        assert house.supervisor.facts.restarts[Cause.STARTUP_STALL] == 1
        assert second.generation == 2


async def test_a_probe_that_fails_for_a_reason_of_ours_is_told_and_tried_again() -> None:
    """The prober's failure is a note, not the end, and not the engine's fault."""
    house = build()
    house.client.calls.fail("health", OSError(24, "Too many open files"))
    async with house.run():
        await house.started()
        [note] = house.observer.noticed("internal_error")
        assert "starting" in str(note.fields["where"])
        assert "Too many open files" in str(note.fields["error"])


async def test_health_is_asked_many_times_a_second_while_starting() -> None:
    """Readiness is to be seen at once."""
    house = build()
    async with house.run():
        house.supervisor.post(StartAsked())
        await anyio.sleep(10)
        times = house.client.calls.times("health")
        assert max(b - a for a, b in pairwise(times)) <= 0.3
