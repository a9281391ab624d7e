"""The loop: one writer owns the state. It receives events, steps the machine, tells observers, carries out effects.

Nothing else assigns the state. What others want to happen they `ask`; what they want to know they read from the
immutable `state` and `facts`, and such a read never decides about the engine.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint

from vllm_supervisor.domain.machine import needs, step
from vllm_supervisor.domain.messages import (
    Adopted,
    Blocked,
    Cleared,
    DeadlinePassed,
    Event,
    PolicyChanged,
    Quit,
    Record,
    Refuse,
    RestartAsked,
    ShutdownAsked,
    Signal,
    Spawn,
    Spawned,
)
from vllm_supervisor.domain.model import Blocker, BlockerKind, Cause, Intent, Needs, Phase, Policy, State
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.errors import AlreadyRunningError, LaunchError
from vllm_supervisor.ports import Engine, Level, Note, Observer
from vllm_supervisor.runtime import facts as known
from vllm_supervisor.runtime import tasks
from vllm_supervisor.runtime.mail import Asked, Mail, Pulse, Reconfigured
from vllm_supervisor.runtime.outfit import Outfit
from vllm_supervisor.runtime.status import Json, advertised_models, named, status
from vllm_supervisor.runtime.wanted import engine_work, launch_work
from vllm_supervisor.runtime.wardrobe import Wardrobe
from vllm_supervisor.runtime.work import RETRY, Task, Work


class Begun:
    """Reports as started, at most once."""

    def __init__(self, task_status: TaskStatus[None]) -> None:
        self._task_status: TaskStatus[None] | None = task_status

    def __call__(self) -> None:
        """Report, unless that was done."""
        if self._task_status is not None:
            self._task_status.started()
            self._task_status = None


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time and chance come from. `now` is monotonic, `wall` seconds since the epoch, `u` in [0, 1)."""

    now: Callable[[], float]
    wall: Callable[[], float]
    u: Callable[[], float]


class Supervisor:
    """Owns one engine. `run` returns the daemon's exit status."""

    def __init__(
        self,
        outfit: Outfit,
        policy: Policy,
        observers: Sequence[Observer],
        clock: Clock,
        *,
        last_generation: int = 0,
        config: known.Configured | None = None,
    ) -> None:
        self._wardrobe = Wardrobe(outfit)
        self._policy = policy
        self._observers = observers
        self._clock = clock
        now = clock.now()
        self._state = State(generation=last_generation, since=now)
        self._facts = known.Facts(since_wall=clock.wall(), config=config)
        self._engine: Engine | None = None
        self._prober: tasks.Prober | None = None
        self._urgent: deque[Event] = deque()
        self._mailbox: deque[Mail] = deque()
        self._mail = anyio.Event()
        self._work = Work(self.post)
        self._status: int | None = None
        self._ended = False

    @property
    def state(self) -> State:
        """The machine's state."""
        return self._state

    @property
    def facts(self) -> known.Facts:
        """What is known beside it."""
        return self._facts

    @property
    def _outfit(self) -> Outfit:
        return self._wardrobe.outfit

    @property
    def spec(self) -> EngineSpec:
        """How the engine is asked, and what it is advertised as."""
        return self._outfit.spec

    def status(self) -> Json:
        """Return the object of `GET /v1/status`, as of now."""
        ready = self._state.phase is Phase.READY
        advise = self._outfit.companions.advice
        advice = advise(self._state.generation) if ready and advise is not None else None
        return status(self._state, self._facts, self.spec, self._clock.now(), advice)

    def models(self) -> list[tuple[str, str]]:
        """Return what clients may ask for: (advertised name, served name)."""
        return advertised_models(self._state, self._facts, self.spec)

    def post(self, item: Mail) -> None:
        """Put something into the mailbox. Never waits. Once `run` has ended, requests are refused."""
        if self._ended:
            self._turn_away(item)
        else:
            self._mailbox.append(item)
            self._mail.set()

    async def ask(self, event: Event) -> str | None:
        """Have the machine take an operator's request. Returns why it was refused, or None."""
        asked = Asked(event)
        self.post(asked)
        await asked.done.wait()
        return asked.refused

    async def pulse(self) -> None:
        """Return when the loop has taken in all that was posted before. Without end when it no longer turns."""
        beat = Pulse()
        self.post(beat)
        await beat.done.wait()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> int:
        """Run until told to end. Cancelling it leaves the engine as it is.

        Reports as started once it has taken in what was posted before and what an earlier daemon left; where the latter
        cannot be found out, at once. Raises AlreadyRunningError where that engine's daemon lives.
        """
        begun = Begun(task_status)
        status = 0
        try:
            await self._adopt(begun)
            async with anyio.create_task_group() as group:
                while self._urgent or self._mailbox:
                    await self._handle(await self._next())
                begun()
                status = await self._loop(group)
                group.cancel_scope.cancel()
        finally:
            self._ended = True
            while self._mailbox:
                self._turn_away(self._mailbox.popleft())
        return status

    def _turn_away(self, item: Mail) -> None:
        """Treat what nobody will handle any more: whoever asked would wait for ever."""
        if isinstance(item, Asked | Reconfigured):
            item.refused = "the daemon has ended"
            item.done.set()
        elif isinstance(item, Pulse):
            item.done.set()
        elif isinstance(item, Note):
            self._tell(item)

    async def _loop(self, group: TaskGroup) -> int:
        while self._status is None:
            self._work.reconcile(group, self._wanted())
            await self._handle(await self._next())
        return self._status

    async def _adopt(self, begun: Begun) -> None:
        """Look for what an earlier daemon left. Without an answer nothing is launched: two engines would be worse."""
        while True:
            try:
                leftover = await self._outfit.launcher.leftover()
            except AlreadyRunningError:
                raise
            except Exception as error:  # noqa: BLE001 -- told and tried again, as any task of ours
                self._tell(Note("internal_error", Level.ERROR, {"where": "leftover", "error": repr(error)}))
                begun()
                await anyio.sleep(RETRY)
                if any(isinstance(item, ShutdownAsked) for item in self._mailbox):
                    return
                continue
            if leftover is not None:
                self._take(leftover)
                self._urgent.append(Adopted(leftover.generation, leftover.pid, leftover.leader_alive))
            return

    def _take(self, engine: Engine) -> None:
        self._engine = engine
        outfit = self._outfit
        self._prober = tasks.Prober(engine, outfit.client, outfit.spec, self.post, outfit.companions.steps)

    async def _next(self) -> Mail:
        """Return what comes next: answers to our own orders, then deadlines, then the mailbox in order."""
        if self._urgent:
            return self._urgent.popleft()
        wake_at = self._needs().wake_at
        while True:
            if wake_at is not None and self._clock.now() >= wake_at:
                return DeadlinePassed()
            if self._mailbox:
                # However full the mailbox is, others get their turn: the control socket answers in any state.
                await checkpoint()
                return self._mailbox.popleft()
            self._mail = anyio.Event()
            with anyio.move_on_after(math.inf if wake_at is None else wake_at - self._clock.now()):
                await self._mail.wait()

    def _needs(self) -> Needs:
        return needs(self._state, self._policy)

    async def _handle(self, item: Mail) -> None:
        match item:
            case Note():
                self._tell(item)
            case (
                known.Described()
                | known.Looked()
                | known.StartProgressed()
                | known.StartMoved()
                | known.Printed()
                | known.Examined()
                | known.Watched()
            ):
                if item.generation == self._state.generation:
                    self._facts = known.learn_fact(self._facts, item)
            case known.LogUnread():
                self._facts = known.learn_fact(self._facts, item)
            case known.Configured():
                self._facts = replace(self._facts, config=item)
            case Pulse():
                item.done.set()
            case Asked():
                self._wardrobe.heed(item.event, self._state)
                item.refused = await self._step(item.event)
                item.done.set()
            case Reconfigured():
                await self._reconfigure(item)
                item.done.set()
            case _:
                await self._step(item)

    def _told(self) -> tuple[Observer, ...]:
        return (*self._observers, *self._outfit.observers)

    def _tell(self, note: Note) -> None:
        for observer in self._told():
            observer.noted(note)

    # --- a new configuration

    async def _reconfigure(self, item: Reconfigured) -> None:
        """Put a new configuration into force: at once what can be, and with another engine the rest."""
        if self._state.intent is Intent.EXIT:
            item.refused = "the daemon is ending"
            return
        change = item.apply()
        await self._step(PolicyChanged(change.policy))
        self._policy = change.policy
        self._wardrobe.adapt(change.spec)
        if self._prober is not None:
            self._prober.adapt(change.spec)
        self._facts = replace(self._facts, config=change.config)
        restart = item.restart and change.follow is not None
        self._wardrobe.leave(change.follow, due=restart)
        # An engine that an operator has stopped stays so.
        item.restarted = restart and self._state.intent is Intent.UP
        if item.restarted:
            await self._step(RestartAsked(Cause.CONFIG, drain=item.drain))
        self._refit()

    def _refit(self) -> None:
        """Take what a reload has left for the engine that is to come, if it is time."""
        with tasks.told("outfit", self.post):
            if not self._wardrobe.refit(self._state):
                return
            # What the checks before a launch have found, they have found for the outfit before.
            self._mailbox = deque(item for item in self._mailbox if not isinstance(item, Cleared | Blocked))
            if (config := self._facts.config) is not None:  # pragma: no branch -- what left the outfit said what of
                self.post(Note("config_applied", fields={"keys": list(config.pending)}))
                self._facts = replace(self._facts, config=replace(config, pending=()))

    # --- steps

    async def _step(self, event: Event) -> str | None:
        """Step the machine; return why an operator's request was refused, if it was."""
        before, now = self._state, self._clock.now()
        after, effects = step(before, event, now, self._policy, self._clock.u())
        self._state = after
        self._facts = known.learn_step(self._facts, before, event, after, now, self._clock.wall())
        if after.process is None and not after.spawning:
            self._engine = None
        for observer in self._told():
            observer.stepped(before, event, after, now)
        refused = None
        for effect in effects:
            if isinstance(effect, Refuse):
                refused = effect.why
            else:
                await self._carry_out(effect)
        self._refit()
        return refused

    async def _carry_out(self, effect: Record | Spawn | Signal | Quit) -> None:
        match effect:
            case Record():
                for observer in self._told():
                    observer.recorded(effect)
                if effect.after in (Phase.FAILED, Phase.EXITED):
                    await self._name_survivors(effect.after)
            case Spawn():
                self._urgent.append(await self._spawn(effect.generation))
            case Signal():
                await self._signal(effect)
            case Quit():
                self._status = effect.status
            case _:
                assert_never(effect)

    async def _spawn(self, generation: int) -> Event:
        try:
            engine = await self._outfit.launcher.spawn(generation)
        except LaunchError as error:
            return Blocked(generation, Blocker(BlockerKind.LAUNCHER, f"{error.what}: {error.why}", error.remedy))
        except Exception as error:  # noqa: BLE001 -- whatever kept us from launching, the daemon lives and tries again
            why = f"launching failed: {error!r}"
            return Blocked(generation, Blocker(BlockerKind.SPAWN, why, "see the log; it is tried again"))
        self._take(engine)
        return Spawned(generation, engine.pid)

    async def _signal(self, effect: Signal) -> None:
        if self._engine is None or self._engine.generation != effect.generation:
            return
        try:
            reached = await self._engine.signal(effect.signal)
        except Exception as error:  # noqa: BLE001 -- it is repeated when due; the daemon lives
            self.post(Note("internal_error", Level.ERROR, {"where": "signal", "error": repr(error)}))
        else:
            self.post(Note("signal_sent", Level.INFO, {"signal": effect.signal.value, "members": reached}))

    async def _name_survivors(self, phase: Phase) -> None:
        """Say which members SIGKILL did not end, where that is why we give up."""
        known_already = phase is Phase.EXITED and self._facts.survivors
        if self._engine is None or known_already:
            return
        try:
            survivors = await self._engine.members()
        except Exception as error:  # noqa: BLE001 -- the phase stands without their names
            self.post(Note("internal_error", Level.ERROR, {"where": "members", "error": repr(error)}))
            return
        self._facts = replace(self._facts, survivors=survivors)
        self.post(Note("members_survived", Level.ERROR, {"members": named(survivors)}))

    def _wanted(self) -> dict[Hashable, Task]:
        wants, post = self._needs(), self.post
        wanted = launch_work(wants, self._state, self._outfit, self._wardrobe.taken, post)
        if self._engine is not None and self._prober is not None:
            wanted |= engine_work(wants, self._state, self._engine, self._prober, self._outfit, post)
        return wanted
