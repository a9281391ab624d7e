"""The starts that got ready, in a small JSON file of the state directory."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_supervisor.adapters.statefiles.damaged import set_aside, unreadable
from vllm_supervisor.domain.startup import PastStart, PastStarts, StartPhase
from vllm_supervisor.ports import Level, Note

_MAX_BYTES = 1 << 20
_MAX_SECONDS = 30 * 86400.0
_MAX_WHY = 200
_LOST = "how long earlier starts took: the next ones are shown without a forecast"


class HistoryFile:
    """Implements `ports.StartHistory`. A file that is damaged, or from elsewhere, is set aside and counts as none.

    `note` is told of that, and when it cannot be read or written.
    """

    def __init__(self, path: Path, note: Callable[[Note], None]) -> None:
        self._path = path
        self._note = note

    def load(self) -> PastStarts:
        """Return what is remembered."""
        try:
            with self._path.open("rb") as file:
                data = json.loads(file.read(_MAX_BYTES))
            return PastStarts(tuple(_start(item) for item in data["starts"]))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._note(unreadable(self._path, error, _LOST))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._note(set_aside(self._path, f"{type(error).__name__}: {error}"[:_MAX_WHY], _LOST))
        return PastStarts()

    def save(self, starts: PastStarts) -> None:
        """Replace the file at once: a crash leaves the old or the new one."""
        plain = [
            {
                "model": start.model,
                "arguments": start.arguments,
                "vllm_version": start.vllm_version,
                "phases": {phase.value: round(seconds, 3) for phase, seconds in start.phases.items()},
            }
            for start in starts.starts
        ]
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            fresh.write_text(json.dumps({"version": 1, "starts": plain}))
            os.replace(fresh, self._path)  # noqa: PTH105 -- Path.replace is the same, and hides that it is atomic
        except OSError as error:
            self._note(Note("history_not_written", Level.WARNING, {"path": str(self._path), "why": str(error)}))


def _start(item: Any) -> PastStart:
    """Check what a file says; it may have been edited. Raises ValueError, KeyError, TypeError, AttributeError."""
    model, arguments, version = item["model"], item["arguments"], item["vllm_version"]
    if not isinstance(model, str) or not isinstance(arguments, str) or not isinstance(version, str | None):
        raise TypeError(item)
    phases = {StartPhase(name): float(seconds) for name, seconds in item["phases"].items()}
    if not all(0 <= seconds <= _MAX_SECONDS for seconds in phases.values()):
        raise ValueError(item)
    return PastStart(model, arguments, version, phases)
