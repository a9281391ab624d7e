"""The daemon's own metrics."""

from vllm_supervisor.adapters.prometheus.observer import PrometheusObserver

__all__ = ["PrometheusObserver"]
