"""The status object: the machine's state and the facts, for those who ask."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from vllm_supervisor import __version__
from vllm_supervisor.domain.ending import probes_failed
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.domain.member import Member
from vllm_supervisor.domain.model import Phase, State, public_state
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.domain.startup import StartupFigures
from vllm_supervisor.domain.transitions import LEFT_RUNNING
from vllm_supervisor.runtime.facts import Configured, Facts, LastExit, Watched

Json = dict[str, object]


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


def status(
    state: State, facts: Facts, spec: EngineSpec, now: float, advice: Mapping[str, object] | None = None
) -> Json:
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
        "phase": _phase(state, facts, now),
        "restarts": {
            "total": sum(facts.restarts.values()),
            "by_reason": {cause.value: count for cause, count in facts.restarts.items()},
            "consecutive": state.failures,
        },
        "next_start_in_s": _next_start(state, now),
        "last_exit": _last_exit(facts.last_exit),
        "log": {"readable": facts.log_unread is None, "detail": facts.log_unread},
        "probe": {
            "last_ok_age_s": None if facts.last_ok_at is None else _seconds(now - facts.last_ok_at),
            "consecutive_failures": state.probe_failures,
            "latency_s": _seconds(facts.latency),
        },
        "liveness": _liveness(facts.watched, now),
        "engine": _engine(state, facts, spec),
        "load": _load(facts.metrics),
        "advice": None if advice is None else dict(advice),
        "blocker": None
        if state.blocker is None
        else {"kind": state.blocker.kind.value, "why": state.blocker.why, "remedy": state.blocker.remedy},
        "fail_why": state.fail_why,
        "survivors": named(facts.survivors),
        "config": _config(facts.config),
    }


def named(members: Sequence[Member]) -> list[Json]:
    """Return members as they are shown: pid, name and the kernel's letter for their state."""
    return [{"pid": member.pid, "name": member.name, "state": member.state} for member in members]


def _phase(state: State, facts: Facts, now: float) -> Json:
    name, detail = state.phase.value, None
    if state.phase is Phase.STARTING:
        return _starting(facts, now)
    if state.draining:
        name = "draining"
    elif state.phase is Phase.BACKOFF and state.blocker is not None:
        detail = state.blocker.why
    elif state.phase is Phase.UNHEALTHY:
        detail = _ailment(state, facts, now)
    elif state.phase is Phase.FAILED:
        detail = ", ".join([state.fail_why or "", *(f"{m.name} (pid {m.pid}, {m.state})" for m in facts.survivors)])
    return {"name": name, "progress": None, "detail": detail, "eta_s": None}


def _ailment(state: State, facts: Facts, now: float) -> str:
    """Say what is wrong with an engine that was ready, and what follows."""
    stuck = f"stuck: {facts.watched.evidence}" if facts.watched is not None else "stuck"
    why = stuck if state.stuck else probes_failed(state.probe_failures, facts.ailment)
    follows = LEFT_RUNNING if state.deadline is None else f"restart in {max(0.0, state.deadline - now):.0f} s"
    return f"{why}; {follows}"


def _starting(facts: Facts, now: float) -> Json:
    """Return where a start stands. What the probes found (`/health` is 200, a hurdle) goes before what the log says."""
    moved, progress = facts.moved, facts.progress
    name = progress.name if progress else moved.name if moved else "launching"
    same = moved is not None and moved.name == name
    detail = progress.detail if progress and progress.detail else moved.detail if moved and same else ""
    return {
        "name": name,
        "progress": moved.progress if moved and same else None,
        "detail": detail or None,
        "eta_s": _seconds(max(0.0, moved.ready_by - now)) if moved and moved.ready_by is not None else None,
    }


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
        "diagnosis": None if last.diagnosis is None else dict(last.diagnosis),
        "bundle": last.bundle,
        "retry_why": last.retry_why,
        "detail": last.detail,
        "where_to_look": last.where_to_look,
        "bundle_lost": last.bundle_lost,
    }


def _config(config: Configured | None) -> Json | None:
    """Return which file holds, since when, what of it still waits, and what is wrong with the file as it is now."""
    if config is None:
        return None
    return {
        "path": config.path,
        "loaded_at": _rfc3339(config.loaded_at),
        "pending": list(config.pending),
        "pending_daemon": list(config.pending_daemon),
        "refused": list(config.refused),
    }


def _liveness(watched: Watched | None, now: float) -> Json:
    """Return the verdict and its evidence; `last_canary_s` is how long the last canary took that was answered."""
    return {
        "verdict": watched.verdict.value if watched else None,
        "evidence": watched.evidence if watched else None,
        "last_progress_age_s": _seconds(max(0.0, now - watched.stepped_at)) if watched else None,
        "last_canary_s": _seconds(watched.canary) if watched else None,
    }


def _engine(state: State, facts: Facts, spec: EngineSpec) -> Json:
    described, metrics, figures = facts.described, facts.metrics, facts.figures or StartupFigures()
    return {
        "vllm_version": described.version if described and described.version else figures.vllm_version,
        "models": [name for name, _ in advertised_models(state, facts, spec)],
        "kv_cache_tokens": _first(metrics.kv_cache_tokens if metrics else None, figures.kv_cache_tokens),
        "max_concurrency": _first(metrics.max_concurrency if metrics else None, figures.max_concurrency),
        "startup": {
            "weights_gib": figures.weights_gib,
            "load_s": figures.load_s,
            "compile_s": figures.compile_s,
            "kv_cache_gib": figures.kv_cache_gib,
            "graph_gib": figures.graph_gib,
            "init_s": figures.init_s,
        },
    }


def _load(metrics: EngineMetrics | None) -> Json:
    return {
        "running": metrics.running if metrics else None,
        "waiting": metrics.waiting if metrics else None,
        "kv_cache_usage": metrics.kv_cache_usage if metrics else None,
    }


def _first(told: float | None, printed: float | None) -> float | None:
    """Prefer what the metrics tell now to what the start printed."""
    return printed if told is None else told


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
