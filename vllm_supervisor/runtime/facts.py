"""What is known beyond the machine's state: learnt from its steps and from observations, never read to decide."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from vllm_supervisor.domain.ending import ailment
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.domain.liveness import Liveness
from vllm_supervisor.domain.member import Member
from vllm_supervisor.domain.messages import Adopted, Event, LeaderExited, Probed, Spawned
from vllm_supervisor.domain.model import RESTART_REASONS, Cause, ExitStatus, Outcome, State
from vllm_supervisor.domain.startup import StartupFigures
from vllm_supervisor.ports import Level, LogProblem, Note

LOG_NOT_READ = "log_not_read"


@dataclass(frozen=True, slots=True)
class Described:
    """What the engine says of itself at readiness and later."""

    generation: int
    models: tuple[str, ...] | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """A look at the engine's metrics; None when they could not be read."""

    generation: int
    metrics: EngineMetrics | None


@dataclass(frozen=True, slots=True)
class StartProgressed:
    """Where a start stands: `name` of the step, and what holds it up, in words."""

    generation: int
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StartMoved:
    """Where a start stands, as its watch sees it: `name` of the phase, how far that has come, and the whole start.

    `progress` and `ratio` are 0..1; `ready_by` is when it will be ready, monotonic seconds. None: not known.
    """

    generation: int
    name: str
    detail: str = ""
    progress: float | None = None
    ratio: float = 0.0
    ready_by: float | None = None


@dataclass(frozen=True, slots=True)
class Printed:
    """Figures that the engine printed while it started."""

    generation: int
    figures: StartupFigures


@dataclass(frozen=True, slots=True)
class LogUnread:
    """The engines' log cannot be read; `why` in words for the operator, None where it can be."""

    why: str | None


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found out about how this generation ended; what is None is not known (yet)."""

    generation: int
    diagnosis: Mapping[str, object] | None = None
    bundle: str | None = None
    retry_why: str | None = None
    detail: str | None = None
    where_to_look: str | None = None
    bundle_lost: str | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of the engine's stepping. `stepped_at` is monotonic; `canary` the last one's seconds."""

    generation: int
    verdict: Liveness
    evidence: str
    stepped_at: float
    canary: float | None = None


@dataclass(frozen=True, slots=True)
class Configured:
    """The configuration that holds: its file, and when it was read (wall time, seconds since the epoch).

    `pending` and `pending_daemon` are the keys whose new values wait for another engine, or another daemon. `refused`
    is what is wrong with the file that the last reload found, a line each; empty after a good one.
    """

    path: str
    loaded_at: float
    pending: tuple[str, ...] = ()
    pending_daemon: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


Fact = Described | Looked | StartProgressed | StartMoved | Printed | LogUnread | Examined | Watched


def unread(why: str) -> tuple[LogUnread, Note]:
    """Return what is to be posted of a log that cannot be read: for the status, and for everybody."""
    fields = {"problem": LogProblem.NOT_READABLE.value, "detail": why}
    return LogUnread(why), Note(LOG_NOT_READ, Level.WARNING, fields)


@dataclass(frozen=True, slots=True)
class LastExit:
    """How the last engine ended. `at` is wall time, seconds since the epoch."""

    status: ExitStatus
    at: float
    reason: Cause | None
    diagnosis: Mapping[str, object] | None = None
    """The object of `diagnose --json`, where a cause was found."""
    bundle: str | None = None
    """The folder with the evidence."""
    retry_why: str | None = None
    """Why a cause that stays did not end the tries, in words for the operator."""
    detail: str | None = None
    """What was seen of it that made us end it, in words."""
    where_to_look: str | None = None
    """That no cause is known, and where one may be found, in words for the operator."""
    bundle_lost: str | None = None
    """Why there is no bundle."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Knowledge for those who ask. Never read to decide about the engine."""

    last_exit: LastExit | None = None
    starts: int = 0
    restarts: Mapping[Cause, int] = field(default_factory=lambda: dict.fromkeys(RESTART_REASONS, 0))
    since_wall: float = 0.0
    last_ok_at: float | None = None
    latency: float | None = None
    ailment: str = ""
    """What the last health probe that failed saw."""
    progress: StartProgressed | None = None
    moved: StartMoved | None = None
    figures: StartupFigures | None = None
    log_unread: str | None = None
    """Why the engines' log cannot be read. What has once been found so stays so until another log is configured."""
    described: Described | None = None
    metrics: EngineMetrics | None = None
    watched: Watched | None = None
    survivors: tuple[Member, ...] = ()
    """Members that SIGKILL did not end."""
    config: Configured | None = None


def learn_step(facts: Facts, before: State, event: Event, after: State, now: float, wall: float) -> Facts:
    """Return the facts after one step of the machine."""
    if after.phase is not before.phase:
        facts = replace(facts, since_wall=wall)
    if after.process is None and before.process is not None:
        # Nobody is left to have a load.
        facts = replace(facts, metrics=None, watched=None, survivors=())
    if after.generation != before.generation or isinstance(event, Adopted):
        facts = replace(facts, last_ok_at=None, latency=None, progress=None, described=None, metrics=None, watched=None)
        facts = replace(facts, moved=None, figures=None)
    match event:
        case Adopted() if not event.leader_alive and after.process is not None:
            return replace(facts, last_exit=LastExit(ExitStatus(), wall, after.cause))
        case Spawned() if before.spawning:
            restarts = dict(facts.restarts)
            if before.next_cause is not None:
                restarts[before.next_cause] += 1
            return replace(facts, starts=facts.starts + 1, restarts=restarts)
        case LeaderExited() if before.leader_alive and event.generation == before.generation:
            return replace(facts, last_exit=LastExit(event.status, wall, after.cause))
        case Probed() if event.generation == after.generation and event.outcome is Outcome.OK:
            return replace(facts, last_ok_at=now, latency=event.latency)
        case Probed() if (seen := ailment(before, event)) is not None:
            return replace(facts, ailment=seen)
        case _:
            return facts


def learn_fact(facts: Facts, fact: Fact) -> Facts:
    """Return the facts after an observation of the current generation."""
    match fact:
        case Described():
            known = facts.described or Described(fact.generation)
            described = replace(known, models=fact.models or known.models, version=fact.version or known.version)
            return replace(facts, described=described)
        case Looked():
            return replace(facts, metrics=fact.metrics)
        case Watched():
            return replace(facts, watched=fact)
        case StartProgressed():
            return replace(facts, progress=fact)
        case StartMoved():
            return replace(facts, moved=fact)
        case Printed():
            return replace(facts, figures=fact.figures)
        case LogUnread():
            return replace(facts, log_unread=fact.why)
        case Examined():
            if facts.last_exit is None:
                return facts
            last = facts.last_exit
            last = replace(
                last,
                diagnosis=fact.diagnosis or last.diagnosis,
                bundle=fact.bundle or last.bundle,
                retry_why=fact.retry_why or last.retry_why,
                detail=fact.detail or last.detail,
                where_to_look=fact.where_to_look or last.where_to_look,
                bundle_lost=fact.bundle_lost or last.bundle_lost,
            )
            return replace(facts, last_exit=last)
        case _:
            assert_never(fact)
