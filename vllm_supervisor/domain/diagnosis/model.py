"""What is known beside the log, and what the diagnosis says."""

from dataclasses import dataclass
from enum import StrEnum

from vllm_supervisor.domain.retry import Retry

NO_FAILURE: dict[str, object] = {
    "class": None,
    "retry": None,
    "summary": "no failure found",
    "evidence": None,
    "line": None,
    "action": None,
    "secondary": [],
}
"""The JSON object for a log that shows no failure."""


class Observed(StrEnum):
    """What the daemon saw happen, named by the class it stands for where the log shows no better cause."""

    HANG = "hang_health_ok"
    HEALTH_FLAPPING = "health_flapping"
    ORPHANS = "orphan_gpu_processes"
    READINESS_GAP = "readiness_gap"
    SIGTERM_LOST = "sigterm_lost_in_startup"
    SLOW_SHUTDOWN = "slow_shutdown"
    STARTUP_HANG = "startup_hang"
    STARTUP_SLOW = "startup_slow"
    STARTUP_TIMEOUT = "startup_timeout"


@dataclass(frozen=True, slots=True)
class Context:
    """Facts about an end that no log shows. Everything unknown keeps its default."""

    exit_code: int | None = None
    """As a shell gives it (137 for SIGKILL) or as Python does (-9)."""
    signal: int | None = None
    killed_by_us: bool = False
    """The daemon sent SIGKILL: then the kill says nothing, and neither do the deaths that follow it."""
    stop_requested: bool = False
    """The daemon sent SIGTERM because somebody wanted a stop or a restart."""
    oom_kills: int | None = None
    """How far the cgroup's oom_kill counter moved during this generation; None where there is no counter."""
    xids: tuple[int, ...] = ()
    """NVIDIA Xid events of this generation's GPUs."""
    was_ready: bool | None = None
    observed: Observed | None = None

    @property
    def killing_signal(self) -> int | None:
        """The signal that ended the leader, however it was told."""
        if self.signal is not None:
            return self.signal
        code = self.exit_code
        if code is None or code == 0:
            return None
        if code < 0:
            return -code
        return code - 128 if 128 < code <= 192 else None  # noqa: PLR2004 # the shell's convention

    @property
    def failed(self) -> bool:
        """Whether the end is known to be a failure."""
        if self.stop_requested:
            return False
        return self.killing_signal is not None or self.exit_code not in {None, 0}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause, with what proves it and what to do.

    `line` counts from 1 in what was fed; None where the evidence is no log line. `secondary` are further classes that
    the same log shows, most of them consequences.
    """

    cls: str
    retry: Retry
    summary: str
    evidence: str | None
    line: int | None
    action: str
    secondary: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the object of `diagnose --json`."""
        return {
            "class": self.cls,
            "retry": self.retry.value,
            "summary": self.summary,
            "evidence": self.evidence,
            "line": self.line,
            "action": self.action,
            "secondary": list(self.secondary),
        }
