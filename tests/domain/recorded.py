"""Texts that users read, kept in files: a change shows as a diff of what they will read."""

import os
from collections.abc import Iterable
from pathlib import Path

RECORD = "RECORD_TEXTS"
"""Set it to 1 to write the files anew, then read the diff."""


def compare(path: Path, lines: Iterable[str]) -> None:
    """Assert that `lines` are those in the file at `path`."""
    told = "".join(f"{line}\n" for line in lines)
    if os.environ.get(RECORD) == "1":
        path.write_text(told)
    else:
        assert told == path.read_text()
