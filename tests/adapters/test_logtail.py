import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eventually import aeventually
from tests.proc import open_files
from vllm_supervisor.adapters.logtail import LIMIT, follow, tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "vllm.log"


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        pytest.param(b"", 5, b"", id="empty"),
        pytest.param(b"a\nb\nc\n", 2, b"b\nc\n", id="last two"),
        pytest.param(b"a\nb\nc", 2, b"b\nc", id="last line not finished"),
        pytest.param(b"a\nb\n", 5, b"a\nb\n", id="fewer than asked for"),
        pytest.param(b"a\n\n\n", 2, b"\n\n", id="empty lines are lines"),
        pytest.param(b"a\nb\n", 0, b"", id="none"),
        pytest.param(b"a\nb\n", -1, b"", id="less than none"),
        pytest.param(b"a\n\xff\xfe\x00\r\n", 1, b"\xff\xfe\x00\r\n", id="any bytes"),
        pytest.param(b"x" * 200_000 + b"\nend\n", 2, b"x" * 200_000 + b"\nend\n", id="over several blocks"),
    ],
)
def test_tail(log: Path, content: bytes, lines: int, expected: bytes) -> None:
    """The last lines, byte for byte."""
    log.write_bytes(content)
    assert tail(str(log), lines) == expected


@given(st.lists(st.sampled_from([b"", b"a", b"\xff" * 30_000, b"\r"])), st.booleans(), st.integers(0, 9))
def test_tail_is_what_splitting_says(parts: list[bytes], finished: bool, lines: int) -> None:
    """Reading blocks from the end gives what reading all of it would."""
    content = b"\n".join(parts) + (b"\n" if finished and parts else b"")
    whole = content.split(b"\n")
    if whole[-1] == b"":
        whole.pop()
    expected = b"\n".join(whole[-lines:]) if lines else b""
    if expected or (lines and whole):
        expected += b"\n" if content.endswith(b"\n") else b""
    file = os.memfd_create("log")
    try:
        os.write(file, content)
        assert tail(f"/proc/self/fd/{file}", lines) == expected
    finally:
        os.close(file)


def test_tail_is_bounded(log: Path) -> None:
    """A flood, and one endless line, both end at the limit."""
    log.write_bytes(b"0123456789\n" * 1_000_000)
    flood = tail(str(log), 10_000_000)
    assert LIMIT - 11 < len(flood) <= LIMIT
    log.write_bytes(b"x" * 3 * LIMIT)
    assert tail(str(log), 1) == b"x" * LIMIT


def test_tail_of_what_is_no_log(log: Path, tmp_path: Path) -> None:
    """No file yet is an empty log, and so is what is no file; a FIFO does not make us wait."""
    assert tail(str(log), 5) == b""
    assert tail(str(tmp_path), 5) == b""
    os.mkfifo(log)
    assert tail(str(log), 5) == b""


class Follower:
    """Follows in the background and keeps what came."""

    def __init__(self) -> None:
        self.seen = b""

    async def run(self, path: Path, lines: int = 0) -> None:
        async with aclosing(follow(str(path), lines)) as parts:
            async for part in parts:
                self.seen += part

    def saw(self, expected: bytes) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            assert expected.startswith(self.seen), self.seen
            return self.seen == expected

        return check


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def rotate(path: Path) -> Path:
    return path.rename(path.with_suffix(".1"))


@pytest.mark.asyncio
async def test_follow_goes_on_from_the_tail(log: Path) -> None:
    """First the lines asked for, then what is appended, nothing twice and nothing left out."""
    append(log, b"one\ntwo\nthr")
    follower = Follower()
    async with anyio.create_task_group() as group:
        group.start_soon(follower.run, log, 2)
        await aeventually(follower.saw(b"two\nthr"))
        append(log, b"ee\n\xff")
        await aeventually(follower.saw(b"two\nthree\n\xff"))
        group.cancel_scope.cancel()


@pytest.mark.asyncio
async def test_follow_across_rename_and_recreate(log: Path) -> None:
    """Rotation: the rest of the old file, written after the rename too, comes before the new one."""
    append(log, b"old\n")
    follower = Follower()
    async with anyio.create_task_group() as group:
        group.start_soon(follower.run, log, 1)
        await aeventually(follower.saw(b"old\n"))
        rotated = rotate(log)
        append(rotated, b"late\n")
        await aeventually(follower.saw(b"old\nlate\n"))
        append(rotated, b"last\n")
        append(log, b"new\n")
        await aeventually(follower.saw(b"old\nlate\nlast\nnew\n"))
        group.cancel_scope.cancel()


@pytest.mark.asyncio
async def test_follow_across_truncation(log: Path) -> None:
    """A log that is copied and truncated is read from its start again."""
    append(log, b"before\n")
    follower = Follower()
    async with anyio.create_task_group() as group:
        group.start_soon(follower.run, log, 1)
        await aeventually(follower.saw(b"before\n"))
        os.truncate(log, 0)
        append(log, b"new\n")
        await aeventually(follower.saw(b"before\nnew\n"))
        group.cancel_scope.cancel()


@pytest.mark.asyncio
async def test_follow_waits_for_a_file(log: Path) -> None:
    """Before the first launch there is no log: its first byte is seen."""
    follower = Follower()
    async with anyio.create_task_group() as group:
        group.start_soon(follower.run, log, 1)
        append(log, b"first\n")
        await aeventually(follower.saw(b"first\n"))
        group.cancel_scope.cancel()


@pytest.mark.asyncio
async def test_a_follower_far_behind_is_told_what_it_missed(log: Path) -> None:
    """A slow client of a flood gets the end of it, and the number of bytes that it did not get."""
    append(log, b"")
    async with aclosing(follow(str(log), 1)) as parts:
        append(log, b"start\n")
        assert await anext(parts) == b"start\n"
        append(log, b"x" * (3 * LIMIT) + b"\nend\n")
        told = await anext(parts)
        assert told == b"\n[vllm-supervisor: %d bytes skipped]\n" % (3 * LIMIT + 5 - 65536)
        assert (await anext(parts)).endswith(b"x\nend\n")


@pytest.mark.asyncio
async def test_no_descriptor_is_left(log: Path) -> None:
    """Closed or cancelled, a follower leaves no open file."""
    append(log, b"x\n")
    before = open_files()
    parts = follow(str(log), 1)
    assert await anext(parts) == b"x\n"
    await parts.aclose()
    async with anyio.create_task_group() as group:
        follower = Follower()
        group.start_soon(follower.run, log, 1)
        await aeventually(follower.saw(b"x\n"))
        group.cancel_scope.cancel()
    assert open_files() == before
