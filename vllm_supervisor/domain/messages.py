"""What the machine hears and orders.

Events are facts that happened; those about a process carry the generation that they are about, and stale ones are
dropped first. Effects are one-shot orders; whatever has a duration is derived from the state by `machine.needs`.
"""

from dataclasses import dataclass

from vllm_supervisor.domain.model import Blocker, Cause, ExitStatus, Outcome, Phase, Policy, Sig, Verdict

# --- what operators ask for


@dataclass(frozen=True, slots=True)
class StartAsked:
    """The engine is wanted up."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The engine is wanted down; the daemon stays."""

    drain: bool = True


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """A new engine is wanted, whatever runs now."""

    cause: Cause = Cause.REQUESTED
    drain: bool = True


@dataclass(frozen=True, slots=True)
class ShutdownAsked:
    """The daemon is to end. A second one skips the drain."""


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Other numbers decide from now on: `policy` takes the place of the one that the step is given."""

    policy: Policy


# --- what happened to processes


@dataclass(frozen=True, slots=True)
class Adopted:
    """An engine of an earlier daemon of this instance was found alive."""

    generation: int
    pid: int
    leader_alive: bool


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing stands in the way of the launch."""

    generation: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something stands in the way of the launch, or the launcher could not be executed."""

    generation: int
    blocker: Blocker


@dataclass(frozen=True, slots=True)
class Spawned:
    """The launcher runs."""

    generation: int
    pid: int


@dataclass(frozen=True, slots=True)
class LeaderExited:
    """The leader is gone, and so are all its threads; other members may live."""

    generation: int
    status: ExitStatus


@dataclass(frozen=True, slots=True)
class Judged:
    """What the end of this generation, or a look at the living one, says about another start. Before `GroupEmpty`."""

    generation: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Condemned:
    """The engine is beyond help (`hang`, `startup_stall`); the evidence has been collected. It ends without a drain.

    With `restart.enabled: false` one that was ready is left running, as unhealthy.
    """

    generation: int
    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class Absolved:
    """An engine that was condemned, and left running, steps again."""

    generation: int


@dataclass(frozen=True, slots=True)
class GroupEmpty:
    """The leader and every other member are proven gone."""

    generation: int


# --- what probes learnt


@dataclass(frozen=True, slots=True)
class Probed:
    """A health probe ended. `latency` in seconds."""

    generation: int
    outcome: Outcome
    latency: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """The engine answered a real request through the whole path (or no rung of the ladder applies to it)."""

    generation: int


@dataclass(frozen=True, slots=True)
class Drained:
    """No request is running or waiting any more."""

    generation: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """`needs(state).wake_at` was reached."""


Event = (
    StartAsked
    | StopAsked
    | RestartAsked
    | ShutdownAsked
    | PolicyChanged
    | Adopted
    | Cleared
    | Blocked
    | Spawned
    | LeaderExited
    | Judged
    | Condemned
    | Absolved
    | GroupEmpty
    | Probed
    | Served
    | Drained
    | DeadlinePassed
)

ProcessEvent = (
    Cleared | Blocked | Spawned | LeaderExited | Judged | Condemned | Absolved | GroupEmpty | Probed | Served | Drained
)
"""Events that are about one generation."""


# --- effects


@dataclass(frozen=True, slots=True)
class Spawn:
    """Launch this generation. Answered by `Spawned` or `Blocked`."""

    generation: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Send to every member of this generation."""

    generation: int
    signal: Sig


@dataclass(frozen=True, slots=True)
class Record:
    """A transition, for logs, metrics, systemd and the recorder. Exactly one for each change of phase."""

    at: float
    generation: int
    before: Phase
    after: Phase
    seconds: float
    """Time spent in `before`."""
    cause: Cause | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Quit:
    """End the daemon with this status (0, 10 or 11)."""

    status: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request does not fit the state; it changed nothing."""

    why: str


Effect = Spawn | Signal | Record | Quit | Refuse
