"""After an end that nobody asked for: the cause, what it says about the next start, and the evidence, kept.

Nothing here may keep the next engine from being launched: every step is bounded, and its failure becomes a note.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial

import anyio

from vllm_supervisor.domain.diagnosis import Diagnosis, Observed
from vllm_supervisor.domain.ending import (
    Ending,
    cache_moved,
    context,
    heard,
    judge,
    why_retried,
    with_what_was_seen,
    without_us,
)
from vllm_supervisor.domain.member import Member, Portrait
from vllm_supervisor.domain.messages import Event, Judged, Record
from vllm_supervisor.domain.model import Cause, State, Verdict
from vllm_supervisor.ports import (
    CompileCache,
    CrashBundles,
    Engine,
    Gpus,
    Level,
    LogProblem,
    Note,
    OomCounter,
    PartOfLog,
    Remains,
    TrackRecord,
)
from vllm_supervisor.runtime.facts import LOG_NOT_READ, Examined, unread
from vllm_supervisor.runtime.ground import Ground
from vllm_supervisor.runtime.portraits import Row, in_short, process_table
from vllm_supervisor.runtime.tasks import Post, told

DIAGNOSIS_LIMIT = 2.0
"""Seconds for each of the steps between an engine's end and the next launch; they run within the backoff."""
BUNDLE_LIMIT = 3.0
REMOVAL_LIMIT = 3.0
PHOTOGRAPH_LIMIT = 15.0
PORTRAITS_LIMIT = 5.0
STARTING_PACE = 1.0
"""Seconds between looks at the members while starting, when shared memory is made."""
SERVING_PACE = 30.0
_WORKER = "VLLM::Worker"
"""How vLLM's processes of one GPU among several call themselves (0.10 and later)."""
COMPILE_FAILURE = "torch_compile_failure"


@dataclass(frozen=True, slots=True)
class Instruments:
    """What a post-mortem looks with."""

    log: PartOfLog
    oom: OomCounter
    gpus: Gpus
    ground: Ground
    history: TrackRecord
    cache: CompileCache
    remains: Remains
    bundles: CrashBundles


class PostMortem:
    """An Observer that knows how the engine ended, its companions, and the EvidenceCollector.

    `note` is told what happens outside an examination; `wall` gives seconds since the epoch. `log_file` is named to
    those who have to read it.
    """

    def __init__(
        self, tools: Instruments, wall: Callable[[], float], note: Callable[[Note], None], log_file: str
    ) -> None:
        self._log_file = log_file
        self._aside: tuple[str, ...] = ()
        self._tools = tools
        self._wall = wall
        self._note = note
        self._ending = Ending()
        self._ready = anyio.Event()
        self._oom_before: int | None = None
        self._members: tuple[Member, ...] = ()
        self._portraits: tuple[Portrait, ...] = ()
        self._seen_at: float | None = None
        self._told_unread = False
        self._stage: object = None
        self._ended_at: float | None = None

    # --- Observer

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:  # noqa: ARG002 -- Observer's shape
        """Take in what happened to the generation."""
        ending = heard(self._ending, before, event, after)
        if ending.generation != self._ending.generation:
            self._ready, self._oom_before, self._members = anyio.Event(), None, ()
            self._portraits, self._seen_at, self._ended_at = (), None, None
        if self._ended_at is None and ending.cause is not None:
            self._ended_at = self._wall()
        self._ending = ending
        if after.was_ready:
            self._ready.set()

    def recorded(self, record: Record) -> None:
        """Ignore: `stepped` has the whole state."""

    def noted(self, note: Note) -> None:
        """Take note that the log was found unreadable before, and of how far a start came."""
        self._stage = note.fields.get("phase") if note.kind == "start_phase" else self._stage
        self._told_unread = self._told_unread or note.kind == LOG_NOT_READ

    # --- while the engine lives

    async def accompany(self, engine: Engine, post: Post) -> None:
        """Look at the members now and then: what they use is to be known once they are gone."""
        self._oom_before = await self._tools.oom.read()
        ready = self._ready
        while not ready.is_set():
            # The wait comes first: an engine that ends at once has left nothing, and its end is not to be held up.
            with anyio.move_on_after(STARTING_PACE):
                await ready.wait()
                break
            await self._look(engine)
        # Before anything that takes time: an engine that was ready for a moment was ready.
        with told("proven", post):
            await self._tools.history.ready()
        while True:
            await self._look(engine)
            await anyio.sleep(SERVING_PACE)

    async def _look(self, engine: Engine) -> None:
        self._members = await engine.members()
        pids = frozenset(member.pid for member in self._members)
        await self._tools.remains.note(pids)
        await self._tools.ground.note(pids)
        # Last, and not for long: a process that is stuck may not let its command line be read.
        with anyio.move_on_after(PORTRAITS_LIMIT):
            self._portraits, self._seen_at = await engine.portraits(self._members), self._wall()

    async def collect(self, engine: Engine, cause: Cause, detail: str) -> None:
        """Photograph an engine that is about to be ended. Never raises."""
        with told("collect", self._note), anyio.move_on_after(PHOTOGRAPH_LIMIT):
            await self._look(engine)
            facts = {"cause": cause.value, "detail": detail, "at": self._time(), "gpus": await self._gpu_table()}
            try:
                path = await self._tools.bundles.photograph(engine.generation, facts, self._members)
            except OSError as error:
                self._note(Note("bundle_not_written", Level.WARNING, {"why": str(error)}))
            else:
                self._note(Note("evidence_kept", fields={"path": path}))

    # --- once it is gone

    async def examine(self, engine: Engine, post: Post) -> None:
        """Say what the end says, keep the evidence, and remove what was left."""
        ending = self._ending
        if ending.unasked and ending.generation == engine.generation:
            await self._examine(engine, ending, post)
        with told("remains", post), anyio.move_on_after(REMOVAL_LIMIT):
            removed = await self._tools.remains.remove()
            if removed:
                post(Note("remains_removed", fields={"files": list(removed)}))

    async def _examine(self, engine: Engine, ending: Ending, post: Post) -> None:
        diagnosis, beside = None, {}
        if ending.observed is Observed.STARTUP_TIMEOUT and self._stage is not None:
            ending = replace(ending, detail=f"{self._stage}: {ending.detail}")
        unread_why: str | None = "the log could not be read"
        with told("diagnose", post), anyio.move_on_after(DIAGNOSIS_LIMIT):
            oom_kills, xids = await self._oom_kills(), await self._tools.gpus.xids()
            beside = {"oom_kills": oom_kills, "xids": list(xids)}
            try:
                diagnosis = await self._tools.log.diagnose(engine.log_start, context(ending, oom_kills, xids))
            except OSError as error:  # somebody deleted the log, or put a folder there: no failure of ours
                unread_why = f"{unread_why} ({error.strerror or error})"
                post(_not_read(error))
            else:
                diagnosis = with_what_was_seen(without_us(diagnosis, ending), ending, several=self._several(engine))
                unread_why = self._tools.log.unread
        if self._tools.log.unread is not None and not self._told_unread:
            for item in unread(self._tools.log.unread):
                post(item)
        if diagnosis is not None and diagnosis.cls == COMPILE_FAILURE:
            with told("compile cache", post), anyio.move_on_after(DIAGNOSIS_LIMIT):
                diagnosis = await self._move_cache(engine, diagnosis, post)
        proven = self._tools.history.proven
        look = partial(judge, diagnosis, proven=proven, log_file=self._log_file, unread=unread_why)
        verdict = look()
        found = diagnosis.as_json() if diagnosis is not None else None
        post(_examined(engine.generation, verdict, ending, found))
        post(_note(ending, diagnosis))
        post(Judged(engine.generation, verdict))
        with told("bundle", post), anyio.move_on_after(BUNDLE_LIMIT):
            verdict_shown = {"retry": verdict.retry, "proven": verdict.proven}
            processes = self._processes(engine)
            report = {**self._report(ending, processes), **beside, "verdict": verdict_shown, "diagnosis": found}
            bundle = await self._bundle(engine, {**report, "gpus": await self._gpu_table()}, processes, post)
            if diagnosis is None:
                verdict = look(bundle=bundle)
                post(Judged(engine.generation, verdict))
                post(Examined(engine.generation, where_to_look=verdict.why))

    async def _oom_kills(self) -> int | None:
        after = await self._tools.oom.read()
        if after is None or self._oom_before is None:
            return None
        return max(0, after - self._oom_before)

    async def _move_cache(self, engine: Engine, diagnosis: Diagnosis, post: Post) -> Diagnosis:
        """Move the cache aside, but only once until readiness; return the diagnosis with what is left to do."""
        if not await self._tools.history.once(COMPILE_FAILURE):
            return cache_moved(diagnosis, self._aside, before=True)
        self._aside = await self._tools.cache.move_aside(engine.log_start)
        post(Note("compile_cache_moved", Level.WARNING, {"to": list(self._aside)}))
        return cache_moved(diagnosis, self._aside, before=False)

    async def _bundle(
        self, engine: Engine, report: Mapping[str, object], processes: Sequence[Row], post: Post
    ) -> str | None:
        try:
            path = await self._tools.bundles.write(engine.generation, report, processes, engine.log_start)
        except OSError as error:
            post(Note("bundle_not_written", Level.WARNING, {"why": str(error)}))
            post(Examined(engine.generation, bundle_lost=str(error)))
            return None
        post(Examined(engine.generation, bundle=path))
        post(Note("bundle_written", fields={"path": path}))
        return path

    def _several(self, engine: Engine) -> bool:
        return any(seen.name.startswith(_WORKER) for seen in (*engine.found, *self._portraits))

    def _processes(self, engine: Engine) -> list[Row]:
        """Return the process table: as the end found it, and what was seen in life of whoever went before."""
        ended_at, seen_at = (None if at is None else self._time(at) for at in (self._ended_at, self._seen_at))
        return process_table(engine.found, ended_at, self._portraits, seen_at)

    def _report(self, ending: Ending, processes: Sequence[Row]) -> dict[str, object]:
        return {
            "generation": ending.generation,
            "at": self._time(),
            "cause": ending.cause,
            "detail": ending.detail,
            "exit": {"code": ending.status.code, "signal": ending.status.signal},
            "was_ready": ending.was_ready,
            "killed_by_us": ending.killed,
            "observed": ending.observed or ("probes_failed" if ending.cause is Cause.UNHEALTHY else None),
            "members": in_short(processes),
        }

    async def _gpu_table(self) -> list[dict[str, object]] | None:
        gpus = await self._tools.gpus.look()
        return None if gpus is None else [asdict(gpu) for gpu in gpus]

    def _time(self, wall: float | None = None) -> str:
        return datetime.fromtimestamp(self._wall() if wall is None else wall, UTC).isoformat(timespec="milliseconds")


def _not_read(error: OSError) -> Note:
    missing = error.errno in {errno.ENOENT, errno.EISDIR}
    problem = LogProblem.MISSING if missing else LogProblem.NOT_READABLE
    return Note(LOG_NOT_READ, Level.WARNING, {"problem": problem.value, "detail": error.strerror or str(error)})


def _examined(generation: int, verdict: Verdict, ending: Ending, found: dict[str, object] | None) -> Examined:
    return Examined(
        generation,
        diagnosis=found,
        retry_why=why_retried(verdict),
        detail=ending.detail or None,
        where_to_look=verdict.why if found is None else None,
    )


def _note(ending: Ending, diagnosis: Diagnosis | None) -> Note:
    fields: dict[str, object] = {"class": "unknown" if diagnosis is None else diagnosis.cls}
    if diagnosis is not None:
        found = diagnosis.as_json()
        fields |= {name: found[name] for name in ("retry", "summary", "evidence", "line", "action", "secondary")}
    return Note("engine_diagnosed", Level.WARNING, {**fields, "cause": ending.cause})
