"""Whether this host suits the configuration: pure checks, from facts to findings."""

from vllm_supervisor.domain.doctor.examine import CHECKS, examine
from vllm_supervisor.domain.doctor.finding import Finding, Result, summary

__all__ = ["CHECKS", "Finding", "Result", "examine", "summary"]
