"""What tells, beside the log, that a start moves."""

from vllm_supervisor.adapters.startsigns.signs import EngineSigns

__all__ = ["EngineSigns"]
