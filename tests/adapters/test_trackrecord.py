"""What is remembered of configurations, across daemons and whatever happened to the file."""

import stat
from pathlib import Path

import pytest

from vllm_supervisor.adapters.statefiles.trackrecord import StoredTrackRecord
from vllm_supervisor.ports import Level, Note

pytestmark = pytest.mark.asyncio


def _none(note: Note) -> None:
    raise AssertionError(note)


async def test_ready_is_remembered_per_configuration(tmp_path: Path) -> None:
    """Another daemon knows; another configuration is another matter."""
    record = StoredTrackRecord(tmp_path, "a", _none)
    assert not record.proven
    await record.ready()
    assert record.proven
    assert StoredTrackRecord(tmp_path, "a", _none).proven
    assert not StoredTrackRecord(tmp_path, "b", _none).proven
    assert stat.S_IMODE((tmp_path / "proven.json").stat().st_mode) == 0o600


async def test_bounded(tmp_path: Path) -> None:
    """The last hundred configurations are kept; one that is used again counts as the latest."""
    await StoredTrackRecord(tmp_path, "first", _none).ready()
    for number in range(99):
        await StoredTrackRecord(tmp_path, str(number), _none).ready()
    await StoredTrackRecord(tmp_path, "first", _none).ready()
    await StoredTrackRecord(tmp_path, "last", _none).ready()
    assert StoredTrackRecord(tmp_path, "first", _none).proven
    assert not StoredTrackRecord(tmp_path, "0", _none).proven
    assert StoredTrackRecord(tmp_path, "1", _none).proven


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"version": 2, "proven": ["a"], "tried": {}}',
        b'{"version": 1, "proven": 3, "tried": {}}', b'{"version": 1, "proven": ["a"], "tried": []}',
        b'{"version": 1, "proven": ["a"], "tried": {"a": 1}}',
    ],
)  # fmt: skip
async def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    """The next word replaces it; it is kept aside, and that is said, with what was lost."""
    path = tmp_path / "proven.json"
    path.write_bytes(content)
    notes: list[Note] = []
    record = StoredTrackRecord(tmp_path, "a", notes.append)
    assert not record.proven
    (note,) = notes
    assert (note.kind, note.level, note.fields["path"]) == ("state_file_damaged", Level.WARNING, str(path))
    assert "ready here" in str(note.fields["lost"])
    assert (tmp_path / "proven.json.damaged").read_bytes() == content
    assert note.fields["kept"] == str(tmp_path / "proven.json.damaged")
    await record.ready()
    assert StoredTrackRecord(tmp_path, "a", _none).proven


async def test_once_until_ready_again(tmp_path: Path) -> None:
    """A remedy is tried once per configuration, by whichever daemon; readiness makes it worth another try."""
    record = StoredTrackRecord(tmp_path, "a", _none)
    assert await record.once("cure")
    assert not await record.once("cure")
    assert await record.once("other cure")
    assert not await StoredTrackRecord(tmp_path, "a", _none).once("cure")
    assert await StoredTrackRecord(tmp_path, "b", _none).once("cure")
    await StoredTrackRecord(tmp_path, "a", _none).ready()
    assert await StoredTrackRecord(tmp_path, "a", _none).once("cure")


async def test_a_full_disk(tmp_path: Path) -> None:
    """What cannot be written is known to this daemon all the same."""
    record = StoredTrackRecord(tmp_path / "gone", "a", _none)
    with pytest.raises(OSError, match="gone"):
        await record.ready()
    assert record.proven


async def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """It may be whole: it is left where it is, and said."""
    (tmp_path / "proven.json").mkdir()
    notes: list[Note] = []
    assert not StoredTrackRecord(tmp_path, "a", notes.append).proven
    assert [(note.kind, note.fields["why"]) for note in notes] == [("state_file_not_read", "Is a directory")]
    assert (tmp_path / "proven.json").is_dir()
