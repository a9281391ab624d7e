"""A file that cannot be made sense of: kept for whoever wants to know, out of the way of its successor."""

import os
from contextlib import suppress
from pathlib import Path

from vllm_supervisor.ports import Level, Note


def set_aside(path: Path, why: str, lost: str) -> Note:
    """Move a damaged file to `NAME.damaged`, over an earlier one, and return the note about it. Never raises.

    `lost` says in words what is not known any more.
    """
    aside = path.with_name(f"{path.name}.damaged")
    fields: dict[str, object] = {"path": str(path), "why": why, "lost": lost}
    with suppress(OSError):
        os.replace(path, aside)  # noqa: PTH105 -- Path.replace is the same, and hides that it is atomic
        fields["kept"] = str(aside)
    return Note("state_file_damaged", Level.WARNING, fields)


def unreadable(path: Path, error: OSError, lost: str) -> Note:
    """Return the note about a file that may be whole, and cannot be read."""
    fields = {"path": str(path), "why": error.strerror or str(error), "lost": lost}
    return Note("state_file_not_read", Level.WARNING, fields)
