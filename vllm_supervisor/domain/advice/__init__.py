"""Advice on concurrency from what the engine's figures show, for the command, the status and the metric alike."""

from vllm_supervisor.domain.advice.advice import WINDOW, Advice, advise
from vllm_supervisor.domain.advice.further import Knob
from vllm_supervisor.domain.advice.knee import KV_LIMIT, History, Knee, Level, find_knee, read_history
from vllm_supervisor.domain.advice.sample import Sample, median, quantile, sample_of
from vllm_supervisor.domain.advice.statsline import StatsReader
from vllm_supervisor.domain.advice.target import Target
from vllm_supervisor.domain.advice.verdict import Confidence, Verdict
from vllm_supervisor.domain.setting import Setting

__all__ = [
    "KV_LIMIT",
    "WINDOW",
    "Advice",
    "Confidence",
    "History",
    "Knee",
    "Knob",
    "Level",
    "Sample",
    "Setting",
    "StatsReader",
    "Target",
    "Verdict",
    "advise",
    "find_knee",
    "median",
    "quantile",
    "read_history",
    "sample_of",
]
