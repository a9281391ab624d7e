"""What starts that got ready took of the GPUs, in a small JSON file of the state directory."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_supervisor.domain.capacity.measured import Key, Measured, Memory
from vllm_supervisor.ports import Level, Note

FILE = "measured.json"
"""Its name in the state directory."""
_VERSION = 1
_MAX_BYTES = 1 << 20


class MeasurementFile:
    """Implements `ports.Measurements`. A file that is damaged, or from elsewhere, counts as none.

    `note` is told when it cannot be written.
    """

    def __init__(self, state_dir: Path, note: Callable[[Note], None]) -> None:
        self._path = state_dir / FILE
        self._note = note

    def keep(self, key: Key, figures: Measured) -> None:
        """Replace the file at once: a crash leaves the old or the new one."""
        try:
            known = read(self._path.parent)
        except OSError:
            known = Memory()
        starts = known.with_start(key, figures).starts
        plain = [{"start": one._asdict(), "figures": asdict(found)} for one, found in starts]
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            fresh.write_text(json.dumps({"version": _VERSION, "starts": plain}))
            os.replace(fresh, self._path)  # noqa: PTH105 -- Path.replace is the same, and hides that it is atomic
        except OSError as error:
            self._note(Note("measurements_not_written", Level.WARNING, {"path": str(self._path), "why": str(error)}))


def read(state_dir: Path) -> Memory:
    """Return what is remembered there. Raises OSError where the file is there and may not be read."""
    try:
        with (state_dir / FILE).open("rb") as file:
            data = json.loads(file.read(_MAX_BYTES))
        return Memory(tuple(_start(item) for item in data["starts"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Memory()


def _start(item: Any) -> tuple[Key, Measured]:
    """Check what a file says; it may have been edited. Raises ValueError, KeyError, TypeError, AttributeError."""
    key, figures = Key(**item["start"]), Measured(**item["figures"])
    texts = (key.model, key.arguments, key.gpu, key.vllm_version or "")
    numbers = [value for value in asdict(figures).values() if value is not None]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(item)
    if not all(isinstance(number, int | float) and not isinstance(number, bool) and number >= 0 for number in numbers):
        raise ValueError(item)
    return key, figures
