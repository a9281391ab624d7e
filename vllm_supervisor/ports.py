"""What the loop needs from the outside world, as Protocols. Adapters implement them, and so do the tests' fakes.

Every awaitable here may be cancelled at any time and then leaves nothing behind, unless it says otherwise.
"""

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from vllm_supervisor.domain.capacity.measured import Key, Measured
from vllm_supervisor.domain.diagnosis import Context, Diagnosis
from vllm_supervisor.domain.engine import EngineMetrics, ModelList, ProbeResult, Scrape, WarmupResult
from vllm_supervisor.domain.member import Member, Portrait
from vllm_supervisor.domain.messages import Event, Record
from vllm_supervisor.domain.model import Blocker, Cause, ExitStatus, Sig, State
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.domain.startup import Activity, Download, PastStarts


class Engine(Protocol):
    """The process tree of one generation: the leader's descendants, its session and group, and the marker's bearers."""

    @property
    def generation(self) -> int:
        """The launch that this tree belongs to."""
        ...

    @property
    def pid(self) -> int:
        """The leader."""
        ...

    @property
    def leader_alive(self) -> bool:
        """False where only other members were found (a leftover)."""
        ...

    @property
    def log_start(self) -> int:
        """Where this generation's part of the log begins, for those who read the log; 0 where unknown.

        In a file its size in bytes at the launch; in the journal the generation, which the first line names.
        """
        ...

    async def wait_leader(self) -> ExitStatus:
        """Return how the leader ended, as soon as it has, all its threads included. Several callers may wait."""
        ...

    async def signal(self, signal: Sig) -> int:
        """Signal every living member once, and return how many were reached. Never raises for one that is gone."""
        ...

    async def wait_gone(self) -> None:
        """Return when no member is alive. The leader is waited for first; zombies of ours are reaped on the way."""
        ...

    async def members(self) -> tuple[Member, ...]:
        """Return the members alive now."""
        ...

    async def portraits(self, members: Sequence[Member]) -> tuple[Portrait, ...]:
        """Return what those of `members` that still live are doing. Takes its time where one is stuck."""
        ...

    @property
    def found(self) -> tuple[Portrait, ...]:
        """The members, dead ones included, as the first signal of ours found them, without commands; empty before."""
        ...

    async def owns_listener(self, port: int) -> bool | None:
        """Say whether a socket listening on `port` belongs to a member; None where that cannot be read."""
        ...


class Launcher(Protocol):
    """Brings an engine into being, and finds what an earlier daemon left."""

    async def check(self) -> Blocker | None:
        """Say what stands in the way of a launch now: port taken, launcher missing, log file not writable."""
        ...

    async def spawn(self, generation: int) -> Engine:
        """Launch. Raises LaunchError, and then no process is left behind. Not cancelled half-way."""
        ...

    async def leftover(self) -> Engine | None:
        """Return the engine of an earlier, dead daemon of this instance, if it lives or nobody examined its end.

        In the latter case it has no members: what ended it is to be read in its log.
        Raises AlreadyRunningError where that daemon lives: then the engine is not ours to touch.
        """
        ...

    def forget(self, generation: int) -> None:
        """Note that this generation is gone and its end examined, so that no later daemon looks for either."""
        ...


class EvidenceCollector(Protocol):
    """Keeps what a living engine shows, before it is ended."""

    async def collect(self, engine: Engine, cause: Cause, detail: str) -> None:
        """Photograph an engine that is about to be condemned. Never raises, and ends by itself within seconds."""
        ...


class PartOfLog(Protocol):
    """The engine's log, from where a generation's part begins."""

    @property
    def unread(self) -> str | None:
        """Say in words why this log cannot be read; None where it can be, or nobody knows yet."""
        ...

    async def diagnose(self, start: int, context: Context) -> Diagnosis | None:
        """Name the cause that the log from byte `start` shows, None where it shows none; bounded in time.

        `line` counts from there. Nothing in it is secret. Raises OSError where the log cannot be read.
        """
        ...


class OomCounter(Protocol):
    """The cgroup's count of processes that the kernel killed for memory."""

    async def read(self) -> int | None:
        """Return the count; None where there is none. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A process that the driver lists on a GPU. `name` is None where no such process lives here; `used` in bytes."""

    pid: int
    name: str | None
    used: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the engine may use. Memory in bytes."""

    index: int
    name: str
    used: int
    total: int
    holders: tuple[GpuHolder, ...] = ()


class Gpus(Protocol):
    """The driver's view of the GPUs."""

    async def look(self) -> tuple[Gpu, ...] | None:
        """Return the GPUs that the engine may use; None where the driver cannot be asked, and then at no cost."""
        ...

    async def xids(self) -> tuple[int, ...]:
        """Return the Xid events since the last call."""
        ...


class TrackRecord(Protocol):
    """What this host has seen of the configuration that is launched."""

    @property
    def proven(self) -> bool:
        """Whether it has been ready here."""
        ...

    async def ready(self) -> None:
        """Note that it has been ready now. Raises OSError where that cannot be kept beyond this daemon."""
        ...

    async def once(self, what: str) -> bool:
        """Return True the first time that `what` is asked for since the configuration was last ready."""
        ...


class CompileCache(Protocol):
    """The compiled graphs that the engine keeps between its starts."""

    async def move_aside(self, log_start: int) -> tuple[str, ...]:
        """Move away what the log from byte `log_start` says this model uses, and return where to. Raises OSError."""
        ...


class Remains(Protocol):
    """What an engine leaves outside its processes: shared memory, sockets."""

    async def note(self, pids: Iterable[int]) -> None:
        """Look at what these living members use. Never raises."""
        ...

    async def remove(self) -> tuple[str, ...]:
        """Remove what only the noted members used, now that they are gone, and return it. Never raises."""
        ...


class CrashBundles(Protocol):
    """Folders with the evidence of one end each; old ones make room."""

    async def photograph(self, generation: int, facts: Mapping[str, object], members: Iterable[Member]) -> str:
        """Keep `facts`, and what the members are doing; return the folder. Raises OSError, and leaves nothing then."""
        ...

    async def write(
        self,
        generation: int,
        report: Mapping[str, object],
        processes: Sequence[Mapping[str, object]],
        log_start: int,
    ) -> str:
        """Keep the rest of this generation's evidence; return the folder. Raises OSError, and adds nothing then.

        `processes` is its process table, which counts where no photograph was taken.
        """
        ...


class EngineClient(Protocol):
    """Asks the engine over HTTP, each time on a new connection; never raises for what the other side does."""

    def adapt(self, spec: EngineSpec) -> None:
        """Ask as `spec` says from now on. It is about the same engine: address, key and model are as before."""
        ...

    async def health(self) -> ProbeResult:
        """Ask the health path, for at most the probe's timeout."""
        ...

    async def models(self) -> ModelList:
        """Ask `/v1/models`, for at most the probe's timeout."""
        ...

    async def warm_up(self) -> WarmupResult:
        """Have one token (or embedding) made. No time limit: the caller cancels."""
        ...

    async def metrics(self) -> EngineMetrics | None:
        """Read `/metrics`, for at most the probe's timeout; None when it could not be read."""
        ...

    async def scrape(self, seconds: float) -> Scrape:
        """Read `/metrics`, for at most `seconds`, and say what came of it."""
        ...

    async def canary(self, rank: str | None = None) -> ProbeResult:
        """Have one token (or embedding) made, by that data-parallel rank if one is named. No time limit: cancelled."""
        ...

    async def load(self) -> int | None:
        """Ask `/load`: requests inside the API server, a canary included; 0 where it does not count them."""
        ...

    async def suspended(self) -> bool | None:
        """Ask whether the engine is paused or asleep; None where it has no such endpoint. No answer counts as no."""
        ...

    async def version(self) -> str | None:
        """Ask `/version`; None when it does not say."""
        ...


class StartLog(Protocol):
    """One generation's part of the engine's log, read as it grows."""

    @property
    def unread(self) -> str | None:
        """Say in words why this log cannot be read; None where it can be, or nobody knows yet."""
        ...

    async def read(self) -> Sequence[str]:
        """Return the lines that came since the last call, bounded: of a flood, the latest. Raises OSError."""
        ...


class StartSigns(Protocol):
    """What tells, beside the log, that a start moves."""

    async def download(self) -> Download | None:
        """Look at the model's weights in the cache; None where none are kept for it (a folder, an object store)."""
        ...

    async def activity(self, members: Sequence[Member]) -> Activity:
        """Look at what the engine's processes spent and left behind."""
        ...


class StartHistory(Protocol):
    """Remembers the starts of this host that got ready. Never raises: what cannot be read or written is lost."""

    def load(self) -> PastStarts:
        """Return what is remembered."""
        ...

    def save(self, starts: PastStarts) -> None:
        """Remember it."""
        ...


class Measurements(Protocol):
    """Remembers what starts that got ready took of the GPUs. Never raises: what cannot be written is lost."""

    def keep(self, key: Key, figures: Measured) -> None:
        """Remember it in the place of what was known of such a start."""
        ...


class LogProblem(StrEnum):
    """What is wrong with the engine's log: a fixed, small set, which metrics count by."""

    MISSING = "missing"
    """Somebody deleted the file to which the engine writes."""
    DISK_FULL = "disk_full"
    NOT_WRITABLE = "not_writable"
    NOT_READABLE = "not_readable"
    """The journal, where this user may not read it."""
    OTHER = "other"


_LOG_PROBLEMS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), LogProblem.DISK_FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), LogProblem.NOT_WRITABLE),
}


def log_problem(number: int | None) -> LogProblem:
    """Return what kind of trouble an errno means for who writes the log."""
    return _LOG_PROBLEMS.get(number or 0, LogProblem.OTHER)


class Level(StrEnum):
    """How loud a note is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth telling that changes no phase: `kind` is a short constant, the data goes in `fields`."""

    kind: str
    level: Level = Level.INFO
    fields: Mapping[str, object] = field(default_factory=dict)


class Observer(Protocol):
    """Is told what happens, in order, from the loop. Must not wait and must not raise."""

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:
        """Take note of one step of the machine."""
        ...

    def recorded(self, record: Record) -> None:
        """Take note of a change of phase."""
        ...

    def noted(self, note: Note) -> None:
        """Take note of anything else."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a Unix socket (SO_PEERCRED)."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request, complete. `peer` is None for TCP."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer: Peer | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response. A body that is an iterator is streamed until it ends or the client goes away."""

    status: int
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str = "application/json"


Handler = Callable[[Request], Awaitable[Response]]
