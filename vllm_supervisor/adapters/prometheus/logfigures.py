"""Figures about the engine's log."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from vllm_supervisor.adapters.prometheus.families import counter, counters
from vllm_supervisor.ports import LogProblem, Note

_TROUBLE = frozenset({"log_file_missing", "log_disk_full", "log_rotation_failed", "log_not_prepared", "log_not_read"})
_PROBLEMS = frozenset(problem.value for problem in LogProblem)


class LogFigures:
    """Counts troubles when they begin, and what rotations are known to have lost."""

    def __init__(self) -> None:
        self._problems = Counter(dict.fromkeys((problem.value for problem in LogProblem), 0))
        self._lost = 0.0

    def blocked(self) -> None:
        """Count a launch that was not made because the log could not be opened."""
        self._problems[LogProblem.NOT_WRITABLE.value] += 1

    def noted(self, note: Note) -> None:
        """Take in a note, if it is about the log."""
        if note.kind in _TROUBLE:
            problem = note.fields.get("problem")
            known = isinstance(problem, str) and problem in _PROBLEMS
            self._problems[str(problem) if known else LogProblem.OTHER.value] += 1
        elif note.kind == "log_rotated":
            lost = note.fields.get("lost")
            self._lost += lost if isinstance(lost, int | float) else 0

    def families(self) -> Iterator[Metric]:
        """Yield the figures, each a metric family."""
        yield counters(
            "log_problems_total",
            "Troubles with the engine's log, counted when each begins.",
            ("problem",),
            {(problem,): count for problem, count in self._problems.items()},
        )
        yield counter("log_lost_bytes_total", "Bytes of the engine's log known to be lost in rotations.", self._lost)
