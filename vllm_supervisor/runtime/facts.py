"""What is known beyond the machine's state, and the status object that both add up to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import assert_never

from vllm_supervisor import __version__
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.domain.messages import Adopted, Event, LeaderExited, Probed, Spawned
from vllm_supervisor.domain.model import RESTART_REASONS, Cause, ExitStatus, Outcome, Phase, State, public_state
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.ports import Member

Json = dict[str, object]


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


Fact = Described | Looked | StartProgressed


@dataclass(frozen=True, slots=True)
class LastExit:
    """How the last engine ended. `at` is wall time, seconds since the epoch."""

    status: ExitStatus
    at: float
    reason: Cause | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Knowledge for those who ask. Never read to decide about the engine."""

    last_exit: LastExit | None = None
    starts: int = 0
    restarts: Mapping[Cause, int] = field(default_factory=lambda: dict.fromkeys(RESTART_REASONS, 0))
    since_wall: float = 0.0
    last_ok_at: float | None = None
    latency: float | None = None
    progress: StartProgressed | None = None
    described: Described | None = None
    metrics: EngineMetrics | None = None
    survivors: tuple[Member, ...] = ()
    """Members that SIGKILL did not end."""


def learn_step(facts: Facts, before: State, event: Event, after: State, now: float, wall: float) -> Facts:
    """Return the facts after one step of the machine."""
    if after.phase is not before.phase:
        facts = replace(facts, since_wall=wall)
    if after.process is None and before.process is not None:
        # Nobody is left to have a load.
        facts = replace(facts, metrics=None, survivors=())
    if after.generation != before.generation or isinstance(event, Adopted):
        facts = replace(facts, last_ok_at=None, latency=None, progress=None, described=None, metrics=None)
    match event:
        case Spawned() if before.spawning:
            restarts = dict(facts.restarts)
            if before.next_cause is not None:
                restarts[before.next_cause] += 1
            return replace(facts, starts=facts.starts + 1, restarts=restarts)
        case LeaderExited() if before.leader_alive and event.generation == before.generation:
            return replace(facts, last_exit=LastExit(event.status, wall, after.cause))
        case Probed() if event.generation == after.generation and event.outcome is Outcome.OK:
            return replace(facts, last_ok_at=now, latency=event.latency)
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
        case StartProgressed():
            return replace(facts, progress=fact)
        case _:
            assert_never(fact)


def advertised_models(state: State, facts: Facts, spec: EngineSpec) -> list[tuple[str, str]]:
    """Return (name, served name) of what clients may ask for: nothing until ready.

    An alias is advertised only when the engine lists its target.
    """
    if state.phase is not Phase.READY or facts.described is None or facts.described.models is None:
        return []
    served = facts.described.models
    names = {name: name for name in served}
    names |= {alias: target for alias, target in spec.aliases.items() if target in served}
    return list(names.items())


def status(state: State, facts: Facts, spec: EngineSpec, now: float) -> Json:
    """Return the object of `GET /v1/status`."""
    return {
        "version": __version__,
        "state": public_state(state.phase).value,
        "ready": state.phase is Phase.READY,
        "intent": state.intent.value,
        "generation": state.generation,
        "model": spec.model,
        "revision": spec.revision,
        "base_url": spec.base_url,
        "concurrency": spec.concurrency,
        "timeout": spec.timeout,
        "pid": state.process.pid if state.leader_alive and state.process else None,
        "since": _rfc3339(facts.since_wall),
        "uptime_s": _seconds(now - state.launched_at) if state.launched_at is not None and state.process else None,
        "phase": _phase(state, facts),
        "restarts": {
            "total": sum(facts.restarts.values()),
            "by_reason": {cause.value: count for cause, count in facts.restarts.items()},
            "consecutive": state.failures,
        },
        "next_start_in_s": _next_start(state, now),
        "last_exit": _last_exit(facts.last_exit),
        "probe": {
            "last_ok_age_s": None if facts.last_ok_at is None else _seconds(now - facts.last_ok_at),
            "consecutive_failures": state.probe_failures,
            "latency_s": _seconds(facts.latency),
        },
        "liveness": {"verdict": None, "last_progress_age_s": None, "last_canary_s": None},
        "engine": _engine(state, facts, spec),
        "load": _load(facts.metrics),
        "blocker": None
        if state.blocker is None
        else {"kind": state.blocker.kind.value, "why": state.blocker.why, "remedy": state.blocker.remedy},
        "fail_why": state.fail_why,
        "survivors": named(facts.survivors),
    }


def named(members: Sequence[Member]) -> list[Json]:
    """Return members as they are shown: pid, name and the kernel's letter for their state."""
    return [{"pid": member.pid, "name": member.name, "state": member.state} for member in members]


def _phase(state: State, facts: Facts) -> Json:
    name, detail = state.phase.value, None
    if state.phase is Phase.STARTING:
        name = facts.progress.name if facts.progress else "launching"
        detail = facts.progress.detail or None if facts.progress else None
    elif state.draining:
        name = "draining"
    elif state.phase is Phase.BACKOFF and state.blocker is not None:
        detail = state.blocker.why
    elif state.phase is Phase.FAILED:
        detail = ", ".join([state.fail_why or "", *(f"{m.name} (pid {m.pid}, {m.state})" for m in facts.survivors)])
    return {"name": name, "progress": None, "detail": detail, "eta_s": None}


def _next_start(state: State, now: float) -> float | None:
    if state.phase not in (Phase.BACKOFF, Phase.FAILED) or state.deadline is None:
        return None
    return _seconds(max(0.0, state.deadline - now))


def _last_exit(last: LastExit | None) -> Json | None:
    if last is None:
        return None
    return {
        "code": last.status.code,
        "signal": last.status.signal,
        "at": _rfc3339(last.at),
        "reason": last.reason.value if last.reason else None,
        "diagnosis": None,
    }


def _engine(state: State, facts: Facts, spec: EngineSpec) -> Json:
    described, metrics = facts.described, facts.metrics
    return {
        "vllm_version": described.version if described else None,
        "models": [name for name, _ in advertised_models(state, facts, spec)],
        "kv_cache_tokens": metrics.kv_cache_tokens if metrics else None,
        "max_concurrency": metrics.max_concurrency if metrics else None,
    }


def _load(metrics: EngineMetrics | None) -> Json:
    return {
        "running": metrics.running if metrics else None,
        "waiting": metrics.waiting if metrics else None,
        "kv_cache_usage": metrics.kv_cache_usage if metrics else None,
    }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
