"""A generation's part of the log, read as it grows: from its start, whatever happens to the file."""

import os
from pathlib import Path

import pytest

from vllm_supervisor.adapters.enginelog import BEHIND, CARRY, PART, EngineLog


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def everything(log: EngineLog) -> list[str]:
    found: list[str] = []
    while lines := log.take():
        found += lines
    return found


def test_it_begins_where_the_generation_does(tmp_path: Path) -> None:
    """Lines of an earlier engine are not this one's."""
    path = tmp_path / "vllm.log"
    path.write_bytes(b"old\n")
    log = EngineLog(str(path), 4)
    assert log.take() == []
    append(path, b"new\nun")
    assert log.take() == ["new"]
    append(path, b"finished\n")
    assert log.take() == ["unfinished"]


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    """That is no error; it may come later."""
    log = EngineLog(str(tmp_path / "later.log"), 0)
    assert log.take() == []
    append(tmp_path / "later.log", b"here\n")
    assert log.take() == ["here"]


def test_truncation_and_rotation(tmp_path: Path) -> None:
    """Copy-and-truncate, and a rename with a new file in its place: reading goes on from the start of what is there."""
    path = tmp_path / "vllm.log"
    append(path, b"one\ntwo, a longer one\n")
    log = EngineLog(str(path), 0)
    assert log.take() == ["one", "two, a longer one"]
    path.write_bytes(b"three\n")
    assert log.take() == ["three"]
    path.rename(tmp_path / "vllm.log.1")
    append(path, b"four, in a file longer than the one before\n")
    assert log.take() == ["four, in a file longer than the one before"]


def test_bars_drawn_in_place(tmp_path: Path) -> None:
    """Carriage returns end lines; a bar that stands is told as it stands, once."""
    path = tmp_path / "vllm.log"
    append(path, b"\rshards: 0%\rshards: 25%\rshards: 50%")
    log = EngineLog(str(path), 0)
    assert log.take() == ["shards: 0%", "shards: 25%"]
    assert log.take() == ["shards: 50%"]
    assert log.take() == []
    append(path, b"\rshards: 75%")
    assert log.take() == ["shards: 50%"]
    assert log.take() == ["shards: 75%"]
    append(path, b"\n")
    assert log.take() == ["shards: 75%"]


def test_a_flood_costs_bounded_work(tmp_path: Path) -> None:
    """Far behind, the rest is skipped and the end is read; a line without end is cut."""
    path = tmp_path / "vllm.log"
    append(path, b"flood of words\n" * (3 * BEHIND // 15) + b"the end\n")
    log = EngineLog(str(path), 0)
    lines = log.take()
    assert lines[-1] == "the end"
    assert sum(map(len, lines)) <= PART
    append(path, b"x" * (2 * BEHIND - 100))
    assert all(len(line) <= PART + CARRY for line in everything(log))
    append(path, b"\nafter\n")
    assert everything(log)[-1] == "after"


def test_any_bytes(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, and NULs of a sparse file, are lines too."""
    path = tmp_path / "vllm.log"
    append(path, b"\xff\xfe caf\xe9\n\0\0\0\nok\n")
    assert EngineLog(str(path), 0).take() == ["\ufffd\ufffd caf\ufffd", "\0\0\0", "ok"]


def test_what_is_no_file(tmp_path: Path) -> None:
    """A folder, or a FIFO that nobody writes to, neither holds up nor fails."""
    os.mkfifo(tmp_path / "fifo")
    assert EngineLog(str(tmp_path / "fifo"), 0).take() == []
    assert EngineLog(str(tmp_path), 0).take() == []


@pytest.mark.asyncio
async def test_reading_in_a_thread(tmp_path: Path) -> None:
    """`read` is `take`, beside the loop."""
    append(tmp_path / "vllm.log", b"line\n")
    assert await EngineLog(str(tmp_path / "vllm.log"), 0).read() == ["line"]
