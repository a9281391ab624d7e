"""From evidence to one cause."""

from collections.abc import Iterable

from vllm_supervisor.domain.diagnosis.catalogue import SIGNATURES, SUPERSEDES
from vllm_supervisor.domain.diagnosis.classes import CLASSES
from vllm_supervisor.domain.diagnosis.evidence import HUNG_READS, HUNG_READS_PENDING, Evidence, Hit
from vllm_supervisor.domain.diagnosis.explanations import EXPLANATIONS
from vllm_supervisor.domain.diagnosis.model import Context, Diagnosis, Observed
from vllm_supervisor.domain.diagnosis.signature import Kind, Tier
from vllm_supervisor.domain.diagnosis.stages import oom_class, oom_remedy
from vllm_supervisor.domain.redaction import redacted
from vllm_supervisor.domain.retry import Retry

_SIGILL, _SIGBUS, _SIGKILL, _SIGSEGV, _SIGTERM = 4, 7, 9, 11, 15
_ECC_XIDS = frozenset({48, 63, 64, 94, 95})
_APPLICATION_XIDS = frozenset({13, 31, 43, 45})
"""Raised by what a program did: an illegal access, or its own end."""
_CONSEQUENCES = frozenset({Tier.WORKER, Tier.ENGINE, Tier.START, Tier.KILLED})
_NEAR = 200
"""Lines: a death prints the tracebacks of all its processes."""
_WEAK = frozenset({"killed_by_probe", "worker_died", "engine_core_died", "engine_core_init_failed"})


def verdict(evidence: Evidence, context: Context) -> Diagnosis | None:
    """Name the cause, or return None where nothing failed."""
    hits = _counting(evidence, context)
    best = _best(hits)
    secondary = _secondary(hits, best, evidence, context)
    if best is None or best.signature.tier in _CONSEQUENCES or _class_of(best, evidence) in _WEAK:
        beyond = _beyond_the_log(evidence, context)
        if beyond is not None:
            cls, proof = beyond
            if best is not None and _class_of(best, evidence) != cls:
                secondary = (_class_of(best, evidence), *(name for name in secondary if name != cls))
            return _from_context(cls, proof, tuple(dict.fromkeys(secondary)))
    if best is None:
        return _hang(evidence, context)
    return _from_hit(best, evidence, secondary)


def _counting(evidence: Evidence, context: Context) -> list[Hit]:
    """Return the hits that may name the cause."""
    counting: list[Hit] = []
    for hit in evidence.hits.values():
        tier, cls = hit.signature.tier, hit.signature.cls
        if cls == "hang_health_ok" or hit.kind is Kind.CONTEXT:
            continue
        if hit.late and not _near_death(hit, evidence, context):
            continue
        if tier is Tier.KILLED and context.oom_kills == 0:
            continue
        if (tier in _CONSEQUENCES or cls == "killed_by_probe") and _asked_for(hit, evidence, context):
            continue
        if cls == "killed_by_probe" and tier is Tier.VAGUE and evidence.ready_line is not None:
            continue
        if hit.kind is Kind.WARNING and not (_start_failed(evidence, context) and _before_ready(hit, evidence)):
            continue
        if hit.kind is Kind.PENDING and (evidence.ready_line is not None or evidence.stage_line > hit.last_line):
            continue
        counting.append(hit)
    return counting


def _near_death(hit: Hit, evidence: Evidence, context: Context) -> bool:
    """Whether what a request may provoke stands where the engine died, and not hours before."""
    death = evidence.death_line
    return context.failed if death is None else hit.line >= death - _NEAR


def _asked_for(hit: Hit, evidence: Evidence, context: Context) -> bool:
    if context.killed_by_us or context.stop_requested:
        return True
    return evidence.stop_line is not None and hit.line >= evidence.stop_line


def _start_failed(evidence: Evidence, context: Context) -> bool:
    return evidence.ready_line is None and (evidence.died or evidence.failed or context.failed)


def _before_ready(hit: Hit, evidence: Evidence) -> bool:
    return evidence.ready_line is None or hit.line < evidence.ready_line


def _rank(hit: Hit) -> tuple[int, int, int]:
    tier = hit.signature.tier
    if hit.kind in {Kind.WARNING, Kind.PENDING} and tier < Tier.WARNED:
        tier = Tier.WARNED
    return tier, hit.line, hit.order


def _best(hits: Iterable[Hit]) -> Hit | None:
    ranked = sorted(hits, key=_rank)
    if not ranked:
        return None
    best = ranked[0]
    for cause, look in SUPERSEDES:
        if best.signature.cls == look:
            best = next((hit for hit in ranked if hit.signature.cls == cause), best)
    same = [hit for hit in ranked if hit.signature.cls == best.signature.cls and hit.kind is best.kind]
    return next((hit for hit in same if hit.signature.remedy and hit.order <= best.order), best)


def _class_of(hit: Hit, evidence: Evidence) -> str:
    return oom_class(evidence) if hit.signature.cls == "oom_at_load" else hit.signature.cls


def _secondary(hits: Iterable[Hit], best: Hit | None, evidence: Evidence, context: Context) -> tuple[str, ...]:
    names: list[str] = []
    first = None if best is None else _class_of(best, evidence)
    for hit in sorted(hits, key=lambda hit: hit.line):
        name = _class_of(hit, evidence)
        if hit.kind is Kind.FATAL and hit.signature.tier not in {Tier.START, Tier.KILLED} and name != first:
            names.append(name)
    if first == "no_kernel_image" and _has(evidence, "flashinfer_jit"):
        names.append("flashinfer_jit")
    if context.exit_code == 0 and evidence.died and not context.stop_requested and evidence.stop_line is None:
        names.append("exit_0_on_engine_death")
    return tuple(dict.fromkeys(names))


def _has(evidence: Evidence, cls: str) -> bool:
    return any(hit.signature.cls == cls for hit in evidence.hits.values())


def _beyond_the_log(evidence: Evidence, context: Context) -> tuple[str, str] | None:
    """Return the class, and its proof, that only the context can show; stronger than a mere consequence in the log."""
    ecc = [xid for xid in context.xids if xid in _ECC_XIDS]
    faults = [xid for xid in context.xids if xid not in _APPLICATION_XIDS]
    if ecc:
        return "ecc_error", f"Xid {ecc[0]}"
    if faults:
        return "gpu_fault", f"Xid {faults[0]}"
    if context.oom_kills:
        return "host_oom_kill", f"the cgroup's oom_kill counter rose by {context.oom_kills}"
    if context.observed is not None:
        return context.observed.value, _OBSERVED[context.observed]
    if context.killed_by_us or context.stop_requested:
        return None
    by_signal = {_SIGILL: "illegal_instruction", _SIGSEGV: "segfault", _SIGBUS: "shm_too_small"}
    if (signal := context.killing_signal) is not None and (cls := by_signal.get(signal)):
        return cls, f"signal {signal} ended the engine"
    if context.exit_code == 0 and context.was_ready and not evidence.died and evidence.stop_line is None:
        return "exit_0_on_engine_death", "exit status 0 without a stop having been asked for"
    return None


_OBSERVED = {
    Observed.HANG: "requests are pending and the engine makes no step",
    Observed.HEALTH_FLAPPING: "health probes time out while tokens flow",
    Observed.ORPHANS: "processes of an earlier engine are alive and hold GPU memory",
    Observed.READINESS_GAP: "the port answered before a token could be made",
    Observed.SIGTERM_LOST: "SIGTERM had no effect during the start",
    Observed.SLOW_SHUTDOWN: "members were alive when the grace after SIGTERM ended",
    Observed.STARTUP_HANG: "the start made no progress of any kind",
    Observed.STARTUP_SLOW: "the start takes long and makes progress",
    Observed.STARTUP_TIMEOUT: "the start took longer than it may",
}


def _hang(evidence: Evidence, context: Context) -> Diagnosis | None:
    """Return a hang that the log shows although nothing in it failed."""
    if evidence.stop_line is not None or evidence.ended:
        return None
    ready = evidence.ready_line is not None or bool(context.was_ready)
    for hit in evidence.hits.values():
        reads = hit.in_a_row if evidence.ready_line is not None else hit.count
        needed = HUNG_READS_PENDING if evidence.stats and evidence.stats[-1].still else HUNG_READS
        if hit.signature.cls == "hang_health_ok" and ready and reads >= needed:
            if evidence.moved_after(hit.last_line):
                continue
            return _from_hit(hit, evidence, ())
    stuck = evidence.stuck_since()
    if stuck is None:
        return None
    explained = EXPLANATIONS["hang_health_ok"]
    return Diagnosis(
        "hang_health_ok",
        CLASSES["hang_health_ok"].retry,
        explained.summary,
        redacted(stuck.text),
        stuck.line,
        explained.action,
    )


def _from_context(cls: str, proof: str, secondary: tuple[str, ...]) -> Diagnosis:
    explained = EXPLANATIONS[cls]
    return Diagnosis(cls, CLASSES[cls].retry, explained.summary, proof, None, explained.action, secondary)


def _from_hit(hit: Hit, evidence: Evidence, secondary: tuple[str, ...]) -> Diagnosis:
    signature = SIGNATURES[hit.order]
    cls = _class_of(hit, evidence)
    explained = EXPLANATIONS[cls]
    groups = dict(hit.groups)
    if cls == "port_in_use" and evidence.port is not None:
        groups.setdefault("port", evidence.port)
    if signature.adjust is not None:
        groups |= signature.adjust(groups)
    if signature.cls == "oom_at_load":
        groups["stage"] = oom_remedy(evidence)
    action = signature.remedy.format_map(groups) if signature.remedy else explained.action
    retry: Retry = signature.retry or CLASSES[cls].retry
    if cls in _UNEXPLAINED:
        return _unexplained(hit, evidence, retry, action, secondary)
    raised = evidence.raised_at(hit.line)
    text = hit.text if raised is None or len(raised.text) < len(hit.text) else raised.text
    return Diagnosis(cls, retry, explained.summary, redacted(text), hit.line, action, secondary)


_UNEXPLAINED = {"engine_core_init_failed": "the engine did not start", "engine_core_died": "the engine's process died"}
_SILENT = ", and the log does not say why"


def _unexplained(hit: Hit, evidence: Evidence, retry: Retry, action: str, secondary: tuple[str, ...]) -> Diagnosis:
    """Name the exception that nothing here knows, where the log holds one."""
    cls, raised = hit.signature.cls, evidence.root()
    happened = _UNEXPLAINED[cls]
    if raised is None:
        return Diagnosis(cls, retry, happened + _SILENT, redacted(hit.text), hit.line, action, secondary)
    place = f"it was raised at {raised.where}; read" if raised.where else "read"
    action = (
        f"{place} the lines above line {raised.line}, and look for that text among vLLM's issues; "
        f"`vllm-supervisor explain {cls}` says what else to look at"
    )
    summary = f"{happened}: {raised.name} (no cause that is known here)"
    return Diagnosis(cls, retry, summary, redacted(raised.text), raised.line, action, secondary)
