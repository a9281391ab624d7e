"""Have a configuration read by a process of its own; see `config.plan` for the reason."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_supervisor.config.plan import Plan, decode
from vllm_supervisor.errors import ConfigError, Problem

_BUG = "report it together with the file"
_SLOW = "see whether its file system answers, then try again"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a configuration comes from, each time that it is read: the file, and what is laid over it."""

    path: Path
    sets: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)

    def begin(self) -> "Reading":
        """Begin to read it as it is now."""
        return Reading(self.path, self.sets, self.environ)


class Reading:
    """A configuration being read. Begin early, import meanwhile, then take the result."""

    def __init__(self, path: Path, sets: Sequence[str], environ: Mapping[str, str]) -> None:
        self._path = path
        request = json.dumps({"path": str(path), "sets": list(sets)})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vllm_supervisor.config.reader"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
        )
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: `result` says how
                self._process.stdin.write(request.encode())
                self._process.stdin.close()
            self._process.stdin = None

    def result(self, within: float | None = None) -> Plan:
        """Wait for the plan, at most `within` seconds. Raises ConfigError with all problems."""
        try:
            answer, complaint = self._process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.abandon()
            why = f"reading it took longer than {within:g} s"
            raise ConfigError((Problem(str(self._path), "", why, _SLOW),)) from None
        try:
            plain = json.loads(answer)
        except ValueError:
            last = (complaint.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
            why = f"reading it ended with status {self._process.returncode}: {last}"
            raise ConfigError((Problem(str(self._path), "", why, _BUG),)) from None
        if "problems" in plain:
            raise ConfigError(tuple(Problem(**problem) for problem in plain["problems"]))
        return decode(plain["plan"])

    def abandon(self) -> None:
        """Read no further. `result` then raises, wherever it is waited for."""
        self._process.kill()
