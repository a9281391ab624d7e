"""Reloads on fakes: which engine is launched by which configuration, in every state, and what is told."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pytest

from tests.fakes.client import FakeClient
from tests.fakes.engine import EngineScript
from tests.fakes.house import EPOCH, MODEL, SPEC, House, build, wall
from tests.fakes.launcher import FakeLauncher
from tests.fakes.situations import BUSY
from vllm_supervisor.config.changes import Changes
from vllm_supervisor.config.plan import ControlPlan, LoggingPlan, LogPlan, MetricsPlan, Plan
from vllm_supervisor.domain.liveness import Limits
from vllm_supervisor.domain.messages import RestartAsked, ShutdownAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import Blocker, BlockerKind, Cause, Phase, Policy
from vllm_supervisor.domain.spec import LaunchSpec
from vllm_supervisor.errors import ConfigError, Problem
from vllm_supervisor.runtime.facts import Configured
from vllm_supervisor.runtime.outfit import Outfit
from vllm_supervisor.runtime.reload import Hands, ReloadAsked, Reloaded, Reloader, ReloadRefusedError

pytestmark = pytest.mark.anyio

BAD = ConfigError((Problem("f:3", "engine.vllm.port", "80000 is above 65535", "give another"),))
PORT, ALIAS, METRICS = "engine.vllm.port", "engine.vllm.model_aliases.a", "metrics.port"
RESTART = ReloadAsked(restart=True)
PLAIN = ReloadAsked()


def plan(
    port: int = 8000, policy: Policy | None = None, aliases: Mapping[str, str] | None = None, metrics: int = 9455
) -> Plan:
    names = dict(SPEC.aliases if aliases is None else aliases)
    return Plan(
        policy=policy or Policy(),
        liveness=Limits(),
        launch=LaunchSpec(("vllm",), {}, None, "/log", "127.0.0.1", port),
        engine=replace(SPEC, base_url=f"http://127.0.0.1:{port}", aliases=names),
        control=ControlPlan("/s", 0o660, None, ()),
        metrics=MetricsPlan(enabled=True, host="127.0.0.1", port=metrics),
        logging=LoggingPlan("info", "auto"),
        log=LogPlan(1, 1),
        state_dir="/state",
        ready_when="daemon",
        warnings=(),
        values={
            PORT: str(port),
            ALIAS: str(sorted(names.items())),
            METRICS: str(metrics),
            "engine.vllm.probe": str(policy),
        },
    )


@dataclass
class Reloads:
    """A house whose configuration is whatever `file` is. Each outfit has a launcher and a client of its own."""

    house: House
    file: Plan | ConfigError = field(default_factory=plan)
    takes: float = 0.5
    reading: int = 0
    tuned: list[Plan] = field(default_factory=list)
    fitted: list[FakeLauncher] = field(default_factory=list)
    clients: list[FakeClient] = field(default_factory=list)
    scripts: list[EngineScript] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    broken: bool = False

    def __post_init__(self) -> None:
        hands = Hands(self.read, self.outfit, self.tuned.append, self.during, wall)
        self.reloader = Reloader(self.house.supervisor, plan(), hands)

    async def read(self) -> Plan:
        self.reading += 1
        assert self.reading == 1, "one at a time"
        found = self.file
        await anyio.sleep(self.takes)
        self.reading -= 1
        if isinstance(found, ConfigError):
            raise found
        return found

    def outfit(self, new: Plan) -> Outfit:
        if self.broken:
            raise OSError("no room")
        launcher = FakeLauncher(*self.scripts)
        client = FakeClient(launcher, MODEL)
        self.fitted.append(launcher)
        self.clients.append(client)
        return Outfit(launcher, client, new.engine)

    @asynccontextmanager
    async def during(self) -> AsyncIterator[None]:
        self.told.append("begun")
        try:
            yield
        finally:
            self.told.append("ended")

    async def __call__(self, file: Plan | ConfigError, asked: ReloadAsked = PLAIN) -> Reloaded:
        self.file = file
        with anyio.fail_after(60):
            return await self.reloader.reload(asked)

    @property
    def config(self) -> Configured:
        assert self.house.supervisor.facts.config is not None
        return self.house.supervisor.facts.config

    def launched(self) -> tuple[int, int]:
        """Return how many engines the first configuration launched, and how many the ones after it."""
        return len(self.house.launcher.engines), sum(len(launcher.engines) for launcher in self.fitted)


def reloads(*scripts: EngineScript, policy: Policy | None = None) -> Reloads:
    return Reloads(build(*scripts, policy=policy, config=Configured("/c.yaml", EPOCH)))


Reach = Callable[[House], Awaitable[None]]


async def _stopped(house: House) -> None:
    await house.a_moment()


async def _starting(house: House) -> None:
    house.supervisor.post(StartAsked())
    await house.until(Phase.STARTING)
    await house.a_moment()


async def _ready(house: House) -> None:
    await house.started()


async def _draining(house: House) -> None:
    await house.started()
    house.client.metrics_is = BUSY
    house.supervisor.post(StopAsked())
    await house.until(Phase.STOPPING)


async def _backoff(house: House) -> None:
    await house.started()
    await house.until(Phase.BACKOFF)


async def _failed(house: House) -> None:
    house.launcher.scripts = [EngineScript(healthy_after=None, exits_after=1)]
    house.supervisor.post(StartAsked())
    await house.until(Phase.FAILED)


async def _blocked(house: House) -> None:
    house.launcher.blocked_by = Blocker(BlockerKind.PORT, "taken", "free it")
    house.supervisor.post(StartAsked())
    await house.until(Phase.BACKOFF)


async def _checking(house: House) -> None:
    house.launcher.calls.takes["check"] = 100.0
    house.supervisor.post(StartAsked())
    await house.until(Phase.STARTING)


STATES = [_stopped, _starting, _ready, _draining, _backoff, _failed, _blocked, _checking]


in_every_state = pytest.mark.parametrize("reach", STATES, ids=lambda reach: reach.__name__.lstrip("_"))


@in_every_state
async def test_what_holds_at_once(reach: Reach) -> None:
    """In every state: policy, aliases and whatever is tuned follow; the engine is left alone; nothing waits."""
    subject = reloads(EngineScript(exits_after=60), policy=Policy(never_ready_limit=1, min_backoff=30, max_backoff=30))
    async with subject.house.run():
        await reach(subject.house)
        before = subject.launched()
        new = plan(policy=Policy(probe_interval=1.5), aliases={"b": MODEL})
        done = await subject(new)
        assert done == Reloaded(Changes(live=(ALIAS, "engine.vllm.probe")))
        assert subject.tuned == [new]
        assert dict(subject.house.supervisor.spec.aliases) == {"b": MODEL}
        assert subject.house.client.spec == subject.house.supervisor.spec
        assert subject.launched() == before
        assert subject.config.pending == subject.config.pending_daemon == ()
        assert subject.config.loaded_at >= EPOCH
        assert subject.told == ["begun", "ended"]
        await subject.house.a_moment()
        (note,) = subject.house.observer.noticed("config_reloaded")
        assert note.fields["live"] == [ALIAS, "engine.vllm.probe"]
    assert subject.house.launcher.violations == []


@in_every_state
async def test_a_new_engine_where_it_is_asked_for(reach: Reach) -> None:
    """In every state the next engine is one of the new configuration, and there are never two; a stop stays one."""
    subject = reloads(EngineScript(exits_after=60), policy=Policy(never_ready_limit=1, min_backoff=30, max_backoff=30))
    async with subject.house.run():
        await reach(subject.house)
        up = subject.house.state.intent == "up"
        before = subject.launched()
        done = await subject(plan(port=8001), RESTART)
        assert done == Reloaded(Changes(engine=(PORT,)), restarted=up)
        if not up:
            await subject.house.until(Phase.STOPPED)
            assert subject.launched() == before
            subject.house.supervisor.post(StartAsked())
        await subject.house.until(Phase.STARTING)
        await subject.house.until(Phase.READY)
        assert subject.launched() == (before[0], 1)
        assert subject.house.supervisor.status()["base_url"] == "http://127.0.0.1:8001"
        assert subject.config.pending == ()
        assert all(engine.gone for engine in subject.house.launcher.engines)
    assert subject.house.launcher.violations == subject.fitted[0].violations == []


async def test_a_restart_for_a_configuration_is_counted_and_forgives() -> None:
    """`restarts_total{config}`, and no failure of before counts against the new one."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        await subject(plan(port=8001), RESTART)
        await subject.house.until(Phase.STARTING)
        await subject.house.until(Phase.READY)
        assert subject.house.supervisor.facts.restarts[Cause.CONFIG] == 1
        assert subject.house.state.failures == 0
        assert [note.fields for note in subject.house.observer.noticed("config_applied")] == [{"keys": [PORT]}]


async def test_a_crash_brings_back_the_engine_that_served() -> None:
    """What waits for an operator goes on waiting, however often the engine crashes, and shows as pending."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        assert (await subject(plan(port=8001))).changes.engine == (PORT,)
        for number in (2, 3):
            subject.house.engine.exit(1)
            await subject.house.until(Phase.BACKOFF)
            await subject.house.until(Phase.READY)
            assert subject.launched() == (number, 0)
        assert subject.config.pending == (PORT,)
        assert subject.house.supervisor.status()["base_url"] == "http://127.0.0.1:8000"
        assert subject.house.client.spec is not None
        assert subject.house.client.spec.base_url == "http://127.0.0.1:8000"


@pytest.mark.parametrize("stop", [True, False])
async def test_an_operators_restart_or_start_takes_what_waits(*, stop: bool) -> None:
    """After a reload that named it, `restart`, or `stop` and `start`, launch by the new configuration."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        await subject(plan(port=8001))
        # To ask for what is already so asks for no new engine.
        assert await subject.house.supervisor.ask(StartAsked()) is None
        assert PORT in subject.config.pending
        if stop:
            await subject.house.supervisor.ask(StopAsked())
            await subject.house.until(Phase.STOPPED)
            assert PORT in subject.config.pending
            await subject.house.supervisor.ask(StartAsked())
        else:
            await subject.house.supervisor.ask(RestartAsked())
        await subject.house.until(Phase.STARTING)
        await subject.house.until(Phase.READY)
        assert (subject.launched(), subject.config.pending) == ((1, 1), ())


async def test_what_is_taken_back_waits_no_more() -> None:
    """A file that is as it was leaves nothing pending, also where the engine was about to be restarted for it."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        await subject(plan(port=8001, metrics=1))
        assert (subject.config.pending, subject.config.pending_daemon) == ((PORT,), (METRICS,))
        subject.house.client.metrics_is = BUSY
        await subject(plan(port=8001), RESTART)
        await subject.house.until(Phase.STOPPING)
        assert await subject(plan()) == Reloaded(Changes())
        assert subject.config.pending == subject.config.pending_daemon == ()
        await subject.house.until(Phase.READY)
        assert subject.launched() == (2, 0)


async def test_nothing_that_needs_an_engine_restarts_none() -> None:
    """`restart` in the request is no order to restart, but the leave to."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        done = await subject(plan(aliases={}), RESTART)
        assert (done.restarted, subject.house.phase, subject.launched()) == (False, Phase.READY, (1, 0))


async def test_a_bad_file_changes_nothing_but_what_is_told() -> None:
    """ConfigError for who asked, an event, and the status until the next good one."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        await subject(plan(port=8001))
        with pytest.raises(ConfigError):
            await subject(BAD, RESTART)
        await subject.house.a_moment()
        assert subject.config == Configured("/c.yaml", subject.config.loaded_at, (PORT,), (), (str(BAD),))
        assert len(subject.tuned) == 1
        assert (subject.house.phase, subject.launched()) == (Phase.READY, (1, 0))
        (note,) = subject.house.observer.noticed("config_refused")
        assert note.fields == {"problems": [str(BAD)]}
        assert subject.told == ["begun", "ended"] * 2
        await subject(plan())
        assert subject.config.refused == ()


async def test_reloads_come_one_after_the_other() -> None:
    """Two at once are both answered, each for the file as it is at its turn; the control loop goes on meanwhile."""
    subject = reloads()
    subject.takes = 5.0
    answers: list[Reloaded] = []

    async def ask(new: Plan) -> None:
        subject.file = new
        answers.append(await subject.reloader.reload(ReloadAsked()))

    async with subject.house.run():
        await subject.house.started()
        async with anyio.create_task_group() as group:
            group.start_soon(ask, plan(aliases={}))
            await anyio.sleep(1)
            group.start_soon(ask, plan(port=8001, aliases={}))
            await anyio.sleep(1)
            with anyio.fail_after(0.5):
                await subject.house.supervisor.pulse()
        assert [answer.changes for answer in answers] == [Changes(live=(ALIAS,)), Changes(engine=(PORT,))]


async def test_who_asks_may_go_away() -> None:
    """A client that leaves while its reload is taken in, or read, does not leave half of one."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        subject.file = plan(port=8001)
        with anyio.move_on_after(0.2):
            await subject.reloader.reload(ReloadAsked())
        subject.reading = 0
        assert not subject.config.pending
        assert (await subject(plan(port=8001))).changes.engine == (PORT,)
        assert subject.config.pending == (PORT,)


async def test_a_dry_run_tells_and_changes_nothing() -> None:
    """Of the daemon's own file, of values that are sent, and of one that is bad."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        new = plan(port=8001, metrics=1, aliases={})
        expected = Reloaded(Changes((ALIAS,), (PORT,), (METRICS,)), dry_run=True)
        assert await subject(new, ReloadAsked(dry_run=True)) == expected
        assert await subject(BAD, ReloadAsked(dry_run=True, values=new.values)) == expected
        with pytest.raises(ConfigError):
            await subject(BAD, ReloadAsked(dry_run=True))
        await subject.house.a_moment()
        assert subject.config == Configured("/c.yaml", EPOCH)
        assert not subject.tuned
        assert not subject.told
        assert not [note for _, note in subject.house.observer.notes if note.kind.startswith("config")]


async def test_too_late() -> None:
    """While the daemon ends, and when it has ended, a reload is refused and changes nothing."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        subject.house.client.metrics_is = BUSY
        subject.house.supervisor.post(ShutdownAsked())
        await subject.house.until(Phase.STOPPING)
        with pytest.raises(ReloadRefusedError, match="is ending"):
            await subject(plan(port=8001), RESTART)
        await subject.house.ended()
        with pytest.raises(ReloadRefusedError, match="has ended"):
            await subject(plan(port=8001))
        assert subject.tuned == []


async def test_an_outfit_that_cannot_be_made_costs_no_engine() -> None:
    """The engine that was to be replaced is launched again as it was, and the rest stays pending."""
    subject = reloads()
    subject.broken = True
    async with subject.house.run():
        await subject.house.started()
        await subject(plan(port=8001), RESTART)
        await subject.house.until(Phase.STARTING)
        await subject.house.until(Phase.READY)
        assert (subject.launched(), subject.config.pending) == ((2, 0), (PORT,))
        (note,) = subject.house.observer.noticed("internal_error")
        assert note.fields["where"] == "outfit"


async def test_aliases_without_a_target_are_told_once() -> None:
    """New ones that the running engine does not serve; those that were told before are not told again."""
    subject = reloads()
    async with subject.house.run():
        await subject.house.started()
        await subject(plan(aliases={"b": "elsewhere"}))
        await subject(plan(aliases={"b": "elsewhere", "c": MODEL}))
        await subject.house.a_moment()
        assert [note.fields["alias"] for note in subject.house.observer.noticed("alias_target_missing")] == ["b"]
        assert ("c", MODEL) in subject.house.supervisor.models()


async def test_a_refusal_without_a_file_of_before() -> None:
    """A daemon that was told no configuration's path has no status to mark, and tells it all the same."""
    subject = Reloads(build())
    async with subject.house.run():
        with pytest.raises(ConfigError):
            await subject(BAD)
        await subject.house.a_moment()
        assert subject.house.supervisor.facts.config is None
        assert len(subject.house.observer.noticed("config_refused")) == 1


async def test_warnings_of_a_new_configuration_are_told() -> None:
    """One note each, and with the answer."""
    subject = reloads()
    async with subject.house.run():
        done = await subject(replace(plan(), warnings=("deprecated", "unusual")))
        assert done.warnings == ("deprecated", "unusual")
        await subject.house.a_moment()
        notes = subject.house.observer.noticed("config_warning")
        assert [note.fields["detail"] for note in notes] == ["deprecated", "unusual"]
