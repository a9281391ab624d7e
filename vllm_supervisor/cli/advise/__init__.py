"""`advise`: how many requests to keep in flight, from live figures, from a log, or from a load of its own."""

from vllm_supervisor.cli.advise.command import add_arguments, run

__all__ = ["add_arguments", "run"]
