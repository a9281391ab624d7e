"""The engine, asked over HTTP."""

from vllm_supervisor.adapters.engine_http.client import HttpEngineClient

__all__ = ["HttpEngineClient"]
