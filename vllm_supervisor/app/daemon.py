"""The daemon: sockets, signals, the service manager, and the loop that owns the engine."""

import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from structlog.typing import FilteringBoundLogger

from vllm_supervisor import __version__
from vllm_supervisor.adapters import http1, logs, memory, rotation, selfcheck, sockets, systemd
from vllm_supervisor.adapters.hearing import Hearing
from vllm_supervisor.adapters.process import become_subreaper, lock_state_dir, normalize_signals
from vllm_supervisor.adapters.prometheus import PrometheusObserver
from vllm_supervisor.app import upkeep
from vllm_supervisor.app.kit import Household, Kit
from vllm_supervisor.config.plan import ControlPlan, Plan
from vllm_supervisor.config.reading import Source
from vllm_supervisor.domain.messages import ShutdownAsked, StartAsked
from vllm_supervisor.domain.model import Blocker
from vllm_supervisor.domain.spec import JOURNAL
from vllm_supervisor.errors import ConfigError, ExitCode, Problem, first_of
from vllm_supervisor.ports import Level, Note, Observer, Request
from vllm_supervisor.runtime.api import Api, LogReader
from vllm_supervisor.runtime.facts import Configured, LogUnread, unread
from vllm_supervisor.runtime.headline import Headline
from vllm_supervisor.runtime.outfit import Outfit
from vllm_supervisor.runtime.readiness import EndingNotice, ReadinessNotice
from vllm_supervisor.runtime.recorder import Recorder
from vllm_supervisor.runtime.reload import Hands, ReloadAsked, Reloader, ReloadRefusedError
from vllm_supervisor.runtime.supervisor import Clock, Supervisor
from vllm_supervisor.runtime.tasks import told

_NOTIFY_RETRY = 0.1
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTIFY_LIMIT = 5.0
"""Seconds for which a service manager that does not read is told that a reload is over."""
_READ_LIMIT = 60.0
"""Seconds for reading a configuration anew; it takes half of one."""


def main(plan: Plan, source: Source) -> int:
    """Run the daemon until it is told to end. Reloads read `source`. Raises SupervisorError where it cannot begin."""
    memory.bound_the_heap()
    normalize_signals()
    logger = logs.configure(plan.logging.format, plan.logging.level)
    with ExitStack() as held:
        hearing = Hearing(*_HEARD)
        held.callback(hearing.ignore)
        daemon = Daemon(plan, source, logger, held, hearing)
        try:
            return anyio.run(daemon.run, backend="asyncio", backend_options={"use_uvloop": True})
        except BaseExceptionGroup as failures:
            told = first_of(failures)
            if told is None:
                raise
            raise told from None


def _admins(plan: Plan) -> frozenset[int]:
    return frozenset({0, os.geteuid(), *plan.control.admins})


def _open_control(plan: ControlPlan, passed: Iterable[tuple[str, socket.socket]]) -> sockets.ControlSocket:
    for _, sock in passed:
        return sockets.adopt_control(sock)
    group = None if plan.group is None else str(plan.group)
    return sockets.bind_control(plan.path, mode=plan.mode, group=group)


class CurrentLog:
    """Implements `api.LogReader` on the log of whichever configuration holds when it is asked."""

    def __init__(self, current: Callable[[], LogReader]) -> None:
        self._current = current

    async def why_unread(self) -> str | None:
        """Say why the log cannot be read; None where it can be."""
        return await self._current().why_unread()

    async def tail(self, lines: int) -> bytes:
        """Return the last `lines` lines."""
        return await self._current().tail(lines)

    def follow(self, lines: int) -> AsyncIterator[bytes]:
        """Yield the last `lines` lines and what comes."""
        return self._current().follow(lines)


class Daemon:
    """Everything that one daemon consists of. What it holds (locks, sockets) is let go by `held`."""

    def __init__(
        self, plan: Plan, source: Source, logger: FilteringBoundLogger, held: ExitStack, hearing: Hearing
    ) -> None:
        self._plan = plan
        self._source = source
        self._logger = logger
        self._hearing = hearing
        self._status = 0
        self._notifier = systemd.Notifier(os.environ)
        self._told_ready = False
        self._gave_up = False
        self._refitted = anyio.Event()
        """Another kit was taken into use."""
        passed = systemd.listen_fds(os.environ)
        state_dir = Path(plan.state_dir)
        self._lock = held.enter_context(lock_state_dir(state_dir))
        self._control = _open_control(plan.control, passed)
        held.callback(self._control.close)
        held.enter_context(sockets.signpost(os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0], self._control))
        self._metrics: socket.socket | None = None
        if plan.metrics.enabled:
            self._metrics = held.enter_context(sockets.bind_tcp(plan.metrics.host, plan.metrics.port))

    async def run(self) -> int:
        """Serve the control socket, own the engine, and return the exit status."""
        become_subreaper()
        supervisor, api = self._compose()
        supervisor.post(StartAsked())
        async with anyio.create_task_group() as group:
            # Signals before the engine: one that comes while it is launched must not end us without it.
            hangups, heard = anyio.create_memory_object_stream[None](1)
            group.start_soon(self._heed_hangups, supervisor, heard)
            await group.start(self._take_signals, supervisor, hangups)
            # The engine before the sockets: no client shall see a state from before the daemon began. Connections
            # wait in the backlogs until then.
            await group.start(self._own, supervisor, group.cancel_scope)
            serve = partial(
                http1.serve,
                peer_of=sockets.peer_of,
                on_request=self._count_requests(api),
                on_error=self._request_failed,
            )

            async def serve_control(listener: socket.socket) -> None:
                await group.start(serve, [listener], api.control)

            await serve_control(self._control.socket)
            if self._metrics is not None:
                await group.start(serve, [self._metrics], api.public)
            group.start_soon(self._tell_ready)
            group.start_soon(self._keep_watchdog, supervisor)
            group.start_soon(self._keep_log, supervisor)
            group.start_soon(upkeep.keep_state_dir, self._hold_state_dir, supervisor.post)
            group.start_soon(upkeep.keep_control, self._control, serve_control, supervisor.post)
            self._announce()
            memory.set_apart_what_stays()
        self._logger.info("ended", status=self._status)
        return self._status

    async def _own(
        self, supervisor: Supervisor, everything: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        """Own the engine until told to end; the control socket answers until then, and ends with us."""
        self._status = await supervisor.run(task_status=task_status)
        if self._gave_up and self._status == ExitCode.OK:
            self._status = ExitCode.FAILED
        self._notifier.stopping(self._headline.text if self._status else "stopped")
        everything.cancel()

    async def _tell_ready(self) -> None:
        """Tell systemd that the service is up, until it takes it: a start whose READY is lost would time out."""
        if not self._notifier.present or self._plan.ready_when != "daemon":
            return
        while not self._say_ready("control socket answers"):  # noqa: ASYNC110 -- nobody says when it has read
            await anyio.sleep(_NOTIFY_RETRY)

    async def _keep_watchdog(self, supervisor: Supervisor) -> None:
        """Tell systemd that we live, for as long as the loop turns and the control socket answers, and not longer."""
        interval = self._notifier.watchdog_interval
        if interval is None:
            return
        while True:
            with anyio.move_on_after(interval):
                await supervisor.pulse()
                if await selfcheck.answers(self._control.path):
                    self._notifier.watchdog()
            await anyio.sleep(interval / 2)

    def _give_up(self, supervisor: Supervisor) -> None:
        """End, as systemd waits for an engine that will not come: its start fails at once, and stays failed."""
        if self._notifier.present:
            self._gave_up = True
            supervisor.post(ShutdownAsked())

    def _say_ready(self, status: str) -> bool:
        self._told_ready |= self._notifier.ready(status)
        return self._told_ready

    async def _keep_log(self, supervisor: Supervisor) -> None:
        """Rotate the log that the engine writes to, wherever that is by now, and tell whether it can be read."""
        while True:
            kit, refitted = self._kit, self._refitted
            async with anyio.create_task_group() as group:
                group.start_soon(self._tell_unread, kit.log_reader, supervisor)
                if kit.plan.launch.log_file != JOURNAL:
                    group.start_soon(
                        rotation.keep, kit.rotation, lambda: supervisor.state.leader_alive, supervisor.post
                    )
                await refitted.wait()
                group.cancel_scope.cancel()

    async def _tell_unread(self, log: LogReader, supervisor: Supervisor) -> None:
        """Tell at once, and not at the end of the first engine, that nobody will know its cause."""
        with told("log", supervisor.post):
            why = await log.why_unread()
            if why is not None and supervisor.facts.log_unread == why:
                return  # the end of an engine was faster
            for item in (LogUnread(None),) if why is None else unread(why):
                supervisor.post(item)

    async def _hold_state_dir(self) -> Blocker | None:
        return await self._kit.launcher.hold()

    def _compose(self) -> tuple[Supervisor, Api]:
        plan = self._plan
        clock = Clock(now=time.monotonic, wall=time.time, u=random.SystemRandom().random)
        recorder = Recorder(clock.wall)
        self._prometheus = PrometheusObserver(__version__, clock.now())
        observers: list[Observer] = [recorder, logs.LogObserver(self._logger), self._prometheus]
        self._headline = Headline(self._notifier.status, lambda: supervisor.facts)
        observers.append(self._headline)
        observers.append(EndingNotice(self._notifier.extend_timeout))
        if plan.ready_when == "engine":
            observers.append(
                ReadinessNotice(self._say_ready, self._notifier.extend_timeout, lambda: self._give_up(supervisor))
            )

        def note(message: Note) -> None:
            for observer in observers:
                observer.noted(message)

        canary = partial(self._prometheus.probed, "canary")
        self._house = Household(Path(plan.state_dir), self._lock, clock, note, recorder.entries, canary)
        self._kit = Kit(plan, self._house)
        supervisor = Supervisor(
            self._kit.outfit,
            plan.policy,
            observers,
            clock,
            last_generation=self._kit.launcher.last_generation(),
            config=Configured(str(self._source.path), clock.wall()),
        )
        self._reloader = Reloader(supervisor, plan, self._hands(clock))
        log = CurrentLog(lambda: self._kit.log_reader)
        exposition = partial(self._exposition, supervisor, clock)
        self._api = Api(supervisor, recorder, log, exposition, self._reloader.reload, partial(self._advise, supervisor))
        self._api.admit(_admins(plan))
        return supervisor, self._api

    def _exposition(self, supervisor: Supervisor, clock: Clock) -> bytes:
        facts, spec, figures = supervisor.facts, supervisor.spec, self._prometheus
        figures.described(spec.model, spec.revision, facts.described.version if facts.described else None)
        figures.started_so_far(facts.moved.ratio if facts.moved else 0.0)
        at = clock.wall() - (clock.now() - facts.watched.stepped_at) if facts.watched else None
        figures.recommended(self._kit.advisor.recommended(supervisor.state.generation))
        figures.progressed(at, facts.watched.canary if facts.watched else None)
        return figures.exposition(clock.now())

    async def _advise(self, supervisor: Supervisor, window: float | None, concurrency: int | None) -> dict[str, object]:
        return await self._kit.advisor.ask(lambda: supervisor.state.generation, window, concurrency)

    # --- reloads

    def _hands(self, clock: Clock) -> Hands:
        return Hands(self._read, self._outfit, self._tune, self._during_reload, clock.wall)

    async def _read(self) -> Plan:
        """Read the configuration as it is now, without holding up anything."""
        try:
            reading = await to_thread.run_sync(self._source.begin)
        except OSError as error:
            why = f"it could not be read: {error.strerror}"
            raise ConfigError((Problem(str(self._source.path), "", why, "try again"),)) from None
        try:
            return await to_thread.run_sync(reading.result, _READ_LIMIT, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            reading.abandon()
            raise

    def _outfit(self, plan: Plan) -> Outfit:
        self._kit = Kit(plan, self._house, self._kit)
        refitted, self._refitted = self._refitted, anyio.Event()
        refitted.set()
        return self._kit.outfit

    def _tune(self, plan: Plan) -> None:
        self._kit.tune(plan)
        self._api.admit(_admins(plan))
        logs.set_level(plan.logging.level)

    @asynccontextmanager
    async def _during_reload(self) -> AsyncIterator[None]:
        """Tell systemd of a reload. Before READY, its end would pass for that."""
        if not self._told_ready:
            yield
            return
        self._notifier.reloading()
        try:
            yield
        finally:
            with anyio.move_on_after(_NOTIFY_LIMIT, shield=True):
                while not self._notifier.reloaded():  # noqa: ASYNC110 -- nobody says when it has read
                    await anyio.sleep(_NOTIFY_RETRY)

    async def _heed_hangups(self, supervisor: Supervisor, heard: MemoryObjectReceiveStream[None]) -> None:
        """Reload at each SIGHUP. What comes of it is told as an event, in the log and in systemd's STATUS."""
        async for _ in heard:
            with told("reload", supervisor.post), suppress(ConfigError, ReloadRefusedError):
                await self._reloader.reload(ReloadAsked())

    def _count_requests(self, api: Api) -> Callable[[Request, int, float], None]:
        def counted(request: Request, status: int, seconds: float) -> None:
            del seconds
            self._prometheus.requested(api.route(request.path), status)

        return counted

    def _request_failed(self, request: Request | None, error: BaseException) -> None:
        where = request.path if request else "accept"
        self._logger.error("request_failed", route=where, error=repr(error))

    async def _take_signals(
        self,
        supervisor: Supervisor,
        hangups: MemoryObjectSendStream[None],
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        task_status.started()
        async for number in self._hearing.heard():
            supervisor.post(Note("signal_received", Level.INFO, {"signal": number.name}))
            if number is signal.SIGHUP:
                # One that is not served yet will read what this one is about.
                with suppress(anyio.WouldBlock):
                    hangups.send_nowait(None)
            else:
                supervisor.post(ShutdownAsked())

    def _announce(self) -> None:
        for warning in self._plan.warnings:
            self._logger.warning("configuration", detail=warning)
        metrics = ""
        if self._metrics is not None:
            host, port = self._metrics.getsockname()[:2]
            metrics = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        self._logger.info("started", version=__version__, socket=self._control.path, metrics=metrics or None)
        if not logs.under_journal(sys.stderr, os.environ):
            # For whoever started us by hand; a reader who left, or one who does not read, must not end or hold us.
            logs.Sink(sys.stdout).write(self._greeting(metrics))

    def _greeting(self, metrics: str) -> str:
        path = self._control.path
        program = "vllm-supervisor" if shutil.which("vllm-supervisor") else sys.argv[0]
        lines = [
            f"control socket  {path}",
            f"metrics         {metrics or 'off'}",
            f"vLLM's log      {self._plan.launch.log_file}",
            "",
            "Next, in another terminal:",
            f"  {program} wait --socket {path}",
            f"  {program} status --socket {path}",
            f"  {program} --help",
        ]
        return "\n".join(lines)
