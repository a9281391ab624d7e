"""The end of members, of the daemon, and of what an earlier daemon left."""

import anyio
import pytest

from tests.fakes.engine import Calls, EngineScript, FakeEngine, MemberScript
from tests.fakes.house import House, build
from tests.fakes.situations import BUSY, DEAF, IMMORTAL, failed_unkillable
from vllm_supervisor.domain.messages import (
    Event,
    RestartAsked,
    ShutdownAsked,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import Intent, Phase, Policy, Sig
from vllm_supervisor.errors import AlreadyRunningError
from vllm_supervisor.ports import Note

pytestmark = pytest.mark.anyio

# --- SIGTERM, SIGKILL, and members that stay


async def test_sigterm_is_repeated_then_sigkill_to_every_member() -> None:
    """vLLM loses a SIGTERM that arrives while it starts; after the grace nobody is asked."""
    house = build(EngineScript(leader=DEAF))
    async with house.run():
        engine = await house.started()
        asked = anyio.current_time()
        house.supervisor.post(StopAsked(drain=False))
        await house.until(Phase.STOPPED)
        terms = [at - asked for at, sig in engine.signals if sig is Sig.TERM]
        kills = [at - asked for at, sig in engine.signals if sig is Sig.KILL]
        assert terms == pytest.approx([3.0 * n for n in range(10)], abs=0.1)
        assert kills == pytest.approx([30.0], abs=0.1)


async def test_members_that_outlive_the_leader_keep_the_rest_of_the_grace() -> None:
    """A stop gives EngineCore and workers their time."""
    straggler = MemberScript("VLLM::EngineCore", after_term=12.0)
    house = build(EngineScript(others=(straggler,)))
    async with house.run():
        engine = await house.started()
        asked = anyio.current_time()
        house.supervisor.post(StopAsked(drain=False))
        await anyio.sleep(5)
        assert house.running() == {"wait_gone": 1}
        await house.until(Phase.STOPPED)
        assert anyio.current_time() - asked == pytest.approx(12.0, abs=0.1)
        assert {sig for _, sig in engine.signals} == {Sig.TERM}


async def test_members_that_survive_sigkill_are_named_and_nothing_is_launched_over_them() -> None:
    """`failed`, with names and states in the status and in a note; when they go at last, the engine is relaunched."""
    house = build(EngineScript(others=(IMMORTAL,)), EngineScript())
    async with house.run():
        engine = await house.started()
        engine.exit(1)
        await house.until(Phase.FAILED)
        await house.a_moment()
        status = house.supervisor.status()
        assert status["state"] == "failed"
        assert "SIGKILL" in str(status["fail_why"])
        assert status["survivors"] == [{"pid": 1001, "name": "VLLM::Worker", "state": "D"}]
        [note] = house.observer.noticed("members_survived")
        assert note.fields["members"] == status["survivors"]
        await anyio.sleep(600)
        assert len(house.launcher.engines) == 1
        engine.end_all()
        await house.until(Phase.READY)
        assert house.supervisor.status()["survivors"] == []


async def test_members_that_cannot_even_be_listed() -> None:
    """The failure stands, and the daemon lives."""
    house = build(EngineScript(others=(IMMORTAL,)))
    async with house.run():
        engine = await house.started()
        engine.calls.fail("members", OSError(24, "Too many open files"))
        engine.exit(1)
        await house.until(Phase.FAILED)
        await house.a_moment()
        assert house.supervisor.status()["survivors"] == []
        assert len(house.observer.noticed("internal_error")) == 1


@pytest.mark.parametrize("leader", [MemberScript("vllm", None, None), MemberScript("vllm")], ids=["leader", "worker"])
async def test_the_daemon_ends_with_11_when_members_survive_sigkill(leader: MemberScript) -> None:
    """Named before the end; 30 s after the first SIGKILL."""
    house = build(EngineScript(leader=leader, others=(IMMORTAL,)))
    async with house.run():
        await house.started()
        house.supervisor.post(ShutdownAsked())
        assert await house.ended() == 11
        [note] = house.observer.noticed("members_survived")
        members = note.fields["members"]
        assert isinstance(members, list)
        assert members[-1] == {"pid": 1001, "name": "VLLM::Worker", "state": "D"}
        assert house.observer.records[-1].after is Phase.EXITED
        assert house.observer.records[-1].seconds == pytest.approx(30.0, abs=0.1)


async def test_the_daemon_ends_with_11_from_failed_with_survivors() -> None:
    """A shutdown does not wait for them once more."""
    house = build(EngineScript())
    async with house.run():
        await failed_unkillable(house)
        house.supervisor.post(ShutdownAsked())
        assert await house.ended(within=0.1) == 11


async def test_the_daemon_ends_with_10_on_failed_where_that_is_wanted() -> None:
    """`restart.exit_when_failed`."""
    house = build(EngineScript(exits_after=1.0), policy=Policy(exit_when_failed=True))
    async with house.run():
        house.supervisor.post(StartAsked())
        assert await house.ended() == 10
        assert house.observer.phases[-2:] == [Phase.FAILED, Phase.EXITED]
        assert house.observer.noticed("members_survived") == []


async def test_the_daemon_ends_with_11_on_failed_with_survivors_where_that_is_wanted() -> None:
    """They are named once, though two phases are passed."""
    house = build(EngineScript(others=(IMMORTAL,)), policy=Policy(exit_when_failed=True))
    async with house.run():
        (await house.started()).exit(1)
        assert await house.ended() == 11
        assert len(house.observer.noticed("members_survived")) == 1


async def test_failed_is_tried_again_where_that_is_wanted() -> None:
    """`restart.retry_failed_every`; meanwhile the status says when."""
    house = build(EngineScript(exits_after=1.0), policy=Policy(retry_failed_every=50.0))
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.FAILED)
        assert house.supervisor.status()["next_start_in_s"] == 50.0
        house.launcher.scripts = [EngineScript()]
        await house.until(Phase.READY)


# --- what an earlier daemon left


def leave_behind(house: House, script: EngineScript, generation: int = 7) -> FakeEngine:
    house.launcher.left = FakeEngine(generation, 700, script, Calls())
    return house.launcher.left


@pytest.mark.parametrize("leader_alive", [True, False], ids=["leader-alive", "leader-gone"])
async def test_a_leftover_is_ended_before_anything_is_launched(leader_alive: bool) -> None:
    """An engine of an earlier daemon, or what is left of one; it counts as no failure and no restart."""
    house = build(last_generation=7)
    left = leave_behind(house, EngineScript(leader_alive=leader_alive, others=(MemberScript(after_term=4.0),)))
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.STOPPING)
        assert left.signals == [] or left.signals[0][1] is Sig.TERM
        status = house.supervisor.status()
        assert (status["pid"], status["state"]) == (700 if leader_alive else None, "stopping")
        await house.observer.until(lambda: house.launcher.engines)
        assert left.gone
        assert anyio.current_time() >= 4.0
        assert house.launcher.forgotten == [7]
        assert house.engine.generation == 8
        await house.until(Phase.READY)
        assert (house.state.failures, sum(house.supervisor.facts.restarts.values())) == (0, 0)
        assert house.supervisor.facts.starts == 1


async def test_a_leftover_is_ended_although_nothing_is_to_be_launched() -> None:
    """Nobody asked for a start: stopped, and proven so."""
    house = build(last_generation=7)
    left = leave_behind(house, EngineScript())
    async with house.run():
        await house.observer.until(lambda: house.observer.phases[-1:] == [Phase.STOPPED])
        assert left.gone
        assert house.launcher.forgotten == [7]


async def test_leftovers_that_cannot_be_looked_for_hold_up_the_launch() -> None:
    """Two engines at once would be worse than a late one."""
    house = build(last_generation=7)
    left = leave_behind(house, EngineScript())
    house.launcher.calls.fail("leftover", *[OSError(24, "Too many open files")] * 3)
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.observer.until(lambda: len(house.observer.noticed("internal_error")) == 3)
        assert house.launcher.engines == []
        await house.until(Phase.READY)
        assert left.gone
        assert house.engine.generation == 8


async def test_a_shutdown_is_heard_while_leftovers_cannot_be_looked_for() -> None:
    """The daemon ends rather than hang."""
    house = build()
    house.launcher.calls.fail("leftover", *[OSError(24, "Too many open files")] * 100)
    async with house.run():
        house.supervisor.post(StartAsked())
        await anyio.sleep(5)
        house.supervisor.post(ShutdownAsked())
        assert await house.ended(within=5) == 0
        assert house.launcher.engines == []


async def test_an_engine_whose_daemon_lives_is_left_alone() -> None:
    """The daemon ends with that error, bare: its exit status is 3, and nothing was touched."""
    house = build(last_generation=7)
    left = leave_behind(house, EngineScript())
    house.launcher.calls.fail("leftover", AlreadyRunningError("the engine", "its daemon lives", "stop it"))
    house.supervisor.post(StartAsked())
    with pytest.raises(AlreadyRunningError):
        await house.supervisor.run()
    assert (left.signals, house.launcher.engines, house.observer.order) == ([], [], [])


async def test_run_has_begun_when_what_was_posted_before_is_taken_in() -> None:
    """Whoever opens the socket then shows no state from before the daemon began."""
    house = build(last_generation=7)
    leave_behind(house, EngineScript())
    house.supervisor.post(StartAsked())
    async with anyio.create_task_group() as group:
        await group.start(house.supervisor.run)
        assert (house.phase, house.state.intent) == (Phase.STOPPING, Intent.UP)
        group.cancel_scope.cancel()


async def test_run_has_begun_although_leftovers_cannot_be_looked_for() -> None:
    """The socket is to answer meanwhile."""
    house = build()
    house.launcher.calls.fail("leftover", *[OSError(24, "Too many open files")] * 100)
    house.supervisor.post(StartAsked())
    async with anyio.create_task_group() as group:
        with anyio.fail_after(0.5):
            await group.start(house.supervisor.run)
        assert house.phase is Phase.STOPPED
        group.cancel_scope.cancel()


# --- requests and the end of the loop


@pytest.mark.parametrize("event", [StartAsked(), RestartAsked()])
async def test_requests_that_come_too_late_are_refused(event: Event) -> None:
    """While the daemon is ending, and after it has ended: an answer, not silence."""
    house = build()
    async with house.run():
        await house.started()
        house.client.metrics_is = BUSY
        house.supervisor.post(ShutdownAsked())
        assert await house.supervisor.ask(event) == "the daemon is ending"
        await house.ended()
        with anyio.fail_after(1):
            assert await house.supervisor.ask(event) == "the daemon has ended"


async def test_a_request_behind_the_last_event_is_answered_and_a_note_told() -> None:
    """What stands in the mailbox when the loop ends is not forgotten."""
    house = build()
    async with house.run(), anyio.create_task_group() as group:
        await house.a_moment()
        answers: list[str | None] = []

        async def ask() -> None:
            answers.append(await house.supervisor.ask(StopAsked()))

        house.supervisor.post(ShutdownAsked())
        group.start_soon(ask)
        house.supervisor.post(Note("last_words"))
        assert await house.ended() == 0
        await house.a_moment()
        assert answers in ([None], ["the daemon has ended"])
        assert len(house.observer.noticed("last_words")) == 1


async def test_cancelling_run_leaves_the_engine_as_it_is() -> None:
    """No signal is sent; requests that were waiting are answered."""
    house = build()
    async with anyio.create_task_group() as group:
        group.start_soon(house.supervisor.run)
        engine = await house.started()
        group.cancel_scope.cancel()
    assert engine.signals == []
    assert not engine.gone
    assert house.running() == {}
    with anyio.fail_after(1):
        assert await house.supervisor.ask(StopAsked()) == "the daemon has ended"


async def test_a_pulse_is_felt_while_the_loop_turns_and_after_it_ended() -> None:
    """Whoever asks whether the loop still turns gets an answer, also when it has ended meanwhile."""
    house = build()
    async with house.run():
        await house.started()
        with anyio.fail_after(1):
            await house.supervisor.pulse()
        house.supervisor.post(ShutdownAsked())
    with anyio.fail_after(1):
        await house.supervisor.pulse()
