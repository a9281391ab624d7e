"""The post-mortem in the loop: it names the cause, its word decides, and nothing of it holds up the next launch."""

import errno
import re
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import pytest

from tests.fakes.engine import EngineScript, FakeEngine, MemberScript
from tests.fakes.house import House, build, wall
from tests.fakes.instruments import FakeInstruments
from vllm_supervisor.domain.diagnosis import Context, Diagnosis, Observed, Retry
from vllm_supervisor.domain.messages import Condemned, RestartAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import Cause, ExitStatus, Outcome, Phase, Policy
from vllm_supervisor.ports import Gpu, Level, Note
from vllm_supervisor.runtime.postmortem import COMPILE_FAILURE, PostMortem
from vllm_supervisor.runtime.work import Companions

pytestmark = pytest.mark.anyio

CRASHES = EngineScript(healthy_after=None, exits_after=5.0, status=ExitStatus(code=2))
SERVES = EngineScript(healthy_after=5.0)


def found(retry: Retry, cls: str = "bad_cli_argument") -> Diagnosis:
    return Diagnosis(cls, retry, "what happened", "the evidence", 7, "what to do", ("engine_core_init_failed",))


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


@dataclass
class Morgue:
    house: House
    tools: FakeInstruments
    post_mortem: PostMortem

    def last_exit(self) -> dict[str, object]:
        last = self.house.supervisor.status()["last_exit"]
        assert isinstance(last, dict)
        return last

    def phase(self) -> dict[str, object]:
        phase = self.house.supervisor.status()["phase"]
        assert isinstance(phase, dict)
        return phase

    def notes(self, kind: str) -> list[Note]:
        return self.house.observer.noticed(kind)


def morgue(*scripts: EngineScript, policy: Policy | None = None) -> Morgue:
    tools = FakeInstruments()
    notes: list[Note] = []
    post_mortem = PostMortem(tools.all(), wall, notes.append, "/var/log/vllm.log")
    companions = Companions(
        examine=post_mortem.examine, accompany=post_mortem.accompany, clear_ground=tools.ground.clear
    )
    house = build(*scripts, policy=policy, more=(post_mortem,), companions=companions)
    return Morgue(house, tools, post_mortem)


async def test_a_cause_that_stays_ends_the_tries() -> None:
    """Failed at the first end, and cause, evidence and remedy are in status, note and reason."""
    m = morgue(CRASHES)
    m.tools.log.found = found(Retry.PERMANENT)
    async with m.house.run():
        m.house.supervisor.post(StartAsked())
        await m.house.until(Phase.FAILED)
        assert m.last_exit()["retry_why"] is None
        assert m.house.state.fail_why == "what happened (bad_cli_argument): the evidence; what to do"
        await m.house.a_moment()
        assert m.last_exit()["diagnosis"] == found(Retry.PERMANENT).as_json()
        assert m.last_exit()["bundle"] == "bundle-1"
        (note,) = m.notes("engine_diagnosed")
        assert note.level is Level.WARNING
        assert note.fields == found(Retry.PERMANENT).as_json() | {"cause": Cause.CRASH}
        assert m.tools.log.asked == [(0, Context(exit_code=2, was_ready=False))]


async def test_a_configuration_that_was_ready_here_is_tried_again() -> None:
    """The same verdict after it has once been ready is one of several tries."""
    m = morgue(SERVES, CRASHES, policy=Policy(never_ready_limit=3))
    m.tools.log.found = found(Retry.NEEDS_OPERATOR)
    async with m.house.run():
        (await m.house.started()).exit(signal=9)
        await m.house.until(Phase.BACKOFF)
        assert m.last_exit()["retry_why"] == (
            "tried again although the cause is needs_operator: this configuration has been ready on this host before"
        )
        await m.house.until(Phase.FAILED)
        assert len(m.house.launcher.engines) == 4, "one that served and three that did not"
        assert m.tools.record.proven


async def test_an_end_without_a_cause_counts_as_unknown() -> None:
    """It is told all the same, and the metric's class is unknown."""
    m = morgue(CRASHES, SERVES)
    async with m.house.run():
        await m.house.started()
        (note,) = m.notes("engine_diagnosed")
        assert note.fields == {"class": "unknown", "cause": Cause.CRASH}
        assert m.last_exit()["diagnosis"] is None
        assert m.last_exit()["bundle"] == "bundle-1"


@pytest.mark.parametrize("written", [True, False])
async def test_failed_of_an_unknown_cause_says_where_to_look(written: bool) -> None:
    """The log, the bundle unless it was lost, and the commands that know more."""
    m = morgue(CRASHES, policy=Policy(never_ready_limit=1))
    if not written:
        m.tools.calls.fail("bundle", OSError("full"))
    async with m.house.run():
        m.house.supervisor.post(StartAsked())
        await m.house.until(Phase.FAILED)
        why = m.house.state.fail_why or ""
        assert why.startswith("the one start that is allowed never got ready: the log shows no cause that is known; ")
        assert "the end of /var/log/vllm.log" in why
        assert ("the evidence in bundle-1" in why) is written
        assert "`vllm-supervisor explain`" in why
        assert "`vllm-supervisor diagnose FILE`" in why


@pytest.mark.parametrize("event", [StopAsked(drain=False), RestartAsked(drain=False)])
async def test_what_was_asked_for_is_not_examined(event: StopAsked | RestartAsked) -> None:
    """No diagnosis, no bundle; what the engine left is removed all the same."""
    m = morgue(SERVES)
    async with m.house.run():
        engine = await m.house.started()
        m.house.supervisor.post(event)
        await m.house.observer.until(lambda: m.tools.remains.removals)
        assert engine.gone
        assert (m.tools.log.asked, m.tools.bundles.reports) == ([], [])
        assert m.notes("engine_diagnosed") == []
        await m.house.observer.until(lambda: m.notes("remains_removed"))


async def test_the_oom_counter_and_xids_since_the_launch() -> None:
    """What the kernel and the driver counted during this generation, not before it."""
    m = morgue(SERVES)
    m.tools.oom.count = 5
    async with m.house.run():
        engine = await m.house.started()
        m.tools.oom.count = 6
        m.tools.gpus.events = (79,)
        engine.exit(signal=9)
        await m.house.until(Phase.BACKOFF)
        ((_, context),) = m.tools.log.asked
        assert (context.oom_kills, context.xids, context.signal) == (1, (79,), 9)
        ((_, report, _),) = m.tools.bundles.reports
        assert report["oom_kills"] == 1


async def test_a_hang_is_photographed_while_it_lives_and_examined_after() -> None:
    """The collector sees the members; the examination knows what was observed, and that the kill was ours."""
    stuck = EngineScript(healthy_after=5.0, leader=MemberScript("vllm", after_term=None))
    m = morgue(stuck, SERVES)
    m.tools.gpus.seen = [(Gpu(0, "card", 1, 2),)]
    async with m.house.run():
        engine = await m.house.started()
        await m.post_mortem.collect(engine, Cause.HANG, "no step for 120 s")
        m.house.supervisor.post(Condemned(1, Cause.HANG, "no step for 120 s"))
        await m.house.until(Phase.BACKOFF)
        ((generation, facts, members),) = m.tools.bundles.photographs
        assert (generation, facts["cause"], facts["detail"]) == (1, "hang", "no step for 120 s")
        assert facts["gpus"] == [{"index": 0, "name": "card", "used": 1, "total": 2, "holders": ()}]
        assert [member.name for member in members] == ["vllm", "VLLM::EngineCore"]
        assert m.tools.log.asked[0][1] == Context(was_ready=True, observed=Observed.HANG, killed_by_us=True)


async def test_a_crash_keeps_its_process_table() -> None:
    """Who outlived the leader as the kill found them, commands from the last look in life, and who went before."""
    m = morgue(SERVES)
    async with m.house.run():
        engine = await m.house.started()
        await anyio.sleep(40)
        engine.exit(signal=9)
        ended = wall()
        await m.house.until(Phase.BACKOFF)
        (rows,) = m.tools.bundles.processes
        assert [(row["pid"], row["parent"], row["state"], row["command"]) for row in rows] == [
            (1000, 1000, "Z", "/bin/vllm"),
            (1001, 1000, "D", "/bin/VLLM::EngineCore"),
        ]
        assert {row["seen_at"] for row in rows} == {rfc3339(ended)}
        ((_, report, _),) = m.tools.bundles.reports
        assert report["members"] == [{name: row[name] for name in ("pid", "name", "state", "seen_at")} for row in rows]


async def test_a_quick_crash_has_members_and_no_date_that_never_was() -> None:
    """Nobody looked in life; the kill found the leader and the rest all the same."""
    m = morgue(EngineScript(healthy_after=None, exits_after=0.1, status=ExitStatus(code=2)))
    async with m.house.run():
        m.house.supervisor.post(StartAsked())
        await m.house.until(Phase.BACKOFF)
        (rows,) = m.tools.bundles.processes
        assert [row["name"] for row in rows] == ["vllm", "VLLM::EngineCore"]
        assert {row["seen_at"] for row in rows} == {rfc3339(wall())}
        assert "1970" not in str(m.tools.bundles.reports)


async def test_an_end_that_no_daemon_saw_is_examined_by_the_next() -> None:
    """The earlier daemon died within its post-mortem: diagnosis and bundle come now, and the start goes on."""
    m = morgue(SERVES)
    m.house.launcher.left = FakeEngine(7, 700, EngineScript(leader_alive=False, others=()), log_start=55)
    m.tools.log.found = found(Retry.PERMANENT)
    async with m.house.run():
        engine = await m.house.started()
        assert engine.generation == 8
        assert m.tools.log.asked == [(55, Context())]
        assert [report["cause"] for _, report, _ in m.tools.bundles.reports] == [Cause.LEFTOVER]
        last = m.last_exit()
        assert (last["code"], last["signal"], last["reason"], last["bundle"]) == (None, None, "leftover", "bundle-7")
        assert last["diagnosis"] == found(Retry.PERMANENT).as_json()
        assert m.house.launcher.forgotten == [7]


async def test_an_engine_that_was_left_alive_is_not_examined() -> None:
    """It worked until we ended it."""
    m = morgue(SERVES)
    m.house.launcher.left = FakeEngine(7, 700, EngineScript())
    async with m.house.run():
        await m.house.started()
        assert (m.tools.log.asked, m.tools.bundles.reports) == ([], [])


async def test_an_end_is_noted_only_once_it_was_examined() -> None:
    """A daemon that is killed within the examination leaves it to the next."""
    m = morgue(CRASHES)
    m.tools.calls.takes["diagnose"] = 1.0
    async with m.house.run():
        m.house.supervisor.post(StartAsked())
        await m.house.observer.until(lambda: m.tools.calls.running().get("diagnose"))
        await anyio.sleep(0.5)
        assert m.house.launcher.forgotten == []
        await m.house.until(Phase.BACKOFF)
        assert m.house.launcher.forgotten == [1]


async def test_a_collector_never_raises_and_never_stays() -> None:
    """A full disk, a defect, a disk that hangs: the engine is ended without a photograph."""
    m = morgue(SERVES)
    async with m.house.run():
        engine = await m.house.started()
        m.tools.calls.fail("photograph", OSError("full"), RuntimeError("defect"))
        await m.post_mortem.collect(engine, Cause.HANG, "")
        await m.post_mortem.collect(engine, Cause.HANG, "")
        m.tools.calls.takes["photograph"] = 1000.0
        before = anyio.current_time()
        await m.post_mortem.collect(engine, Cause.HANG, "")
        assert anyio.current_time() - before <= 15.0


@pytest.mark.parametrize("broken", ["diagnose", "bundle", "remove", "ready", "move_aside", "gpus"])
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_nothing_of_it_holds_up_the_next_launch(broken: str, how: str) -> None:
    """Whatever fails or hangs, the end is told, the backoff is kept within seconds, and another engine serves."""
    m = morgue(SERVES)
    m.tools.log.found = found(Retry.TRANSIENT_ONCE, COMPILE_FAILURE)
    async with m.house.run():
        engine = await m.house.started()
        if how == "raises":
            m.tools.calls.fail(broken, *[OSError("broken")] * 3)
        else:
            m.tools.calls.takes[broken] = 1000.0 if broken != "gpus" else 1.0
        engine.exit(1)
        await m.house.observer.until(lambda: Phase.BACKOFF in m.house.observer.phases, within=10.0)
        assert len(m.notes("engine_diagnosed")) == 1
        await m.house.until(Phase.READY, within=60.0)
        assert m.house.state.generation >= 2


async def test_a_damaged_compile_cache_is_moved_once() -> None:
    """Before the second start; not again, unless the configuration has been ready since."""
    m = morgue(CRASHES, CRASHES, SERVES, policy=Policy(never_ready_limit=5))
    m.tools.log.found = found(Retry.TRANSIENT_ONCE, COMPILE_FAILURE)
    async with m.house.run():
        engine = await m.house.started()
        assert (engine.generation, m.tools.cache.moves) == (3, 1)
        (note,) = m.notes("compile_cache_moved")
        assert note.fields == {"to": ["aside-1"]}
        first, second = (str(note.fields["action"]) for note in m.notes("engine_diagnosed"))
        assert first.startswith("the compile cache was moved aside to aside-1, and the next start compiles anew; ")
        assert second.startswith("the compile cache was moved aside to aside-1 before, and compiling anew failed too: ")
        engine.exit(1)
        await m.house.until(Phase.BACKOFF)
        assert m.tools.cache.moves == 2


async def test_looks_at_the_members() -> None:
    """Every second while starting, at readiness, then twice a minute; and not once the leader is gone."""
    m = morgue(EngineScript(healthy_after=10.0))
    async with m.house.run():
        await m.house.started()
        await m.house.a_moment()
        starting = len(m.tools.remains.noted)
        assert 10 <= starting <= 12
        assert m.tools.remains.noted[-1] == frozenset({1000, 1001})
        await anyio.sleep(300)
        assert len(m.tools.remains.noted) - starting == 10


async def test_the_diagnosis_comes_before_the_backoff() -> None:
    """The verdict is there when the machine settles, and the time it took is within the pause."""
    m = morgue(CRASHES)
    m.tools.calls.takes["diagnose"] = 1.0
    m.tools.log.found = found(Retry.TRANSIENT_ONCE)
    async with m.house.run():
        m.house.supervisor.post(StartAsked())
        await m.house.until(Phase.BACKOFF)
        assert m.house.state.verdict is not None
        assert m.house.state.ended_at is not None
        assert m.house.state.since - m.house.state.ended_at == pytest.approx(1.0, abs=0.1)
        assert m.house.state.deadline == pytest.approx(m.house.state.ended_at + 1.5)


async def test_a_log_that_cannot_be_read_is_told_once() -> None:
    """The status says what a diagnosis without it rests on, for as long as the daemon lives; one note is enough."""
    m = morgue(CRASHES, CRASHES, SERVES)
    m.tools.log.unread = "not allowed: the exit code alone decides"
    async with m.house.run():
        await m.house.started()
        assert m.house.supervisor.status()["log"] == {"readable": False, "detail": m.tools.log.unread}
        [note] = m.notes("log_not_read")
        assert note.fields["problem"] == "not_readable"


async def test_an_engine_that_gets_ready_during_a_look() -> None:
    """It has served once that look has ended, and the long pace holds from then on."""
    m = morgue(EngineScript(healthy_after=10.0))
    m.tools.calls.takes["gpus"] = 2.0
    async with m.house.run():
        await m.house.started()
        assert not m.tools.record.proven, "a look is under way"
        await anyio.sleep(5)
        assert m.tools.record.proven
        starting = len(m.tools.remains.noted)
        await anyio.sleep(60)
        assert len(m.tools.remains.noted) - starting <= 2


async def test_nothing_left_is_nothing_told() -> None:
    """No note of what was removed, where nothing was."""
    m = morgue(CRASHES, SERVES)
    m.tools.remains.left = ()
    async with m.house.run():
        await m.house.started()
        assert (m.tools.remains.removals, m.notes("remains_removed")) == (1, [])


async def test_an_unhealthy_engine_says_what_the_probes_saw_and_what_follows() -> None:
    """In the status while it lasts, and at the last exit and in the report afterwards."""
    m = morgue(SERVES, SERVES)
    async with m.house.run():
        await m.house.started()
        m.house.client.health_is = Outcome.ERROR
        await m.house.until(Phase.UNHEALTHY)
        detail = str(m.phase()["detail"])
        assert re.fullmatch(r"3 health probes in a row failed, the last: health: error; restart in \d+ s", detail), (
            detail
        )
        await m.house.until(Phase.STOPPING, within=100)
        m.house.client.health_is = None
        await m.house.until(Phase.READY, within=200)
        assert str(m.last_exit()["detail"]).endswith(" health probes in a row failed, the last: health: error")
        report = m.tools.bundles.reports[-1][1]
        assert report["observed"] == "probes_failed"
        assert report["detail"] == m.last_exit()["detail"]


async def test_no_known_cause_is_said_while_it_is_tried_again() -> None:
    """And where to look; with a bundle that was lost, why it was."""
    m = morgue(CRASHES, SERVES)
    m.tools.calls.fail("bundle", OSError("No space left on device"))
    async with m.house.run():
        await m.house.started()
        assert "the end of /var/log/vllm.log" in str(m.last_exit()["where_to_look"])
        assert m.last_exit()["bundle"] is None
        assert m.last_exit()["bundle_lost"] == "No space left on device"


async def test_a_log_that_is_gone_is_no_failure_of_ours() -> None:
    """Somebody deleted it, or put a folder there: told as that, and where to look says so."""
    m = morgue(CRASHES, SERVES)
    m.tools.calls.fail("diagnose", FileNotFoundError(errno.ENOENT, "No such file or directory"))
    async with m.house.run():
        await m.house.started()
        assert not m.notes("internal_error")
        (note,) = m.notes("log_not_read")
        assert note.fields == {"problem": "missing", "detail": "No such file or directory"}
        assert "for the log could not be read (No such file or directory); " in str(m.last_exit()["where_to_look"])


@pytest.mark.parametrize("unread", ["the journal may not be read", None])
async def test_a_log_that_was_not_read_shows_nothing(unread: str | None) -> None:
    """Neither a cause nor that there is none: what could not be looked at is not claimed to be clean."""
    m = morgue(CRASHES, policy=Policy(never_ready_limit=1))
    m.tools.log.unread = unread
    if unread is None:
        m.tools.calls.fail("diagnose", OSError("gone"))
    async with m.house.run():
        m.house.supervisor.post(StartAsked())
        await m.house.until(Phase.FAILED)
        why = m.house.state.fail_why or ""
        assert "the log shows no cause" not in why
        assert f"no known cause, for {unread or 'the log could not be read (gone)'}; read the end of" in why
