"""A small HTTP/1.1 server: h11 on asyncio transports, bounded in every direction. It knows no supervisor."""

from vllm_supervisor.adapters.http1.messages import DEFAULT_LIMITS, Limits, error_response
from vllm_supervisor.adapters.http1.server import serve

__all__ = ["DEFAULT_LIMITS", "Limits", "error_response", "serve"]
