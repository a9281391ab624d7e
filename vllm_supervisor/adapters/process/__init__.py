"""The process tree: launches an engine, and proves that one is gone."""

from vllm_supervisor.adapters.process.engine import ProcessTree
from vllm_supervisor.adapters.process.kernel import become_subreaper, normalize_signals
from vllm_supervisor.adapters.process.launcher import EngineLauncher
from vllm_supervisor.adapters.process.lock import StateLock, lock_state_dir

__all__ = [
    "EngineLauncher",
    "ProcessTree",
    "StateLock",
    "become_subreaper",
    "lock_state_dir",
    "normalize_signals",
]
