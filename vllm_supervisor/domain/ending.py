"""How an engine ended, as the daemon saw it, and what follows from the cause for the next start."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vllm_supervisor.domain.diagnosis import Context, Diagnosis, Observed, shortened
from vllm_supervisor.domain.messages import Adopted, Condemned, DeadlinePassed, Event, LeaderExited, Probed
from vllm_supervisor.domain.model import DEAD_OUTCOMES, FAULTS, Cause, ExitStatus, Outcome, Phase, State, Verdict
from vllm_supervisor.domain.spec import JOURNAL
from vllm_supervisor.domain.transitions import HOPELESS, SERVING

_CONDEMNED = {Cause.HANG: Observed.HANG, Cause.STARTUP_STALL: Observed.STARTUP_HANG}
_KILLED = "killed_by_probe"
_LOST = "its daemon died before the end was examined; how it ended is not known"
_ONE_GPU = (
    "restart; remove *.lock files below ~/.cache that no process holds; if it repeats, see the stacks in the evidence"
)
_COMPILE_ANYHOW = "start without compiling (--enforce-eager in `extra_args`), and report the traceback to vLLM"
_MAX_EVIDENCE = 200
"""Characters of the evidence in one line for the operator."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What happened to one generation, up to now."""

    generation: int = 0
    cause: Cause | None = None
    """Why it ended; the first one wins, also over an operator who asks for a start meanwhile."""
    status: ExitStatus = field(default_factory=ExitStatus)
    was_ready: bool = False
    dead: bool = False
    """Probes found it dead, rather than slow, before it was ended."""
    killed: bool = False
    """SIGKILL was sent while the leader lived."""
    observed: Observed | None = None
    detail: str = ""
    """What was seen of it that made us end it, in words."""
    ailment: str = ""
    """What the last health probe that failed saw."""
    lost: bool = False
    """It ended, or its end was not examined, while no daemon watched."""

    @property
    def unasked(self) -> bool:
        """Whether nobody wished for it."""
        return self.cause in FAULTS or self.lost

    @property
    def by_itself(self) -> bool:
        """Whether it ended before we did anything about it."""
        return self.cause is Cause.CRASH or self.lost


def heard(ending: Ending, before: State, event: Event, after: State) -> Ending:
    """Return what is known after one step of the machine."""
    if isinstance(event, Adopted) and after is not before:
        ending = Ending(after.generation, detail="" if event.leader_alive else _LOST, lost=not event.leader_alive)
    elif after.generation != ending.generation:
        ending = Ending(after.generation)
    observed, detail = ending.observed, ending.detail
    if ending.cause is None and after.cause is not None:
        match event:
            case DeadlinePassed() if after.cause is Cause.UNHEALTHY:
                detail = probes_failed(before.probe_failures, ending.ailment)
            case Condemned():
                observed, detail = _CONDEMNED.get(event.cause), event.detail
            case DeadlinePassed() if before.phase is Phase.STARTING:
                observed = Observed.STARTUP_TIMEOUT
                detail = f"not ready {(before.deadline or 0.0) - (before.launched_at or 0.0):.0f} s after the launch"
    return replace(
        ending,
        cause=ending.cause or after.cause,
        status=event.status if isinstance(event, LeaderExited) and before.leader_alive else ending.status,
        was_ready=ending.was_ready or after.was_ready,
        dead=ending.dead or after.dead_since is not None,
        killed=ending.killed or (after.phase is Phase.KILLING and before.leader_alive),
        observed=observed,
        detail=detail,
        ailment=ending.ailment if (seen := ailment(before, event)) is None else seen,
    )


def ailment(before: State, event: Event) -> str | None:
    """Return what a health probe of a serving engine saw that failed; None for any other event."""
    if not isinstance(event, Probed) or event.generation != before.generation or before.phase not in SERVING:
        return None
    return event.detail if event.outcome in DEAD_OUTCOMES or event.outcome is Outcome.TIMEOUT else None


def probes_failed(count: int, last: str) -> str:
    """Return what is said of health probes that failed, the last of them with `last`."""
    counted = "one health probe failed" if count == 1 else f"{count} health probes in a row failed, the last"
    return f"{counted}: {last}" if last else counted.removesuffix(", the last")


def context(ending: Ending, oom_kills: int | None = None, xids: tuple[int, ...] = ()) -> Context:
    """Return what the diagnosis needs beside the log.

    How the leader ended counts only where it ended by itself: after our own signals the status is our doing.
    """
    by_itself = ending.by_itself
    return Context(
        exit_code=ending.status.code if by_itself else None,
        signal=ending.status.signal if by_itself else None,
        # An engine that was found dead had died before it was killed: what its log says of that stands.
        killed_by_us=ending.killed and not ending.dead,
        oom_kills=oom_kills,
        xids=xids,
        was_ready=None if ending.lost else ending.was_ready,
        observed=ending.observed,
    )


def without_us(diagnosis: Diagnosis | None, ending: Ending) -> Diagnosis | None:
    """Take out what the log says of our own signals: nobody else ended an engine that we were ending."""
    if diagnosis is None or ending.by_itself:
        return diagnosis
    if diagnosis.cls == _KILLED:
        return None
    return replace(diagnosis, secondary=tuple(name for name in diagnosis.secondary if name != _KILLED))


def with_what_was_seen(diagnosis: Diagnosis | None, ending: Ending, *, several: bool) -> Diagnosis | None:
    """Put what we saw in the place of evidence from a log that shows none; `several`: there were worker processes."""
    if diagnosis is None or ending.observed is None or diagnosis.cls != ending.observed or diagnosis.line is not None:
        return diagnosis
    # What helps collectives is no first advice where there is none: vLLM serves one GPU without workers.
    alone = ending.observed is Observed.STARTUP_HANG and not several
    return replace(
        diagnosis,
        evidence=ending.detail or diagnosis.evidence,
        action=_ONE_GPU if alone else diagnosis.action,
    )


def judge(
    diagnosis: Diagnosis | None,
    *,
    proven: bool,
    log_file: str = "",
    bundle: str | None = None,
    unread: str | None = None,
) -> Verdict:
    """Return what the cause says about another start; `proven`: this configuration has been ready on this host.

    Where no cause is known, where to look is said: in `log_file`, and in the folder `bundle` if there is one. `unread`
    says why the log could not be read.
    """
    if diagnosis is None:
        return Verdict(None, _unknown(log_file, bundle, unread), proven)
    proof = f": {shortened(diagnosis.evidence, _MAX_EVIDENCE)}" if diagnosis.evidence else ""
    why = f"{diagnosis.summary} ({diagnosis.cls}){proof}; {diagnosis.action}"
    return Verdict(diagnosis.retry, why, proven)


def _unknown(log_file: str, bundle: str | None, unread: str | None) -> str:
    log = "vLLM's log in the journal" if log_file == JOURNAL else f"the end of {log_file}" if log_file else "the log"
    kept = "" if bundle is None else f" and the evidence in {bundle}"
    known = "the log shows no cause that is known" if unread is None else f"no known cause, for {unread}"
    return (
        f"{known}; read {log}{kept}; `vllm-supervisor explain` lists the known causes, "
        "`vllm-supervisor diagnose FILE` looks for them in other logs (the kernel's, an orchestrator's)"
    )


def why_retried(verdict: Verdict) -> str | None:
    """Say why a cause that stays does not end the tries; None where that needs no explanation."""
    if not verdict.proven or verdict.retry not in HOPELESS:
        return None
    return f"tried again although the cause is {verdict.retry}: this configuration has been ready on this host before"


def cache_moved(diagnosis: Diagnosis, places: Sequence[str], *, before: bool) -> Diagnosis:
    """Return the diagnosis of a failed compilation with the remedy that is left once its cache was moved to `places`.

    `before`: at an earlier failure, so that compiling anew did not help.
    """
    where = f" to {', '.join(places)}" if places else ""
    if before:
        action = f"the compile cache was moved aside{where} before, and compiling anew failed too: {_COMPILE_ANYHOW}"
    elif places:
        action = (
            f"the compile cache was moved aside{where}, and the next start compiles anew; "
            f"if that fails too: {_COMPILE_ANYHOW}"
        )
    else:
        return diagnosis
    return replace(diagnosis, action=action)
