"""The flight recorder: what it keeps, and those who follow it."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import anyio
import pytest

from tests.fakes.engine import EngineScript
from tests.fakes.house import build, wall
from tests.fakes.situations import IDLE
from vllm_supervisor.domain.machine import step
from vllm_supervisor.domain.messages import (
    Adopted,
    Blocked,
    DeadlinePassed,
    Event,
    GroupEmpty,
    LeaderExited,
    Probed,
    Record,
    Spawned,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import (
    Blocker,
    BlockerKind,
    Cause,
    ExitStatus,
    Outcome,
    Phase,
    Policy,
    Process,
    State,
)
from vllm_supervisor.domain.secret import Secret
from vllm_supervisor.ports import Level, Note
from vllm_supervisor.runtime.recorder import CAPACITY, Recorder

pytestmark = pytest.mark.anyio

READY = State(phase=Phase.READY, generation=2, process=Process(20))


def parsed(lines: bytes) -> list[dict[str, object]]:
    """Return entries as objects."""
    return [json.loads(line) for line in lines.splitlines()]


def seqs(lines: bytes) -> list[object]:
    """Return the numbers of the entries, and objects without one as they are."""
    return [entry.get("seq", entry) for entry in parsed(lines)]


def write(recorder: Recorder, count: int) -> None:
    for n in range(count):
        recorder.noted(Note("n", fields={"n": n}))


async def test_a_life_is_told_in_order() -> None:
    """What an operator reads after a night: words, facts and phases, each once, with time and generation."""
    recorder = Recorder(wall)
    house = build(EngineScript(), EngineScript(), more=(recorder,))
    async with house.run():
        engine = await house.started()
        engine.exit(1)
        await house.until(Phase.BACKOFF)
        await house.until(Phase.READY)
        house.client.metrics_is = IDLE
        await house.supervisor.ask(StopAsked())
        await house.until(Phase.STOPPED)
    entries = parsed(recorder.entries())
    assert [(entry["generation"], entry["event"], entry.get("after")) for entry in entries] == [
        (1, "start_asked", None),
        (1, "phase_changed", "starting"),
        (1, "spawned", None),
        (1, "phase_changed", "ready"),
        (1, "leader_exited", None),
        (1, "phase_changed", "reaping"),
        (1, "signal_sent", None),
        (1, "group_empty", None),
        (1, "phase_changed", "backoff"),
        (2, "phase_changed", "starting"),
        (2, "spawned", None),
        (2, "phase_changed", "ready"),
        (2, "stop_asked", None),
        (2, "phase_changed", "stopping"),
        (2, "signal_sent", None),
        (2, "leader_exited", None),
        (2, "group_empty", None),
        (2, "phase_changed", "stopped"),
    ]
    assert [entry["seq"] for entry in entries] == list(range(1, 19))
    assert entries[4]["code"] == 1
    assert entries[4]["cause"] == "crash"
    assert entries[2]["pid"] == 1000
    assert all(str(entry["at"]).endswith("Z") for entry in entries)
    assert entries[0]["at"] == "2023-11-14T22:13:20.000Z"


async def test_only_the_first_probe_of_a_run_of_failures_is_recorded() -> None:
    """Also when the run leads to unhealthy; the recovery is recorded too."""
    recorder = Recorder(wall)
    house = build(more=(recorder,))
    async with house.run():
        await house.started()
        house.client.health_is = Outcome.TIMEOUT
        await house.until(Phase.UNHEALTHY)
        await anyio.sleep(12)
        house.client.health_is = None
        await house.until(Phase.READY)
        house.client.health_is = Outcome.UNKNOWN
        await anyio.sleep(12)
    told = [entry["event"] for entry in parsed(recorder.entries())][4:]
    assert told == ["probe_failed", "phase_changed", "probe_recovered", "phase_changed"]


async def test_a_new_generation_begins_without_a_run_of_failures() -> None:
    """What failed of the old one says nothing of the new one."""
    recorder = Recorder(wall)
    house = build(more=(recorder,))
    async with house.run():
        engine = await house.started()
        house.client.health_is = Outcome.ERROR
        await house.observer.until(lambda: house.state.dead_since)
        engine.exit(0)
        house.client.health_is = None
        await house.until(Phase.STARTING)
        await house.until(Phase.READY)
        await anyio.sleep(20)
    events = [entry["event"] for entry in parsed(recorder.entries())]
    assert events.count("probe_failed") == 1
    assert events.count("probe_recovered") == 0


async def test_what_concerns_another_generation_is_not_recorded() -> None:
    """An exit of generation 1 is not told as one of generation 2."""
    recorder = Recorder(wall)
    stale = (LeaderExited(1, ExitStatus(code=3)), Probed(1, Outcome.REFUSED, 0.1), Spawned(1, 10))
    for event in stale:
        recorder.stepped(READY, event, READY, 0.0)
    assert recorder.entries() == b""


async def test_what_changed_nothing_is_not_recorded() -> None:
    """An exit told twice is one exit; a group is empty once; a probe of ours that failed is no recovery."""
    recorder = Recorder(wall)
    reaping = replace(READY, phase=Phase.REAPING, process=Process(20, leader_alive=False))
    recorder.stepped(reaping, LeaderExited(2, ExitStatus(code=0)), reaping, 0.0)
    recorder.stepped(READY, GroupEmpty(2), READY, 0.0)
    recorder.stepped(READY, Probed(2, Outcome.TIMEOUT, 10.0), READY, 0.0)
    recorder.stepped(READY, Probed(2, Outcome.UNKNOWN, 0.0), READY, 0.0)
    assert [entry["event"] for entry in parsed(recorder.entries())] == ["probe_failed"]


async def test_an_adopted_engine_is_recorded_with_its_pid() -> None:
    """And with its generation, which is not one of ours."""
    recorder = Recorder(wall)
    after = State(phase=Phase.STOPPING, generation=7, process=Process(70), cause=Cause.LEFTOVER)
    recorder.stepped(State(), Adopted(7, 70, leader_alive=True), after, 0.0)
    [entry] = parsed(recorder.entries())
    assert (entry["event"], entry["generation"], entry["pid"]) == ("adopted", 7, 70)


async def test_an_exit_without_a_cause_is_recorded() -> None:
    """The machine may not have given one."""
    recorder = Recorder(wall)
    after = replace(READY, process=Process(20, leader_alive=False))
    recorder.stepped(READY, LeaderExited(2, ExitStatus(signal=9)), after, 0.0)
    [entry] = parsed(recorder.entries())
    assert (entry["code"], entry["signal"], entry["cause"]) == (None, 9, None)


async def test_the_last_500_are_kept() -> None:
    """Older ones go; numbers go on."""
    recorder = Recorder(wall)
    write(recorder, 1234)
    assert CAPACITY == 500
    assert seqs(recorder.entries()) == list(range(735, 1235))


async def test_whatever_a_note_holds_becomes_json_and_secrets_stay_secret() -> None:
    """A field of any type; a key is masked."""
    recorder = Recorder(wall)
    recorder.noted(Note("odd", Level.ERROR, {"key": Secret("hunter2"), "set": {1}, "text": "\ud800\n", "why": None}))
    [entry] = parsed(recorder.entries())
    assert (entry["key"], entry["set"], entry["level"], entry["why"]) == ("***", "{1}", "error", None)
    assert recorder.entries().isascii()
    assert recorder.entries().count(b"\n") == 1


async def test_a_note_cannot_pass_for_another_entry() -> None:
    """Its fields do not replace the entry's own."""
    recorder = Recorder(wall)
    recorder.noted(Note("mine", fields={"event": "phase_changed", "seq": 0, "generation": 9, "at": "never"}))
    [entry] = parsed(recorder.entries())
    assert (entry["event"], entry["seq"], entry["generation"]) == ("mine", 1, 0)


# --- followers


async def chunk(follower: AsyncIterator[bytes]) -> bytes:
    """Return what comes next; fail rather than wait for ever."""
    with anyio.fail_after(10):
        return await anext(follower)


async def test_a_follower_gets_the_old_and_then_the_new() -> None:
    """Nothing twice, nothing left out."""
    recorder = Recorder(wall)
    write(recorder, 3)
    got: list[bytes] = []
    async with aclosing(recorder.follow()) as follower:
        assert seqs(await chunk(follower)) == [1, 2, 3]
        write(recorder, 1)
        assert seqs(await chunk(follower)) == [4]
        async with anyio.create_task_group() as group:

            async def read() -> None:
                got.append(await chunk(follower))

            group.start_soon(read)
            await anyio.sleep(1)
            assert got == []
            write(recorder, 1)
    assert seqs(got[0]) == [5]


async def test_a_slow_follower_is_told_how_many_it_missed() -> None:
    """And goes on with what is still there."""
    recorder = Recorder(wall, capacity=10)
    write(recorder, 1)
    async with aclosing(recorder.follow()) as follower:
        await chunk(follower)
        write(recorder, 25)
        assert seqs(await chunk(follower)) == [{"event": "missed", "count": 15}, *range(17, 27)]
        write(recorder, 10)
        assert seqs(await chunk(follower)) == list(range(27, 37))


async def test_a_follower_of_an_empty_recorder_is_told_what_it_missed() -> None:
    """It came before all of them."""
    recorder = Recorder(wall, capacity=10)
    got: list[bytes] = []

    async def read() -> None:
        async with aclosing(recorder.follow()) as follower:
            got.append(await chunk(follower))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.sleep(1)
        write(recorder, 25)
    assert seqs(got[0]) == [{"event": "missed", "count": 15}, *range(16, 26)]


async def test_a_follower_that_comes_late_missed_nothing() -> None:
    """What was forgotten before it came is no loss of its own."""
    recorder = Recorder(wall, capacity=10)
    write(recorder, 25)
    async with aclosing(recorder.follow()) as follower:
        assert seqs(await chunk(follower)) == list(range(16, 26))


async def test_a_follower_that_goes_away_leaves_nothing() -> None:
    """Cancelled while it waits: nobody is woken for it any more."""
    recorder = Recorder(wall)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(chunk, recorder.follow())
        await anyio.sleep(1)
        assert recorder._changed.statistics().tasks_waiting == 5
        group.cancel_scope.cancel()
    assert recorder._changed.statistics().tasks_waiting == 0
    write(recorder, 1)
    assert seqs(recorder.entries()) == [1]


async def test_a_launch_blocked_by_the_same_thing_is_told_once() -> None:
    """A port taken for a night must not push what happened before out of the recorder."""
    recorder = Recorder(lambda: 0.0)
    policy, state = Policy(), State()
    blocker = Blocker(BlockerKind.PORT, "held by pid 1", "stop it")
    now = 0.0
    for event in [StartAsked(), *(None for _ in range(40))]:
        word: Event = event or (
            DeadlinePassed() if state.phase is Phase.BACKOFF else Blocked(state.generation, blocker)
        )
        now = state.deadline if state.phase is Phase.BACKOFF and state.deadline else now + 1
        before = state
        state, effects = step(before, word, now, policy, 0.5)
        recorder.stepped(before, word, state, now)
        for effect in effects:
            if isinstance(effect, Record):
                recorder.recorded(effect)
    events = [json.loads(line)["event"] for line in recorder.entries().splitlines()]
    assert state.blocked > 10
    assert events == ["start_asked", "phase_changed", "launch_blocked", "phase_changed"]
