"""The composition root: a configuration becomes a running daemon, and its end becomes an exit status."""

import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from structlog.typing import FilteringBoundLogger

from vllm_supervisor import __version__
from vllm_supervisor.adapters import http1, logs, logtail, rotation, selfcheck, sockets, systemd
from vllm_supervisor.adapters.bundles import StoredBundles
from vllm_supervisor.adapters.cgroup import CgroupOomCounter
from vllm_supervisor.adapters.compilecache import TorchCompileCache
from vllm_supervisor.adapters.engine_http import HttpEngineClient
from vllm_supervisor.adapters.enginelog import EngineLog
from vllm_supervisor.adapters.gpu import NvmlGpus
from vllm_supervisor.adapters.journal import Journal, JournalLog
from vllm_supervisor.adapters.logreader import GenerationLog
from vllm_supervisor.adapters.process import EngineLauncher, become_subreaper, lock_state_dir, normalize_signals
from vllm_supervisor.adapters.prometheus import PrometheusObserver
from vllm_supervisor.adapters.remains import SharedMemory
from vllm_supervisor.adapters.startsigns import EngineSigns
from vllm_supervisor.adapters.statefiles.starthistory import HistoryFile
from vllm_supervisor.adapters.statefiles.trackrecord import StoredTrackRecord
from vllm_supervisor.config.plan import ControlPlan, Plan
from vllm_supervisor.domain.configuration import fingerprint
from vllm_supervisor.domain.masking import Mask
from vllm_supervisor.domain.messages import ShutdownAsked, StartAsked
from vllm_supervisor.domain.spec import JOURNAL
from vllm_supervisor.domain.startup import arguments_digest
from vllm_supervisor.errors import SupervisorError
from vllm_supervisor.ports import Engine, EvidenceCollector, Level, Note, Observer, Request, StartLog
from vllm_supervisor.runtime.advisor import Advisor
from vllm_supervisor.runtime.api import Api, LogReader
from vllm_supervisor.runtime.ground import Ground
from vllm_supervisor.runtime.headline import Headline
from vllm_supervisor.runtime.liveness import LivenessWatch
from vllm_supervisor.runtime.postmortem import Instruments, PostMortem
from vllm_supervisor.runtime.readiness import EndingNotice, ReadinessNotice
from vllm_supervisor.runtime.recorder import Recorder
from vllm_supervisor.runtime.startup import Senses, StartWatch
from vllm_supervisor.runtime.supervisor import Clock, Supervisor
from vllm_supervisor.runtime.work import Companions

LOOK_FACTOR = 3
"""How much longer than a health probe a look at `/metrics` may take: saturation must not pass for silence."""


_NOTIFY_RETRY = 0.1
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(plan: Plan) -> int:
    """Run the daemon until it is told to end. Raises SupervisorError where it cannot begin."""
    normalize_signals()
    logger = logs.configure(plan.logging.format, plan.logging.level)
    with ExitStack() as held:
        daemon = Daemon(plan, logger, held)
        try:
            return anyio.run(daemon.run, backend="asyncio", backend_options={"use_uvloop": True})
        except BaseExceptionGroup as failures:
            told = failures.subgroup(SupervisorError)
            if told is None:
                raise
            raise _first(told) from None


def _first(failures: BaseExceptionGroup[SupervisorError]) -> SupervisorError:
    """Return what a task group wrapped: a user reads one line, whatever task it came from."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, SupervisorError):
        raise TypeError(error)
    return error


@contextmanager
def _deaf_afterwards() -> Iterator[None]:
    """Ignore, once left, what was heard before: a loop that hears no more lets a late signal kill us half put away."""
    try:
        yield
    finally:
        for number in _HEARD:
            signal.signal(number, signal.SIG_IGN)


def _open_control(plan: ControlPlan, passed: Iterable[tuple[str, socket.socket]]) -> sockets.ControlSocket:
    for _, sock in passed:
        return sockets.adopt_control(sock)
    group = None if plan.group is None else str(plan.group)
    return sockets.bind_control(plan.path, mode=plan.mode, group=group)


class LogFile:
    """Implements `api.LogReader` on vLLM's log file."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def tail(self, lines: int) -> bytes:
        """Return the last `lines` lines."""
        return await to_thread.run_sync(logtail.tail, self._path, lines)

    def follow(self, lines: int) -> AsyncIterator[bytes]:
        """Yield the last `lines` lines and what comes."""
        return logtail.follow(self._path, lines)


class Daemon:
    """Everything that one daemon consists of. What it holds (locks, sockets) is let go by `held`."""

    def __init__(self, plan: Plan, logger: FilteringBoundLogger, held: ExitStack) -> None:
        self._plan = plan
        self._logger = logger
        self._status = 0
        self._notifier = systemd.Notifier(os.environ)
        self._journal: Journal | None = None
        passed = systemd.listen_fds(os.environ)
        state_dir = Path(plan.state_dir)
        held.enter_context(lock_state_dir(state_dir))
        self._control = _open_control(plan.control, passed)
        held.callback(self._control.close)
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
            await group.start(self._take_signals, supervisor)
            # The engine before the sockets: no client shall see a state from before the daemon began. Connections
            # wait in the backlogs until then.
            await group.start(self._own, supervisor, group.cancel_scope)
            serve = partial(
                http1.serve,
                peer_of=sockets.peer_of,
                on_request=self._count_requests(api),
                on_error=self._request_failed,
            )
            await group.start(serve, [self._control.socket], api.control)
            if self._metrics is not None:
                await group.start(serve, [self._metrics], api.public)
            group.start_soon(self._tell_ready)
            group.start_soon(self._keep_watchdog, supervisor)
            if self._plan.launch.log_file != JOURNAL:
                group.start_soon(rotation.keep, self._rotation, lambda: supervisor.state.leader_alive, supervisor.post)
            self._announce()
        self._logger.info("ended", status=self._status)
        return self._status

    async def _own(
        self, supervisor: Supervisor, everything: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        """Own the engine until told to end; the control socket answers until then, and ends with us."""
        self._status = await supervisor.run(task_status=task_status)
        self._notifier.stopping("stopped")
        everything.cancel()

    async def _tell_ready(self) -> None:
        """Tell systemd that the service is up, until it takes it: a start whose READY is lost would time out."""
        if not self._notifier.present or self._plan.ready_when != "daemon":
            return
        while not self._notifier.ready("control socket answers"):  # noqa: ASYNC110 -- nobody says when it has read
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

    def _compose(self) -> tuple[Supervisor, Api]:
        plan, spec = self._plan, self._plan.engine
        clock = Clock(now=time.monotonic, wall=time.time, u=random.SystemRandom().random)
        recorder = Recorder(clock.wall)
        log_observer = logs.LogObserver(self._logger)
        self._prometheus = PrometheusObserver(__version__, clock.now())
        headline = Headline(self._notifier.status, lambda: supervisor.facts)
        observers: list[Observer] = [recorder, log_observer, self._prometheus, headline]
        observers.append(EndingNotice(self._notifier.extend_timeout))
        if plan.ready_when == "engine":
            observers.append(ReadinessNotice(self._notifier.ready, self._notifier.extend_timeout))

        def note(message: Note) -> None:
            for observer in observers:
                observer.noted(message)

        self._rotation = rotation.Rotation(plan.launch.log_file, plan.log.max_bytes, plan.log.keep)
        launcher = EngineLauncher(plan.launch, Path(plan.state_dir), note=note, rotate=self._rotation.at_rest)
        if plan.launch.log_file == JOURNAL:
            self._journal = Journal(os.environ, launcher.instance)
        client = HttpEngineClient(spec)
        ground = Ground(gpus := NvmlGpus(plan.launch.env))
        advisor = Advisor(client, plan.advice, clock.now, gpus.utilization)
        post_mortem = self._post_mortem(gpus, ground, recorder, clock, note)
        start_watch = self._start_watch(gpus, clock, note, post_mortem)
        observers += [start_watch, post_mortem]
        supervisor = Supervisor(
            launcher,
            client,
            spec,
            plan.policy,
            observers,
            clock,
            companions=self._companions(client, clock, start_watch, post_mortem, ground, advisor),
            last_generation=launcher.last_generation(),
        )

        def exposition() -> bytes:
            described = supervisor.facts.described
            self._prometheus.described(spec.model, spec.revision, described.version if described else None)
            moved, watched = supervisor.facts.moved, supervisor.facts.watched
            self._prometheus.started_so_far(moved.ratio if moved else 0.0)
            at = clock.wall() - (clock.now() - watched.stepped_at) if watched else None
            self._prometheus.recommended(advisor.recommended)
            self._prometheus.progressed(at, watched.canary if watched else None)
            return self._prometheus.exposition(clock.now())

        admins = {0, os.geteuid(), *plan.control.admins}
        return supervisor, Api(supervisor, recorder, self._log_reader(), exposition, admins, advisor)

    def _log_reader(self) -> LogReader:
        return self._journal if self._journal is not None else LogFile(self._plan.launch.log_file)

    def _engine_log(self, engine: Engine) -> StartLog:
        if self._journal is not None:
            return JournalLog(self._journal, engine.log_start)
        return EngineLog(self._plan.launch.log_file, engine.log_start)

    def _post_mortem(
        self, gpus: NvmlGpus, ground: Ground, recorder: Recorder, clock: Clock, note: Callable[[Note], None]
    ) -> PostMortem:
        """Return what finds out why an engine ended."""
        launch, state_dir = self._plan.launch, Path(self._plan.state_dir)
        part = None if self._journal is None else self._journal.part
        tools = Instruments(
            log=GenerationLog(launch.log_file, Mask(launch).text, self._journal),
            oom=CgroupOomCounter(),
            gpus=gpus,
            ground=ground,
            history=StoredTrackRecord(state_dir, fingerprint(launch), note),
            cache=TorchCompileCache(launch.env, launch.log_file, part),
            remains=SharedMemory(),
            bundles=StoredBundles(state_dir, launch, recorder.entries, clock.wall, journal=part),
        )
        return PostMortem(tools, clock.wall, note, launch.log_file)

    def _start_watch(
        self, gpus: NvmlGpus, clock: Clock, note: Callable[[Note], None], evidence: EvidenceCollector
    ) -> StartWatch:
        """Return what watches starts."""
        plan, launch = self._plan, self._plan.launch
        return StartWatch(
            Senses(self._engine_log, EngineSigns(launch), gpus, evidence),
            HistoryFile(Path(plan.state_dir) / "history.json", note),
            model=launch.model,
            arguments=arguments_digest(launch.argv),
            stall_timeout=plan.policy.stall_timeout,
            now=clock.now,
        )

    def _companions(
        self,
        client: HttpEngineClient,
        clock: Clock,
        start_watch: StartWatch,
        post_mortem: PostMortem,
        ground: Ground,
        advisor: Advisor,
    ) -> Companions:
        """Return what accompanies an engine besides its probes."""
        plan = self._plan
        watch_liveness = LivenessWatch(
            client,
            plan.liveness,
            clock.now,
            look_timeout=LOOK_FACTOR * plan.engine.probe_timeout,
            evidence=post_mortem,
            count=partial(self._prometheus.probed, "canary"),
            seen=advisor.see,
        )
        return Companions(
            watch_start=start_watch.watch,
            watch_liveness=watch_liveness,
            steps=lambda: watch_liveness.steps,
            examine=post_mortem.examine,
            accompany=post_mortem.accompany,
            advice=advisor.told,
            clear_ground=ground.clear,
        )

    def _count_requests(self, api: Api) -> Callable[[Request, int, float], None]:
        def counted(request: Request, status: int, seconds: float) -> None:
            del seconds
            self._prometheus.requested(api.route(request.path), status)

        return counted

    def _request_failed(self, request: Request | None, error: BaseException) -> None:
        where = request.path if request else "accept"
        self._logger.error("request_failed", route=where, error=repr(error))

    async def _take_signals(self, supervisor: Supervisor, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with _deaf_afterwards(), anyio.open_signal_receiver(*_HEARD) as signals:
            task_status.started()
            async for signum in signals:
                name = signal.Signals(signum).name
                if signum == signal.SIGHUP:
                    detail = "this version cannot reload; use restart of the service for a new configuration"
                    supervisor.post(Note("signal_ignored", Level.WARNING, {"signal": name, "detail": detail}))
                    continue
                supervisor.post(Note("signal_received", Level.INFO, {"signal": name}))
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
