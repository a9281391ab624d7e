"""The engine as the API server holds it: the processes it forked, and vLLM's way of ending them."""

import os
import signal
import socket

from vllm_supervisor.simulator.engine import EngineCore, Settings
from vllm_supervisor.simulator.lines import Log
from vllm_supervisor.simulator.link import Link
from vllm_supervisor.simulator.processes import fork
from vllm_supervisor.simulator.worker import run_tracker


class EngineProcess:
    """Forks the resource tracker and the EngineCore; `link` leads to the latter. `workers` are pids it reported."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        knobs = settings.knobs
        # Its other end is held by every process that the tracker works for, and its end of file is their last.
        self._tracker, watched = socket.socketpair()
        fork(knobs, "resource_tracker", lambda: run_tracker(watched), (self._tracker, listener))
        watched.close()
        ours, theirs = socket.socketpair()
        self.link = Link(ours)
        self.workers: list[int] = []
        core = Link(theirs)
        self._pid = fork(knobs, "EngineCore", lambda: EngineCore(settings, core, self._tracker).run(), (ours, listener))
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether it was neither reaped nor stopped."""
        return self._pid != 0

    def reap(self) -> int:
        """Wait for the EngineCore, whose link has ended. Returns its exit code, negative for a signal."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def stop(self, vllm_log: Log) -> None:
        """SIGTERM, no patience, SIGKILL, workers included: what vLLM does by default (measured, 0.32)."""
        if not self.alive:
            return
        vllm_log.info("utils.py:628", "[shutdown] Process manager: send sigterm to process EngineCore")
        os.kill(self._pid, signal.SIGTERM)
        vllm_log.warning(
            "utils.py:653", f"[shutdown] Process manager: force killing remaining process EngineCore pid {self._pid}"
        )
        for pid in self.workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.kill(self._pid, signal.SIGKILL)
        self.reap()
