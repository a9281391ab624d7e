"""Reloads: the file is read anew, compared with what holds, and put into force as far as it can be."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace

import anyio

from vllm_supervisor.config.changes import Changes, compare, in_force
from vllm_supervisor.config.plan import Plan
from vllm_supervisor.errors import ConfigError
from vllm_supervisor.ports import Level, Note
from vllm_supervisor.runtime.facts import Configured
from vllm_supervisor.runtime.mail import Change, Reconfigured
from vllm_supervisor.runtime.outfit import Outfit
from vllm_supervisor.runtime.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class ReloadAsked:
    """What is wanted of a reload: a new engine where one is needed, or only to hear what would change."""

    restart: bool = False
    drain: bool = True
    dry_run: bool = False
    values: Mapping[str, str] | None = None
    """For a dry run: the values of another file, as `Plan.values` has them, instead of the daemon's own file."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload came to. The keys of `changes.engine` hold where `restarted`, once the new engine is launched."""

    changes: Changes
    dry_run: bool = False
    restarted: bool = False
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return what `POST /v1/reload` answers under `reload`."""
        rest = {"dry_run": self.dry_run, "restarted": self.restarted, "warnings": list(self.warnings)}
        return {name: list(keys) for name, keys in asdict(self.changes).items()} | rest


class ReloadRefusedError(Exception):
    """Raised when a reload comes at the wrong time; `why` is for the client. Nothing was changed."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class Hands:
    """What a reload needs of the world. `read` raises ConfigError."""

    read: Callable[[], Awaitable[Plan]]
    outfit: Callable[[Plan], Outfit]
    """Makes, and takes into use, all that belongs to the engine of this plan."""
    tune: Callable[[Plan], None]
    """Has whatever is beside the loop follow this plan at once, as far as it can."""
    during: Callable[[], AbstractAsyncContextManager[None]]
    """Lasts as long as a reload: the service manager is told of it."""
    wall: Callable[[], float]
    """Seconds since the epoch."""


class Reloader:
    """Takes new configurations in, one at a time. Who asks meanwhile waits, and is answered for the file as it is then.

    `plan` is what the daemon was started with.
    """

    def __init__(self, supervisor: Supervisor, plan: Plan, hands: Hands) -> None:
        self._supervisor = supervisor
        self._hands = hands
        self._begun_with = plan
        self._latest = plan
        """The last one that was valid: what can change at once is as it says."""
        self._fitted = plan
        """The one by which the engine is launched."""
        self._one = anyio.Lock()

    async def reload(self, asked: ReloadAsked) -> Reloaded:
        """Read the file and do what is asked. Raises ConfigError, and ReloadRefusedError; nothing is changed then."""
        if asked.values is not None:
            return Reloaded(self._changes(asked.values), dry_run=True)
        async with self._one:
            if asked.dry_run:
                plan = await self._hands.read()
                return Reloaded(self._changes(plan.values), dry_run=True, warnings=plan.warnings)
            async with self._hands.during():
                return await self._reload(asked)

    async def _reload(self, asked: ReloadAsked) -> Reloaded:
        try:
            plan = await self._hands.read()
        except ConfigError as error:
            self._refused(tuple(str(problem) for problem in error.problems))
            raise
        changes = self._changes(plan.values)
        item = Reconfigured(lambda: self._apply(plan), asked.restart, asked.drain)
        self._supervisor.post(item)
        await item.done.wait()
        if item.refused is not None:
            raise ReloadRefusedError(item.refused)
        fields: dict[str, object] = {name: list(keys) for name, keys in asdict(changes).items()}
        self._supervisor.post(Note("config_reloaded", fields={**fields, "restarted": item.restarted}))
        for warning in plan.warnings:
            self._supervisor.post(Note("config_warning", Level.WARNING, {"detail": warning}))
        return Reloaded(changes, restarted=item.restarted, warnings=plan.warnings)

    def _refused(self, problems: tuple[str, ...]) -> None:
        config = self._supervisor.facts.config
        if config is not None:
            self._supervisor.post(replace(config, refused=problems))
        self._supervisor.post(Note("config_refused", Level.ERROR, {"problems": list(problems)}))

    def _changes(self, values: Mapping[str, str]) -> Changes:
        """Compare with what holds, for each key with the configuration that it holds by."""
        return Changes(
            compare(self._latest.values, values).live,
            compare(self._fitted.values, values).engine,
            compare(self._begun_with.values, values).daemon,
        )

    def _apply(self, plan: Plan) -> Change:
        """Put `plan` into force. The loop calls it, so that no engine is launched in between."""
        changes = self._changes(plan.values)
        self._latest = plan
        self._hands.tune(plan)
        before = self._supervisor.facts.config
        config = Configured(before.path if before else "", self._hands.wall(), changes.engine, changes.daemon)
        follow = (lambda: self._follow(plan)) if changes.engine else None
        return Change(plan.policy, in_force(self._fitted.engine, plan.engine), config, follow)

    def _follow(self, plan: Plan) -> Outfit:
        outfit = self._hands.outfit(plan)
        self._fitted = plan
        return outfit
