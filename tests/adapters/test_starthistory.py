"""The history of starts in a file: kept, replaced at once, and forgiven when damaged."""

import json
from pathlib import Path

import pytest

from vllm_supervisor.adapters.statefiles.starthistory import HistoryFile
from vllm_supervisor.domain.startup import PastStart, PastStarts, StartPhase
from vllm_supervisor.ports import Note

START = PastStart("org/m", "0123", "0.32.0", {StartPhase.LAUNCHING: 13.0, StartPhase.WARMING_UP: 0.25})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """By another daemon, too; nothing else is left beside it."""
    past = PastStarts((START, PastStart("org/n", "4567", None, {})))
    HistoryFile(tmp_path / "history.json", _fail).save(past)
    assert HistoryFile(tmp_path / "history.json", _fail).load() == past
    assert [path.name for path in tmp_path.iterdir()] == ["history.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"starts": 7}',
        b'{"starts": [{}]}',
        b'{"starts": [{"model": 1, "arguments": "a", "vllm_version": null, "phases": {}}]}',
        b'{"starts": [{"model": "m", "arguments": "a", "vllm_version": null, "phases": {"flying": 1}}]}',
        b'{"starts": [{"model": "m", "arguments": "a", "vllm_version": null, "phases": {"launching": NaN}}]}',
        b'{"starts": [{"model": "m", "arguments": "a", "vllm_version": null, "phases": {"launching": -1}}]}',
        b'{"starts": [{"model": "m", "arguments": "a", "vllm_version": null, "phases": []}]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_counts_as_none(content: bytes, tmp_path: Path) -> None:
    """A forecast is not worth a failure; the next start writes a whole one. The damaged one is kept, and told once."""
    path = tmp_path / "history.json"
    path.write_bytes(content)
    notes: list[Note] = []
    history = HistoryFile(path, notes.append)
    assert history.load() == PastStarts()
    assert history.load() == PastStarts()
    assert [(note.kind, note.fields["kept"]) for note in notes] == [("state_file_damaged", f"{path}.damaged")]
    assert Path(f"{path}.damaged").read_bytes() == content
    history.save(PastStarts((START,)))
    assert json.loads(path.read_text())["starts"][0]["model"] == "org/m"


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A full disk, or a folder that is gone: a note, and no exception."""
    notes: list[Note] = []
    HistoryFile(tmp_path / "gone" / "history.json", notes.append).save(PastStarts((START,)))
    assert [note.kind for note in notes] == ["history_not_written"]
    assert HistoryFile(tmp_path / "gone" / "history.json", notes.append).load() == PastStarts()


def _fail(note: Note) -> None:
    pytest.fail(str(note))
