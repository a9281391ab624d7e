"""Words of the house: phases, intents, outcomes, and the machine's state.

Durations are seconds as floats; `at`, `since`, `deadline` are absolute monotonic seconds of the caller's clock.
"""

from dataclasses import dataclass
from enum import StrEnum

from vllm_supervisor.domain.retry import Retry


class Phase(StrEnum):
    """Where the machine stands. Richer than what the public sees; see `public_state`."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    STOPPING = "stopping"
    KILLING = "killing"
    REAPING = "reaping"
    BACKOFF = "backoff"
    FAILED = "failed"
    EXITED = "exited"


class PublicState(StrEnum):
    """The states that users, scripts and metrics see."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


_PUBLIC = {
    Phase.KILLING: PublicState.STOPPING,
    Phase.REAPING: PublicState.STOPPING,
    Phase.EXITED: PublicState.STOPPED,
}


def public_state(phase: Phase) -> PublicState:
    """Return the public state that stands for `phase`."""
    return _PUBLIC.get(phase) or PublicState(phase.value)


class Intent(StrEnum):
    """What the operator wants, apart from what is."""

    UP = "up"
    DOWN = "down"
    EXIT = "exit"


class Sig(StrEnum):
    """The two signals that the machine orders; adapters know their numbers."""

    TERM = "SIGTERM"
    KILL = "SIGKILL"


class Cause(StrEnum):
    """Why an engine is being ended, or why it ended. The first cause wins."""

    CRASH = "crash"
    HANG = "hang"
    UNHEALTHY = "unhealthy"
    STARTUP_STALL = "startup_stall"
    REQUESTED = "requested"
    CONFIG = "config"
    STOP = "stop"
    """An operator's stop, or the daemon's own end."""
    LEFTOVER = "leftover"
    """An engine of an earlier daemon of this instance."""


RESTART_REASONS = (
    Cause.CRASH,
    Cause.HANG,
    Cause.UNHEALTHY,
    Cause.STARTUP_STALL,
    Cause.REQUESTED,
    Cause.CONFIG,
)
"""The label values of `restarts_total{reason}`."""

FAULTS = frozenset({Cause.CRASH, Cause.HANG, Cause.UNHEALTHY, Cause.STARTUP_STALL})
"""Causes that count as failures; the others are somebody's wish."""


class Outcome(StrEnum):
    """What a health probe learnt. Our own failure to ask (`UNKNOWN`) is not the target's failure."""

    OK = "ok"
    REFUSED = "refused"
    """Nothing listens, or the connection was reset: dead, or not there yet."""
    ERROR = "error"
    """An answer other than 2xx. vLLM 0.11 and later answers 503 on a dead engine, 0.9 and 0.10 answer 500."""
    TIMEOUT = "timeout"
    """No answer in time: perhaps dead, perhaps only busy."""
    BUSY = "busy"
    """No answer in time, while the engine's counters moved: alive."""
    UNKNOWN = "unknown"
    """The probe could not be made (out of descriptors, for one)."""


DEAD_OUTCOMES = frozenset({Outcome.REFUSED, Outcome.ERROR})
"""Evidence that the engine is gone, rather than slow."""


class BlockerKind(StrEnum):
    """What kept a launch from being made. A blocked launch is no start and is retried without limit."""

    PORT = "port"
    LAUNCHER = "launcher"
    LOG_FILE = "log_file"
    STATE_DIR = "state_dir"
    SPAWN = "spawn"
    GPU = "gpu"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Blocker:
    """What keeps the engine from being launched, in words for the operator."""

    kind: BlockerKind
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a leader ended: exactly one of both is set, or none where the kernel would not tell (not our child)."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.code is not None:
            return f"exit {self.code}"
        return f"signal {self.signal}" if self.signal is not None else "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the end of an engine says about the next start.

    `proven` says that this very configuration has been ready on this host before: then no single failure ends it.
    """

    retry: Retry | None
    """None where nothing is known of the cause."""
    why: str = ""
    """The cause and its remedy, in words for the operator."""
    proven: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """The process tree of one generation. It exists until it is proven gone."""

    pid: int
    leader_alive: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that decide. Seconds unless said otherwise; names are those of the configuration."""

    restart_enabled: bool = True
    min_backoff: float = 1.0
    max_backoff: float = 60.0
    healthy_reset: float = 600.0
    never_ready_limit: int = 5
    retry_failed_every: float = 0.0
    exit_when_failed: bool = False
    startup_timeout: float | None = None
    stall_timeout: float = 900.0
    """How long nothing may move while the engine starts; see `domain.startup`."""
    probe_interval: float = 5.0
    failure_threshold: int = 3
    restart_after: float = 30.0
    drain_timeout: float = 30.0
    stop_grace: float = 30.0

    startup_probe_interval: float = 0.15
    """Health is asked often while starting, so that readiness is seen at once."""
    dead_probe_interval: float = 1.0
    """Pace of the probes once one found the engine dead: readiness must not be advertised for 3 x 5 s more."""
    self_exit_grace: float = 10.0
    """How long an engine that answers 503 may take to exit by itself. vLLM 0.32: gone 5.1 s after (measured)."""
    term_interval: float = 3.0
    """SIGTERM is repeated: vLLM loses one that arrives while the EngineCore starts (8 of 8 tries, 0.32.0)."""
    kill_interval: float = 1.0
    kill_timeout: float = 30.0
    """How long members may survive SIGKILL before they count as unkillable."""


@dataclass(frozen=True, slots=True)
class State:
    """All that the machine knows. Only `machine.step` makes a new one."""

    phase: Phase = Phase.STOPPED
    intent: Intent = Intent.DOWN
    generation: int = 0
    """Number of the current or last launch; strictly increasing, also across daemons."""
    since: float = 0.0
    """When the phase was entered."""
    process: Process | None = None
    spawning: bool = False
    """A launch was ordered and its answer is outstanding."""
    deadline: float | None = None
    signal_due: float | None = None
    """When the last signal is to be repeated."""
    draining: bool = False
    cause: Cause | None = None
    """Why the current engine ends; the first one wins."""
    next_cause: Cause | None = None
    """Why the next launch is a restart; None for a first start."""
    verdict: Verdict | None = None
    """What is known of this generation's end."""
    ended_at: float | None = None
    """When the leader was seen to be gone; the delay before the next launch counts from here."""
    was_ready: bool = False
    """This generation has been ready."""
    ready_since: float | None = None
    launched_at: float | None = None
    probe_failures: int = 0
    dead_since: float | None = None
    """First of the current run of probes that found the engine dead."""
    stuck: bool = False
    """It steps no more and is left running, because nothing may be restarted; no health answer makes it ready."""
    failures: int = 0
    """Ends in a row that nobody asked for."""
    never_ready: int = 0
    """Starts in a row that never got ready."""
    blocked: int = 0
    """Launches in a row that were blocked."""
    blocker: Blocker | None = None
    fail_why: str | None = None
    """Why the phase is FAILED, in words for the operator."""

    @property
    def leader_alive(self) -> bool:
        """Whether this generation's leader runs."""
        return self.process is not None and self.process.leader_alive

    @property
    def occupied(self) -> bool:
        """Whether an engine exists, or may yet come of a launch that is out: none may be launched beside it."""
        return self.process is not None or self.spawning


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be going on in a state. The loop starts and ends tasks so that it is; nothing is scheduled."""

    wake_at: float | None = None
    clearing: bool = False
    """Checks before a launch: port, launcher, log file."""
    starting_probe: bool = False
    serving_probe: bool = False
    start_watch: bool = False
    """Whether the start still moves is being watched."""
    liveness_watch: bool = False
    """Whether the engine still steps is being watched."""
    probe_interval: float = 0.0
    draining: bool = False
    proving: bool = False
    """Waiting for the last member to go, the leader being gone."""
