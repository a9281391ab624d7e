"""What of the engine's life is worth a line."""

from typing import Any

from structlog.typing import FilteringBoundLogger

from vllm_supervisor.domain.messages import (
    Adopted,
    Blocked,
    Event,
    GroupEmpty,
    LeaderExited,
    Probed,
    ProcessEvent,
    Record,
    Spawned,
)
from vllm_supervisor.domain.model import FAULTS, Outcome, Phase, State
from vllm_supervisor.ports import Level, Note

_ASKED_ROUTINELY = frozenset({Phase.READY, Phase.UNHEALTHY})
"""Phases in which a probe that fails is news; while starting, it is what to expect."""


class LogObserver:
    """Implements `ports.Observer`: a line per change of phase, per note, and per fact about a process.

    No line for a probe that finds what the one before found.
    """

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._unable = False

    def recorded(self, record: Record) -> None:
        """Log the change of phase, louder the worse it is."""
        fields: dict[str, Any] = {
            "generation": record.generation,
            "before": record.before.value,
            "after": record.after.value,
            "cause": record.cause.value if record.cause else None,
            "seconds": round(record.seconds, 3),
        }
        if record.detail:
            fields["detail"] = record.detail
        self._level_of(record)("phase_changed", **fields)

    def noted(self, note: Note) -> None:
        """Log the note under its kind."""
        log = {Level.ERROR: self._logger.error, Level.WARNING: self._logger.warning}.get(note.level, self._logger.info)
        # A field may bear the name of the parameter that is the event's own.
        log(note.kind, **{("event_" if key == "event" else str(key)): value for key, value in note.fields.items()})

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:  # noqa: ARG002 - the port's
        """Log what happened to processes, and what changed about probes."""
        if isinstance(event, ProcessEvent) and event.generation != before.generation:
            return
        match event:
            case Spawned() if before.spawning:
                self._logger.info("spawned", generation=event.generation, pid=event.pid)
            case Adopted() if after.process is not before.process:
                self._logger.warning("leftover_found", generation=event.generation, pid=event.pid)
            case LeaderExited() if before.leader_alive:
                self._leader_exited(before, event)
            case GroupEmpty() if before.process is not None:
                self._logger.info("members_gone", generation=event.generation)
            case Blocked() if before.blocker != event.blocker:
                blocker = event.blocker
                self._logger.warning("launch_blocked", kind=blocker.kind.value, why=blocker.why, remedy=blocker.remedy)
            case Probed() if before.phase in _ASKED_ROUTINELY:
                self._probed(before, event, after)

    def _leader_exited(self, before: State, event: LeaderExited) -> None:
        asked = before.cause is not None
        (self._logger.info if asked else self._logger.warning)(
            "leader_exited",
            generation=event.generation,
            pid=before.process.pid if before.process else None,
            code=event.status.code,
            signal=event.status.signal,
            asked=asked,
        )

    def _probed(self, before: State, event: Probed, after: State) -> None:
        fields: dict[str, Any] = {"outcome": event.outcome.value, "latency": round(event.latency, 4)}
        if event.detail:
            fields["detail"] = event.detail
        unable = event.outcome is Outcome.UNKNOWN
        if unable and not self._unable:
            self._logger.warning("probe_not_made", **fields)
        self._unable = unable
        if before.probe_failures == 0 and after.probe_failures > 0:
            self._logger.warning("probe_failing", **fields)
        elif before.probe_failures > 0 and after.probe_failures == 0:
            self._logger.info("probe_recovered", failures=before.probe_failures, **fields)

    def _level_of(self, record: Record) -> Any:
        if record.after is Phase.FAILED:
            return self._logger.error
        bad = record.after is Phase.UNHEALTHY or record.cause in FAULTS
        return self._logger.warning if bad else self._logger.info
