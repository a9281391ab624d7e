"""What is remembered of configurations, across daemons and whatever happened to the file."""

import stat
from pathlib import Path

import pytest

from vllm_supervisor.adapters.trackrecord import StoredTrackRecord

pytestmark = pytest.mark.asyncio


async def test_ready_is_remembered_per_configuration(tmp_path: Path) -> None:
    """Another daemon knows; another configuration is another matter."""
    record = StoredTrackRecord(tmp_path, "a")
    assert not record.proven
    await record.ready()
    assert record.proven
    assert StoredTrackRecord(tmp_path, "a").proven
    assert not StoredTrackRecord(tmp_path, "b").proven
    assert stat.S_IMODE((tmp_path / "proven.json").stat().st_mode) == 0o600


async def test_bounded(tmp_path: Path) -> None:
    """The last hundred configurations are kept; one that is used again counts as the latest."""
    await StoredTrackRecord(tmp_path, "first").ready()
    for number in range(99):
        await StoredTrackRecord(tmp_path, str(number)).ready()
    await StoredTrackRecord(tmp_path, "first").ready()
    await StoredTrackRecord(tmp_path, "last").ready()
    assert StoredTrackRecord(tmp_path, "first").proven
    assert not StoredTrackRecord(tmp_path, "0").proven
    assert StoredTrackRecord(tmp_path, "1").proven


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"version": 2, "proven": ["a"], "tried": {}}',
        b'{"version": 1, "proven": 3, "tried": {}}', b'{"version": 1, "proven": ["a"], "tried": []}',
        b'{"version": 1, "proven": ["a"], "tried": {"a": 1}}',
    ],
)  # fmt: skip
async def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    """And the next word replaces it."""
    (tmp_path / "proven.json").write_bytes(content)
    record = StoredTrackRecord(tmp_path, "a")
    assert not record.proven
    await record.ready()
    assert StoredTrackRecord(tmp_path, "a").proven


async def test_once_until_ready_again(tmp_path: Path) -> None:
    """A remedy is tried once per configuration, by whichever daemon; readiness makes it worth another try."""
    record = StoredTrackRecord(tmp_path, "a")
    assert await record.once("cure")
    assert not await record.once("cure")
    assert await record.once("other cure")
    assert not await StoredTrackRecord(tmp_path, "a").once("cure")
    assert await StoredTrackRecord(tmp_path, "b").once("cure")
    await StoredTrackRecord(tmp_path, "a").ready()
    assert await StoredTrackRecord(tmp_path, "a").once("cure")


async def test_a_full_disk(tmp_path: Path) -> None:
    """What cannot be written is known to this daemon all the same."""
    record = StoredTrackRecord(tmp_path / "gone", "a")
    with pytest.raises(OSError, match="gone"):
        await record.ready()
    assert record.proven
