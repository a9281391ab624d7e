"""Engines that crash, hang, or answer badly: what is done, and what is left alone."""

from itertools import pairwise

import anyio
import pytest
from trio.testing import MockClock

from tests.fakes.engine import EngineScript, MemberScript
from tests.fakes.house import build
from tests.fakes.observer import RecordingObserver
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.domain.messages import (
    Adopted,
    GroupEmpty,
    LeaderExited,
    Probed,
    Served,
    Spawned,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import Cause, ExitStatus, Outcome, Phase, Policy, Sig
from vllm_supervisor.ports import Note
from vllm_supervisor.runtime.facts import Described, Looked, StartProgressed

pytestmark = pytest.mark.anyio

EMFILE = OSError(24, "Too many open files")
STUBBORN = MemberScript("VLLM::Worker", after_term=None, after_kill=1.0)


async def test_a_crash_is_reaped_to_the_last_member_before_a_new_generation() -> None:
    """SIGKILL to the rest at once, no launch before the last is gone; the pause counts from the exit."""
    house = build(EngineScript(others=(STUBBORN,)), EngineScript())
    async with house.run():
        first = await house.started()
        crashed = anyio.current_time()
        first.exit(0)
        await house.until(Phase.REAPING, within=0.1)
        await house.a_moment()
        assert house.running() == {"wait_gone": 1}
        await house.until(Phase.BACKOFF)
        assert first.gone
        assert anyio.current_time() - crashed == pytest.approx(1.0, abs=0.1)
        assert [sig for _, sig in first.signals][:1] == [Sig.KILL]
        assert house.launcher.forgotten == [1]
        assert house.running() == {}
        status = house.supervisor.status()
        assert status["state"] == "backoff"
        assert status["next_start_in_s"] == pytest.approx(0.5, abs=0.1)
        await house.until(Phase.READY)
        assert house.engine.launched_at - crashed == pytest.approx(1.5, abs=0.1)
        assert house.observer.phases == [
            Phase.STARTING,
            Phase.READY,
            Phase.REAPING,
            Phase.BACKOFF,
            Phase.STARTING,
            Phase.READY,
        ]
        assert house.supervisor.facts.restarts[Cause.CRASH] == 1


async def test_an_exit_with_0_that_nobody_asked_for_is_a_crash() -> None:
    """The code is recorded, the reason is crash."""
    house = build()
    async with house.run():
        engine = await house.started()
        engine.exit(0)
        await house.until(Phase.BACKOFF)
        last = house.supervisor.status()["last_exit"]
        assert isinstance(last, dict)
        assert (last["code"], last["signal"], last["reason"], last["diagnosis"]) == (0, None, "crash", None)


async def test_a_crash_while_the_warm_up_is_under_way_cancels_it() -> None:
    """No request is left waiting for a dead engine, and its answer cannot make it ready."""
    house = build(EngineScript(healthy_after=1.0, exits_after=5.0, status=ExitStatus(signal=9)), EngineScript())
    house.client.calls.takes["warm_up"] = 60.0
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.REAPING)
        await house.a_moment()
        assert house.client.calls.running() == {}
        house.client.calls.takes.clear()
        await house.until(Phase.READY)
        assert house.state.generation == 2


async def test_starts_that_never_get_ready_end_in_failed() -> None:
    """Five in a row; the status says why; a start asked for begins afresh."""
    house = build(EngineScript(healthy_after=None, exits_after=3.0, status=ExitStatus(code=1)))
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.FAILED)
        assert len(house.launcher.engines) == 5
        assert "never got ready" in str(house.supervisor.status()["fail_why"])
        assert house.running() == {}
        house.launcher.scripts = [EngineScript()]
        await house.started()
        assert house.state.failures == 0


@pytest.mark.parametrize("call", ["wait_leader", "wait_gone"])
async def test_a_wait_that_fails_once_is_told_and_repeated(call: str) -> None:
    """Out of descriptors for a moment: the exit is seen all the same."""
    house = build()
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.observer.until(lambda: house.launcher.engines)
        house.engine.calls.fail(call, EMFILE)
        await house.until(Phase.READY)
        house.engine.exit(1)
        await house.until(Phase.BACKOFF)
        [note] = house.observer.noticed("internal_error")
        assert "Too many open files" in str(note.fields["error"])
        await house.until(Phase.READY)


async def test_a_leader_watch_that_failed_is_repeated() -> None:
    """`wait_leader` fails while it waits, and is called again."""
    house = build()
    house.launcher.scripts = [EngineScript()]
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.observer.until(lambda: house.launcher.engines)
        house.engine.calls.fail("wait_leader", EMFILE, EMFILE)
        await house.until(Phase.READY)
        await house.a_moment()
        assert len(house.observer.noticed("internal_error")) == 2
        assert house.running() == {"wait_leader": 1}


async def test_a_note_of_the_end_that_cannot_be_written_does_not_hold_up_the_next_launch() -> None:
    """The members are proven gone; a full disk must not turn that into members that survived SIGKILL."""
    house = build()
    house.launcher.calls.fail("forget", *[OSError(28, "No space left on device")] * 1000)
    async with house.run():
        engine = await house.started()
        engine.exit(1)
        await house.until(Phase.BACKOFF, within=5)
        [note] = house.observer.noticed("internal_error")
        assert "No space left" in str(note.fields["error"])
        await house.until(Phase.READY, within=30)


async def test_a_signal_that_fails_is_told_and_repeated() -> None:
    """The machine repeats it when due."""
    house = build(EngineScript(others=(STUBBORN,)), EngineScript())
    async with house.run():
        engine = await house.started()
        engine.calls.fail("signal", EMFILE)
        engine.exit(1)
        await house.until(Phase.STARTING)
        assert len(house.observer.noticed("internal_error")) == 1
        sent = house.observer.noticed("signal_sent")
        assert sent[0].fields == {"signal": "SIGKILL", "members": 1}


async def test_timeouts_while_the_counters_move_never_lead_to_unhealthy() -> None:
    """A saturated engine is busy, not stuck changes nothing."""
    house = build()
    async with house.run():
        await house.started()
        house.client.health_is = Outcome.TIMEOUT
        house.client.stepping = True
        await anyio.sleep(900)
        assert house.phase is Phase.READY
        assert len(house.launcher.engines) == 1


async def test_a_mute_engine_costs_one_timeout_a_probe() -> None:
    """Health and figures are asked for at once: with both silent, `unhealthy` comes after threshold x (5 + 10) s."""
    house = build()
    async with house.run():
        await house.started()
        await house.a_moment()
        house.client.health_is, house.client.metrics_is = Outcome.TIMEOUT, None
        house.client.calls.takes |= {"health": 10.0, "metrics": 10.0}
        since = anyio.current_time()
        await house.until(Phase.UNHEALTHY)
        assert anyio.current_time() - since <= 3 * (5 + 10) + 1


async def test_one_unreadable_look_between_two_does_not_hide_that_the_engine_steps() -> None:
    """The counters are compared with the last look that succeeded."""
    house = build()
    async with house.run():
        await house.started()
        house.client.health_is = Outcome.TIMEOUT
        for step in range(1, 100):
            house.client.metrics_is = EngineMetrics(counters={("0", "tokens"): step}) if step % 2 else None
            await anyio.sleep(house.supervisor._policy.probe_interval)
        assert house.phase is Phase.READY


@pytest.mark.parametrize("metrics", [None, EngineMetrics(running=3, counters={("0", "tokens"): 5.0})])
async def test_timeouts_while_the_counters_stand_still_lead_to_unhealthy_and_a_restart(
    metrics: EngineMetrics | None,
) -> None:
    """After the threshold, and `restart_after` more; without a drain."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.metrics_is = metrics
        house.client.health_is = Outcome.TIMEOUT
        since = anyio.current_time()
        await house.until(Phase.UNHEALTHY)
        assert anyio.current_time() - since == pytest.approx(15, abs=6)
        assert house.supervisor.models() == []
        unhealthy = anyio.current_time()
        await house.until(Phase.STOPPING)
        assert anyio.current_time() - unhealthy == pytest.approx(30, abs=0.1)
        assert not house.state.draining
        house.client.health_is = None
        await house.until(Phase.READY)
        assert house.supervisor.facts.restarts[Cause.UNHEALTHY] == 1
        assert engine.signals[0][1] is Sig.TERM


async def test_an_engine_found_dead_is_probed_faster() -> None:
    """Three refusals take three seconds, not fifteen: clients are not sent to a dead engine meanwhile."""
    house = build()
    async with house.run():
        await house.started()
        house.client.health_is = Outcome.REFUSED
        await house.observer.until(lambda: house.state.dead_since)
        dead = anyio.current_time()
        await house.until(Phase.UNHEALTHY)
        assert anyio.current_time() - dead == pytest.approx(2.0, abs=0.1)
        house.client.health_is = Outcome.OK
        await house.until(Phase.READY)
        assert house.state.dead_since is None
        recovered = len(house.client.calls.times("health"))
        await anyio.sleep(50)
        assert len(house.client.calls.times("health")) - recovered == pytest.approx(10, abs=1)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.ERROR])
async def test_moving_counters_do_not_excuse_an_engine_that_is_dead(outcome: Outcome) -> None:
    """Only a timeout is perhaps busy: whoever refuses or answers 503 is believed."""
    house = build()
    async with house.run():
        await house.started()
        house.client.stepping = True
        house.client.health_is = outcome
        await house.until(Phase.UNHEALTHY, within=10)


async def test_an_engine_that_says_it_is_dead_and_exits_by_itself_crashed() -> None:
    """503 first and exit 0 five seconds later: the code is recorded and the reason is crash, not unhealthy."""
    house = build()
    async with house.run():
        engine = await house.started()
        house.client.health_is = Outcome.ERROR
        await house.observer.until(lambda: house.state.dead_since)
        await anyio.sleep(5)
        assert house.phase is Phase.UNHEALTHY
        engine.exit(0)
        house.client.health_is = None
        await house.until(Phase.BACKOFF)
        assert house.supervisor.facts.last_exit is not None
        assert house.supervisor.facts.last_exit.reason is Cause.CRASH
        await house.until(Phase.READY)
        assert house.supervisor.facts.restarts[Cause.CRASH] == 1
        assert house.supervisor.facts.restarts[Cause.UNHEALTHY] == 0


async def test_an_engine_that_stays_dead_is_restarted() -> None:
    """Refused and not gone: ended by us, and counted as unhealthy."""
    house = build(policy=Policy(restart_after=5.0))
    async with house.run():
        engine = await house.started()
        house.client.health_is = Outcome.REFUSED
        await house.observer.until(lambda: house.state.dead_since)
        dead = anyio.current_time()
        await house.until(Phase.STOPPING)
        assert anyio.current_time() - dead == pytest.approx(10.0, abs=0.1)
        house.client.health_is = None
        await house.until(Phase.READY)
        assert engine.gone
        assert house.supervisor.facts.restarts[Cause.UNHEALTHY] == 1


async def test_a_probe_of_a_ready_engine_that_we_could_not_make_says_nothing() -> None:
    """UNKNOWN for a quarter of an hour, or exceptions: still ready."""
    house = build()
    async with house.run():
        await house.started()
        house.client.calls.fail("health", EMFILE, EMFILE)
        await house.observer.until(lambda: len(house.observer.noticed("internal_error")) == 2)
        house.client.health_is = Outcome.UNKNOWN
        await anyio.sleep(900)
        assert house.phase is Phase.READY


async def test_an_order_for_an_engine_that_nobody_holds_is_dropped() -> None:
    """Adopted by hearsay: nothing can be signalled, nothing is probed, and the loop goes on to say so."""
    house = build()
    async with house.run():
        house.supervisor.post(Adopted(1, 10, leader_alive=True))
        await house.until(Phase.FAILED)
        assert house.running() == {}
        assert house.supervisor.status()["survivors"] == []


async def test_what_concerns_another_generation_is_dropped() -> None:
    """Neither the machine nor the facts nor the recorder believe what is said of an engine that is no more."""
    house = build()
    async with house.run():
        engine = await house.started()
        engine.exit(1)
        await house.until(Phase.BACKOFF)
        await house.until(Phase.READY)
        await anyio.sleep(1)
        before, facts = house.state, house.supervisor.facts
        for stale in (
            LeaderExited(1, ExitStatus(code=3)),
            GroupEmpty(1),
            GroupEmpty(2),  # its leader lives
            Spawned(2, 99),  # nobody waits for it
            Probed(1, Outcome.OK, 77.0),
            Served(1),
            Described(1, ("stale",), "0"),
            Looked(1, EngineMetrics(running=9)),
            StartProgressed(1, "stale"),
        ):
            house.supervisor.post(stale)
        await house.observer.until(lambda: house.observer.order[-1] == "Served")
        await house.a_moment()
        assert house.state == before
        assert house.supervisor.facts == facts


async def test_the_version_is_asked_once_a_generation() -> None:
    """Also when the pace of the probes changes; the new generation is asked anew."""
    house = build()
    async with house.run():
        engine = await house.started()
        await anyio.sleep(20)
        assert house.supervisor.facts.described is not None
        assert house.supervisor.facts.described.version == "0.32.0"
        house.client.health_is = Outcome.REFUSED
        await house.observer.until(lambda: house.state.dead_since)
        house.client.health_is = None
        await anyio.sleep(20)
        assert len(house.client.calls.times("version")) == 1
        house.client.version_is = "0.33.0"
        engine.exit(0)
        await house.until(Phase.STARTING)
        await house.until(Phase.READY)
        await anyio.sleep(20)
        described = house.supervisor.facts.described
        assert described is not None
        assert (described.generation, described.version) == (2, "0.33.0")


async def test_failures_are_forgiven_after_a_long_time_ready() -> None:
    """The count starts afresh."""
    house = build(policy=Policy(healthy_reset=100.0))
    async with house.run():
        engine = await house.started()
        engine.exit(1)
        await house.until(Phase.STARTING)
        await house.until(Phase.READY)
        assert house.state.failures == 1
        await anyio.sleep(101)
        assert house.state.failures == 0


class Slow(RecordingObserver):
    """An observer whose every note costs a millisecond, as a log line on a slow disk does."""

    def __init__(self, clock: MockClock) -> None:
        super().__init__()
        self._clock = clock
        self.count = 0

    def noted(self, note: Note) -> None:
        self.count += note.kind == "flood"
        self._clock.jump(0.001)


async def test_a_flood_of_notes_delays_neither_a_deadline_nor_others(clock: MockClock) -> None:
    """Ten seconds' worth of notes, SIGKILL due in two: it is sent in time, and the control socket gets its turns."""
    slow = Slow(clock)
    house = build(EngineScript(leader=MemberScript(after_term=None)), policy=Policy(stop_grace=2.0), more=(slow,))
    turns = [0.0]

    async def others() -> None:
        while True:
            turns.append(anyio.current_time())
            await anyio.sleep(0.01)

    async with house.run(), anyio.create_task_group() as group:
        engine = await house.started()
        house.supervisor.post(StopAsked(drain=False))
        await house.until(Phase.STOPPING)
        asked = anyio.current_time()
        turns.clear()
        group.start_soon(others)
        for _ in range(10_000):
            house.supervisor.post(Note("flood"))
        await house.until(Phase.STOPPED)
        killed = [at for at, sig in engine.signals if sig is Sig.KILL]
        assert killed[0] - asked == pytest.approx(2.0, abs=0.05)
        await slow.until(lambda: slow.count == 10_000)
        assert anyio.current_time() - asked >= 10.0
        assert max(b - a for a, b in pairwise(turns)) < 0.1
        group.cancel_scope.cancel()
