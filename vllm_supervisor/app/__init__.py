"""The composition root: a configuration becomes a running daemon, and its end becomes an exit status."""

from vllm_supervisor.app.daemon import main

__all__ = ["main"]
