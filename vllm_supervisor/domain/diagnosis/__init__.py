"""What happened, from a log and from what else is known: the cause, its evidence, its remedy."""

from vllm_supervisor.domain.diagnosis.classes import CLASSES, FailureClass
from vllm_supervisor.domain.diagnosis.diagnoser import Diagnoser
from vllm_supervisor.domain.diagnosis.explanation import Check, Explanation
from vllm_supervisor.domain.diagnosis.explanations import EXPLANATIONS
from vllm_supervisor.domain.diagnosis.lines import shortened
from vllm_supervisor.domain.diagnosis.model import NO_FAILURE, Context, Diagnosis, Observed
from vllm_supervisor.domain.diagnosis.scan import Scanner
from vllm_supervisor.domain.retry import Retry

__all__ = [
    "CLASSES",
    "EXPLANATIONS",
    "NO_FAILURE",
    "Check",
    "Context",
    "Diagnoser",
    "Diagnosis",
    "Explanation",
    "FailureClass",
    "Observed",
    "Retry",
    "Scanner",
    "shortened",
]
