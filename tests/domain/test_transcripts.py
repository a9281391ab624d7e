import os
from pathlib import Path

import pytest

from tests.domain.script import replay

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
RECORD = "RECORD_TRANSCRIPTS"
"""Set it to 1 to write the machine's answers into the files, then read the diff."""


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """The machine answers each story as recorded, to the field and the millisecond."""
    recorded = path.read_text()
    answered = replay(recorded)
    if os.environ.get(RECORD) == "1":
        path.write_text(answered)
    else:
        assert answered == recorded


def test_there_are_transcripts() -> None:
    """A wrong folder must not pass for a pass."""
    assert len(TRANSCRIPTS) >= 13


@pytest.mark.parametrize("line", ["at 1 dance", "perhaps", "at 1 start\nat 0 stop"])
def test_a_line_that_is_none_is_an_error(line: str) -> None:
    """A slip of the pen must not be skipped as a comment; time does not run backwards."""
    with pytest.raises(AssertionError):
        replay(line)
