"""The daemon's own log: structlog, on a stream that can neither kill nor block it."""

from vllm_supervisor.adapters.logs.observer import LogObserver
from vllm_supervisor.adapters.logs.setup import LogFormat, configure, set_level, under_journal
from vllm_supervisor.adapters.logs.sink import Sink

__all__ = ["LogFormat", "LogObserver", "Sink", "configure", "set_level", "under_journal"]
