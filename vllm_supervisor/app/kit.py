"""All that is made anew with the engine's configuration: how it is launched, asked, watched, and examined."""

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from vllm_supervisor.adapters import logtail
from vllm_supervisor.adapters.bundles import StoredBundles
from vllm_supervisor.adapters.cgroup import CgroupOomCounter
from vllm_supervisor.adapters.compilecache import TorchCompileCache
from vllm_supervisor.adapters.engine_http import HttpEngineClient
from vllm_supervisor.adapters.enginelog import EngineLog
from vllm_supervisor.adapters.gpu import NvmlGpus
from vllm_supervisor.adapters.journal import Journal, JournalLog
from vllm_supervisor.adapters.logreader import GenerationLog
from vllm_supervisor.adapters.process import EngineLauncher, StateLock
from vllm_supervisor.adapters.remains import SharedMemory
from vllm_supervisor.adapters.rotation import Rotation
from vllm_supervisor.adapters.startsigns import EngineSigns
from vllm_supervisor.adapters.statefiles.measurements import MeasurementFile
from vllm_supervisor.adapters.statefiles.starthistory import HistoryFile
from vllm_supervisor.adapters.statefiles.trackrecord import StoredTrackRecord
from vllm_supervisor.config.plan import Plan
from vllm_supervisor.domain.configuration import fingerprint
from vllm_supervisor.domain.masking import Mask
from vllm_supervisor.domain.model import Outcome
from vllm_supervisor.domain.spec import JOURNAL
from vllm_supervisor.domain.startup import arguments_digest
from vllm_supervisor.ports import Engine, Note, StartLog
from vllm_supervisor.runtime.advisor import Advisor
from vllm_supervisor.runtime.api import LogReader
from vllm_supervisor.runtime.ground import Ground
from vllm_supervisor.runtime.liveness import LivenessWatch
from vllm_supervisor.runtime.outfit import Outfit
from vllm_supervisor.runtime.postmortem import Instruments, PostMortem
from vllm_supervisor.runtime.startup import Senses, StartWatch
from vllm_supervisor.runtime.supervisor import Clock
from vllm_supervisor.runtime.work import Companions

LOOK_FACTOR = 3
"""How much longer than a health probe a look at `/metrics` may take: saturation must not pass for silence."""


@dataclass(frozen=True, slots=True)
class Household:
    """What one kit shares with the next: where time, notes, past events and figures come from and go to."""

    state_dir: Path
    lock: StateLock
    clock: Clock
    note: Callable[[Note], None]
    entries: Callable[[], bytes]
    """The flight recorder's."""
    canary: Callable[[Outcome, float], None]
    """Told of each canary that ended."""


class LogFile:
    """Implements `api.LogReader` on vLLM's log file."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def why_unread(self) -> None:
        """Return None: the file is this user's own."""

    async def tail(self, lines: int) -> bytes:
        """Return the last `lines` lines."""
        return await to_thread.run_sync(logtail.tail, self._path, lines)

    def follow(self, lines: int) -> AsyncIterator[bytes]:
        """Yield the last `lines` lines and what comes."""
        return logtail.follow(self._path, lines)


class Kit:
    """One configuration's. `before` is the kit that it follows. Raises SupervisorError as EngineLauncher does."""

    def __init__(self, plan: Plan, house: Household, before: "Kit | None" = None) -> None:
        self.plan = plan
        self.ground: Ground
        launch = plan.launch
        self.rotation = Rotation(launch.log_file, plan.log.max_bytes, plan.log.keep)
        self.launcher = EngineLauncher(
            launch, house.state_dir, note=house.note, rotate=self.rotation.at_rest, lock=house.lock
        )
        self._journal = Journal(os.environ, self.launcher.instance) if launch.log_file == JOURNAL else None
        self.log_reader: LogReader = self._journal or LogFile(launch.log_file)
        gpus = NvmlGpus(launch.env)
        self.ground = Ground(gpus, before.ground if before is not None else None)
        client = HttpEngineClient(plan.engine)
        self.advisor = Advisor(client, plan.advice, house.clock.now, gpus.utilization)
        post_mortem = self._post_mortem(gpus, house)
        self._start_watch = StartWatch(
            Senses(
                self._engine_log,
                EngineSigns(launch),
                gpus,
                post_mortem,
                MeasurementFile(house.state_dir, house.note),
                Mask(launch).text,
            ),
            HistoryFile(house.state_dir / "history.json", house.note),
            model=launch.model,
            arguments=arguments_digest(launch.argv),
            stall_timeout=plan.policy.stall_timeout,
            now=house.clock.now,
        )
        self._liveness = LivenessWatch(
            client,
            plan.liveness,
            house.clock.now,
            look_timeout=LOOK_FACTOR * plan.engine.probe_timeout,
            evidence=post_mortem,
            count=house.canary,
            seen=self.advisor.see,
        )
        companions = Companions(
            watch_start=self._start_watch.watch,
            watch_liveness=self._liveness,
            steps=lambda: self._liveness.steps,
            examine=post_mortem.examine,
            accompany=post_mortem.accompany,
            advice=self.advisor.told,
            clear_ground=self.ground.clear,
        )
        self.outfit = Outfit(self.launcher, client, plan.engine, companions, (self._start_watch, post_mortem))

    def _engine_log(self, engine: Engine) -> StartLog:
        if self._journal is not None:
            return JournalLog(self._journal, engine.log_start)
        return EngineLog(self.plan.launch.log_file, engine.log_start)

    def _post_mortem(self, gpus: NvmlGpus, house: Household) -> PostMortem:
        """Return what finds out why an engine ended."""
        launch = self.plan.launch
        part = None if self._journal is None else self._journal.part
        tools = Instruments(
            log=GenerationLog(launch.log_file, Mask(launch).text, self._journal),
            oom=CgroupOomCounter(),
            gpus=gpus,
            ground=self.ground,
            history=StoredTrackRecord(house.state_dir, fingerprint(launch), house.note),
            cache=TorchCompileCache(launch.env, launch.log_file, part),
            remains=SharedMemory(),
            bundles=StoredBundles(house.state_dir, launch, house.entries, house.clock.wall, journal=part),
        )
        return PostMortem(tools, house.clock.wall, house.note, launch.log_file)

    def tune(self, plan: Plan) -> None:
        """Go by the numbers of `plan` from now on, as far as they hold for the engine that runs."""
        self._start_watch.tune(plan.policy.stall_timeout)
        self._liveness.tune(plan.liveness, LOOK_FACTOR * plan.engine.probe_timeout)
        self.advisor.tune(plan.advice)
        self.rotation.limit(plan.log.max_bytes, plan.log.keep)
