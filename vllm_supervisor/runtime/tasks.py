"""What goes on while a state lasts: probes, checks before a launch, drain, watching the leader, proof of the end.

Each is a coroutine that posts what it learns and is cancelled when the state no longer needs it. They read nothing of
the machine; `Supervisor` starts and ends them as `machine.needs` says.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import anyio

from vllm_supervisor.domain.engine import EngineMetrics, ProbeResult, Warmup, moved
from vllm_supervisor.domain.messages import (
    Blocked,
    Cleared,
    Drained,
    Event,
    GroupEmpty,
    LeaderExited,
    Probed,
    Served,
)
from vllm_supervisor.domain.model import Blocker, BlockerKind, Outcome
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.ports import Engine, EngineClient, Launcher, Level, Note
from vllm_supervisor.runtime.facts import Described, Fact, Looked, StartProgressed

Post = Callable[[Event | Fact | Note], None]

DRAIN_INTERVAL = 0.25
SLOW_RETRY = 1.0
"""Pause after an answer that will not change within milliseconds: a wrong key, a 5xx, a missing model."""


async def clear(
    launcher: Launcher,
    generation: int,
    ground: Callable[[Post], Awaitable[Blocker | None]] | None,
    post: Post,
) -> None:
    """Check what could stand in the way of the launch."""
    try:
        blocker = await ground(post) if ground is not None else None
        blocker = blocker or await launcher.check()
    except Exception as error:  # noqa: BLE001 -- the check's own failure must not end the daemon: it becomes the answer
        blocker = Blocker(BlockerKind.INTERNAL, f"the check before the launch failed: {error!r}", "see the log")
    post(Cleared(generation) if blocker is None else Blocked(generation, blocker))


async def watch_leader(engine: Engine, post: Post) -> None:
    """Tell when the leader is gone."""
    status = await engine.wait_leader()
    post(LeaderExited(engine.generation, status))


async def prove(
    engine: Engine,
    launcher: Launcher,
    examine: Callable[[Engine, Post], Awaitable[None]] | None,
    post: Post,
) -> None:
    """Tell when no member is left, and what the end says."""
    await engine.wait_gone()
    if examine is not None:
        # Its failure must not keep the next engine from being launched.
        with told("examine", post):
            await examine(engine, post)
    # Only now: a daemon that is killed within leaves the examination to the next one.
    with told("forget", post):
        launcher.forget(engine.generation)
    post(GroupEmpty(engine.generation))


@contextmanager
def told(where: str, post: Callable[[Note], None]) -> Iterator[None]:
    """Turn a failure of our own into a note, where what follows matters more (a full disk, for one)."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- that is what this is for
        post(Note("internal_error", Level.ERROR, {"where": where, "error": repr(error)}))


class Prober:
    """Asks one generation's engine. Keeps the last look at its counters, by which slow is told from dead.

    `steps` counts the steps that somebody else saw, who waits longer for `/metrics` than a probe does.
    """

    def __init__(
        self,
        engine: Engine,
        client: EngineClient,
        spec: EngineSpec,
        post: Post,
        steps: Callable[[], int] | None = None,
    ) -> None:
        self._engine = engine
        self._client = client
        self._spec = spec
        self._post = post
        self._steps = steps
        self._seen_steps = steps() if steps is not None else 0
        self._generation = engine.generation
        self._last: EngineMetrics | None = None
        self._told: set[str] = set()
        self._described = False
        self._listed: tuple[str, ...] | None = None
        """What the engine said that it serves, once that sufficed."""

    def adapt(self, spec: EngineSpec) -> None:
        """Ask the same engine as `spec` says from now on, and tell which of its new aliases have no target."""
        fresh = spec.aliases.items() - self._spec.aliases.items()
        self._spec = spec
        if self._listed is not None:
            self._tell_missing_aliases(self._listed, dict(fresh))

    async def watch_start(self, interval: float) -> None:
        """Ask until the engine has served; each hurdle is told once."""
        while True:
            probe = await self._client.health()
            self._post(Probed(self._generation, probe.outcome, probe.latency, probe.detail))
            pause = interval
            if probe.outcome is Outcome.OK:
                hurdle = await self._hurdle()
                if hurdle is None:
                    self._post(Served(self._generation))
                    return
                pause = max(interval, SLOW_RETRY)
            await anyio.sleep(pause)

    async def _hurdle(self) -> str | None:
        """Take the steps from `/health` 200 to served; return what is in the way, or None."""
        if await self._engine.owns_listener(self._spec.port) is False:
            return self._not_ready("foreign_listener", f"port {self._spec.port} is served by another process")
        models = await self._client.models()
        if models.names is None:
            kind = "unauthorized" if models.status in (401, 403) else "models_unreadable"
            return self._not_ready(kind, models.detail)
        if self._spec.model not in models.names:
            listed = ", ".join(models.names) or "nothing"
            return self._not_ready("model_missing", f"/v1/models lists {listed}, not {self._spec.model}")
        if self._spec.warmup:
            self._post(StartProgressed(self._generation, "warming_up"))
            warmup = await self._client.warm_up()
            if warmup.result is Warmup.UNAUTHORIZED:
                return self._not_ready("unauthorized", warmup.detail)
            if warmup.result is Warmup.NOT_YET:
                return self._not_ready("warmup_failed", warmup.detail)
            if warmup.result is Warmup.UNSUPPORTED:
                self._tell("warmup_unsupported", Level.WARNING, warmup.detail)
        self._listed = models.names
        self._tell_missing_aliases(models.names, self._spec.aliases)
        self._post(Described(self._generation, models=models.names))
        return None

    def _not_ready(self, kind: str, detail: str) -> str:
        self._post(StartProgressed(self._generation, "warming_up", detail))
        self._tell(kind, Level.WARNING, detail)
        return detail

    def _tell(self, kind: str, level: Level, detail: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._post(Note(kind, level, {"detail": detail}))

    def _tell_missing_aliases(self, names: tuple[str, ...], aliases: Mapping[str, str]) -> None:
        for alias, target in aliases.items():
            if target not in names:
                detail = f"{target} is not served, so {alias} is not advertised"
                self._post(
                    Note("alias_target_missing", Level.WARNING, {"alias": alias, "target": target, "detail": detail})
                )

    async def watch_serving(self, interval: float) -> None:
        """Probe a ready engine for as long as it is wanted."""
        if not self._described:
            await self._look()
            version = await self._client.version()
            self._post(Described(self._generation, version=version))
            self._described = True
        while True:
            await anyio.sleep(interval)
            await self._probe()

    async def _probe(self) -> None:
        probe, stepped = await (self._ask_alone() if self._steps is None else self._ask_watched(self._steps))
        if probe.outcome is Outcome.TIMEOUT and stepped:
            probe = replace(probe, outcome=Outcome.BUSY)
        self._post(Probed(self._generation, probe.outcome, probe.latency, probe.detail))

    async def _ask_watched(self, steps: Callable[[], int]) -> tuple[ProbeResult, bool]:
        """Ask for health. Somebody else looks at the figures and counts steps, perhaps not while an answer is late."""
        before = self._seen_steps
        seen = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._compare, seen)
            probe = await self._client.health()
            group.cancel_scope.cancel()
        self._seen_steps = steps()
        return probe, seen.is_set() or self._seen_steps > before

    async def _compare(self, seen: anyio.Event) -> None:
        """Look again and again once an answer is late, until a step is seen."""
        pause = min(1.0, self._spec.probe_timeout / 4)
        await anyio.sleep(pause)
        first = await self._client.metrics()
        while not seen.is_set():
            await anyio.sleep(pause)
            if moved(first, await self._client.metrics()):
                seen.set()

    async def _ask_alone(self) -> tuple[ProbeResult, bool]:
        """Ask for health and figures at once: an engine that answers neither would take two timeouts a probe."""
        before = self._last
        async with anyio.create_task_group() as group:
            group.start_soon(self._look)
            probe = await self._client.health()
        return probe, moved(before, self._last)

    async def _look(self) -> EngineMetrics | None:
        metrics = await self._client.metrics()
        if metrics is not None:
            self._last = metrics
        self._post(Looked(self._generation, metrics))
        return metrics

    async def watch_drain(self) -> None:
        """Tell when no request is running or waiting.

        Two looks in a row must agree: the gauges lag a request that has just been accepted. Without gauges
        (`--disable-log-stats`) the drain lasts its whole time, unless nobody listens any more.
        """
        quiet = 0
        while True:
            metrics = await self._look()
            if metrics is not None and metrics.running is not None:
                quiet = quiet + 1 if metrics.running + (metrics.waiting or 0) == 0 else 0
            elif (await self._client.health()).outcome is Outcome.REFUSED:
                break
            else:
                quiet = 0
            if quiet > 1:
                break
            await anyio.sleep(DRAIN_INTERVAL)
        self._post(Drained(self._generation))
