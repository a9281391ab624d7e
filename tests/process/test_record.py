"""The state file on a disk that is full."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_supervisor.adapters.process.record import Identity, Record, Records


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if mount is None or os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


def test_the_record_is_written_where_nothing_else_can_be(small_disk: Path) -> None:
    """A restart does not wait for room: the new record goes over the old one, and nothing half-written stays."""
    records = Records(small_disk)
    first = Record(1, "boot", Identity(10, 11), Identity(20, 21))
    records.write(first)
    fill(small_disk)
    second = Record(2, "boot", Identity(10, 11))
    records.write(second)
    assert records.read() == second
    assert sorted(path.name for path in small_disk.iterdir()) == ["engine.json", "filler"]


def test_without_an_old_record_a_full_disk_is_an_error(small_disk: Path) -> None:
    """The first launch is not made without a record: then nothing would tell the next daemon of it."""
    fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        Records(small_disk).write(Record(1, "boot", Identity(10, 11)))
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
