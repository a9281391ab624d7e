"""The daemon's own log: structlog, on a stream that can neither kill nor block it."""

from vllm_supervisor.adapters.logs.observer import LogObserver
from vllm_supervisor.adapters.logs.setup import LogFormat, configure, under_journal

__all__ = ["LogFormat", "LogObserver", "configure", "under_journal"]
