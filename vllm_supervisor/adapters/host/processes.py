"""The process table, for those who hold a card's memory: whose are they, and how much did they ask for."""

from dataclasses import dataclass, replace
from pathlib import Path

from vllm_supervisor.adapters.host.wanted import utilization
from vllm_supervisor.domain.doctor.facts import Holder

_MAX_ANCESTORS = 20


@dataclass(frozen=True, slots=True)
class Processes:
    """Reads `/proc`, or a copy of it. `engine` is the leader of the engine that our own daemon runs, if it does."""

    engine: int | None = None
    proc: Path = Path("/proc")

    def describe(self, holder: Holder) -> Holder:
        """Return `holder` with what its ancestors and its session tell.

        vLLM's workers rename themselves, so its flags stand in the command of the API server: an ancestor, or, when
        that one was replaced by init, the leader of the session.
        """
        line = self._line(holder.pid)
        if self.engine is not None and self.engine in line:
            return replace(holder, ours=True)
        for pid in line:
            command = self._command(pid)
            if _is_vllm(command):
                return replace(holder, instance=pid, utilization=utilization(command))
        return replace(holder, instance=holder.pid) if holder.name.startswith("VLLM::") else holder

    def _line(self, pid: int) -> list[int]:
        """Return `pid`, its ancestors, and the leader of its session."""
        line, session = [pid], 0
        for _ in range(_MAX_ANCESTORS):
            parent, own_session = self._stat(line[-1])
            session = session or own_session
            if parent <= 1:
                break
            line.append(parent)
        return [*line, session] if session else line

    def _stat(self, pid: int) -> tuple[int, int]:
        """Return parent and session of `pid`; zeros where it is gone or hidden."""
        try:
            fields = (self.proc / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return int(fields[1]), int(fields[3])
        except (OSError, ValueError, IndexError):
            return 0, 0

    def _command(self, pid: int) -> list[str]:
        try:
            data = (self.proc / f"{pid}/cmdline").read_bytes()
        except OSError:
            return []
        return [word.decode(errors="replace") for word in data.split(b"\0") if word]


def _is_vllm(command: list[str]) -> bool:
    """Say whether this is `vllm serve`, or the older `python -m vllm.entrypoints.openai.api_server`."""
    names = [word.rpartition("/")[2] for word in command[:4]]
    return ("vllm" in names and "serve" in names) or any(name.startswith("vllm.entrypoints") for name in names)
