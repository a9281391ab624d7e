"""Rotation under a writer that never stops."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.eventually import eventually
from vllm_supervisor.adapters.rotation import Rotated, Rotation

LINE = 61
WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
limit = int(sys.argv[2])
for number in range(limit):
    os.write(fd, b"%09d a line of the engine, long enough to look like one\\n" % number)
"""


@pytest.fixture(params=["ext4 or whatever is here", "tmpfs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder where a file's head can be taken out in one step, and one where it cannot."""
    if request.param == "tmpfs":
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("/dev/shm is not writable")
        with TemporaryDirectory(dir="/dev/shm") as name:
            yield Path(name)
    else:
        yield tmp_path


@contextmanager
def writing(path: Path, lines: int) -> Iterator[subprocess.Popen[bytes]]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(lines)])
    try:
        yield writer
    finally:
        writer.kill()
        writer.wait()


def numbers(folder: Path, name: str) -> list[int]:
    """Return the numbers of the lines in all files, oldest first."""
    older = sorted(folder.glob(name + ".*"), key=lambda path: -int(path.suffix[1:]))
    text = b"".join(path.read_bytes() for path in [*older, folder / name])
    return [int(line[:9]) for line in text.splitlines() if len(line) == LINE - 1]


def test_a_writer_that_never_stops_loses_next_to_nothing(folder: Path) -> None:
    """Every line is in some file, once and in order, where the head can be taken out.

    Where it cannot, each cut loses one stretch at most, and no byte is counted as lost that is kept. How long a stretch
    is cannot be bounded: what comes between the last look and the cut is written by somebody else while we may be
    waiting for a core, and a truncated file does not tell how long it was.
    """
    log = folder / "vllm.log"
    rotation = Rotation(str(log), 1_000_000, 50)
    done: list[Rotated] = []
    with writing(log, 150_000) as writer:
        while writer.poll() is None:
            rotated = rotation.while_written()
            if rotated:
                done.append(rotated)
    seen = numbers(folder, "vllm.log")
    assert done
    assert seen == sorted(set(seen))
    kept = sum(path.stat().st_size for path in folder.iterdir())
    lost = sum(rotated.lost for rotated in done)
    assert kept + lost <= 150_000 * LINE
    if all(rotated.how == "collapse" for rotated in done):
        assert (kept, lost) == (150_000 * LINE, 0)
        assert len(seen) == 150_000
    stretches = sum(after > before + 1 for before, after in zip([-1, *seen], [*seen, 150_000], strict=True))
    assert stretches <= sum(rotated.how == "truncate" for rotated in done)
    assert all(path.stat().st_mode & 0o777 == 0o640 for path in folder.iterdir())


def test_no_more_files_than_are_to_be_kept(folder: Path) -> None:
    """The oldest goes when a new one comes, and what a higher limit left; with none to keep, the file is emptied."""
    log = folder / "vllm.log"
    others = {"vllm.log.1.gz", "vllm.log.01", "vllm.log.old", "vllm.log.new-one"}
    for name in others:
        (folder / name).touch()
    rotation = Rotation(str(log), 10_000, 3)
    for number in range(6):
        log.write_bytes(b"%d" % number * 20_000)
        assert rotation.while_written()
    assert older(folder) - others == {"vllm.log.1", "vllm.log.2", "vllm.log.3"}
    assert (folder / "vllm.log.1").read_bytes()[:1] == b"5"
    assert (folder / "vllm.log.3").read_bytes()[:1] == b"3"
    for keep, left in ((1, {"vllm.log.1"}), (0, set())):
        rotation.limit(10_000, keep)
        log.write_bytes(b"6" * 20_000)
        assert rotation.while_written()
        assert older(folder) == others | left
    assert log.stat().st_size == 0


def older(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"vllm.log"}


def test_at_rest_the_file_is_renamed(folder: Path) -> None:
    """Between two engines nobody writes: the whole file becomes the older one."""
    log = folder / "vllm.log"
    log.write_bytes(b"x" * 20_000)
    rotated = Rotation(str(log), 10_000, 2).at_rest()
    assert rotated == Rotated(20_000, 0, "rename")
    assert not log.exists()
    assert (folder / "vllm.log.1").stat().st_size == 20_000


def test_small_or_missing_files_are_left_alone(folder: Path) -> None:
    """Nothing happens below the limit, without a file, or with a limit of 0."""
    log = folder / "vllm.log"
    assert Rotation(str(log), 10, 2).while_written() is None
    log.write_bytes(b"x" * 9)
    assert Rotation(str(log), 10, 2).while_written() is None
    assert Rotation(str(log), 0, 2).while_written() is None
    assert Rotation(str(log), 10, 2).at_rest() is None


def test_a_copy_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    """Where the copy fails, the file, and the older ones, stay as they are."""
    log = tmp_path / "vllm.log"
    log.write_bytes(b"x" * 20_000)
    (tmp_path / "vllm.log.1").write_bytes(b"older")
    (tmp_path / "vllm.log.new").mkdir()
    with pytest.raises(OSError, match=r"vllm\.log\.new"):
        Rotation(str(log), 10_000, 2).while_written()
    assert log.stat().st_size == 20_000
    assert (tmp_path / "vllm.log.1").read_bytes() == b"older"


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    """Somebody who may write in the folder must not have us empty another file."""
    other = tmp_path / "precious"
    other.write_bytes(b"x" * 20_000)
    (tmp_path / "vllm.log").symlink_to(other)
    with pytest.raises(OSError, match=r"vllm\.log"):
        Rotation(str(tmp_path / "vllm.log"), 10_000, 2).while_written()
    assert other.stat().st_size == 20_000


def test_a_writer_goes_on_at_the_end(folder: Path) -> None:
    """After a rotation the writer's next line stands at the end of the shortened file, not behind a hole."""
    log = folder / "vllm.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * 20_000)
        assert Rotation(str(log), 10_000, 2).while_written()
        writer.write(b"after\n")
    eventually(lambda: log.read_bytes().endswith(b"after\n"))
    assert log.stat().st_size < 10_000
    assert b"\0" not in log.read_bytes()
