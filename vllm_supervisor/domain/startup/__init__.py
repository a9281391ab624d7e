"""Where a start stands, how long it will take, and whether it still moves."""

from vllm_supervisor.domain.startup.figures import StartupFigures
from vllm_supervisor.domain.startup.forecast import PastStart, PastStarts, arguments_digest, eta, overall
from vllm_supervisor.domain.startup.phases import Progress, StartPhase
from vllm_supervisor.domain.startup.reader import StartReader
from vllm_supervisor.domain.startup.signs import Activity, Download, Pulse, stalled

__all__ = [
    "Activity",
    "Download",
    "PastStart",
    "PastStarts",
    "Progress",
    "Pulse",
    "StartPhase",
    "StartReader",
    "StartupFigures",
    "arguments_digest",
    "eta",
    "overall",
    "stalled",
]
