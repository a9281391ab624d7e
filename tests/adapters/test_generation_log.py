"""One generation's part of the log: nothing from before it, bounded in bytes and time, and quoted without secrets."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vllm_supervisor.adapters.logreader import GenerationLog
from vllm_supervisor.domain.diagnosis import Context

pytestmark = pytest.mark.asyncio

CAUSE = "vllm: error: unrecognized arguments: --no-such-flag\n"
OTHER = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
FAILED = Context(exit_code=2)


@dataclass
class FakeJournal:
    """Implements what reads parts of a log that is no file."""

    unread: str | None
    pieces: list[bytes]
    asked: list[int] = field(default_factory=list)

    def part(self, generation: int) -> list[bytes]:
        self.asked.append(generation)
        return self.pieces


def part(path: Path) -> GenerationLog:
    return GenerationLog(str(path), lambda text: text.replace("no-such", "***"))


def write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "vllm.log"


async def test_only_what_was_written_since(log: Path) -> None:
    """An earlier engine's cause is not this one's, and lines count from the launch."""
    write(log, OTHER + "filler\n" + CAUSE)
    found = await part(log).diagnose(len(OTHER), FAILED)
    assert found is not None
    assert (found.cls, found.line) == ("bad_cli_argument", 2)
    assert found.evidence is not None
    assert "--***-flag" in found.evidence


async def test_a_log_that_was_cut_since(log: Path) -> None:
    """Shorter than at the launch, it was rotated or truncated: then all of it is later."""
    write(log, CAUSE)
    found = await part(log).diagnose(1_000_000, FAILED)
    assert found is not None
    assert found.cls == "bad_cli_argument"


async def test_a_log_without_a_last_newline(log: Path) -> None:
    """The last words of a dying engine count, finished or not."""
    write(log, CAUSE.rstrip())
    assert await part(log).diagnose(0, FAILED) is not None


async def test_a_healthy_log(log: Path) -> None:
    """Nothing in it, nothing beside it: no cause."""
    write(log, "INFO 05-01 10:00:00 [api_server.py:1] all is well\n")
    assert await part(log).diagnose(0, Context()) is None


async def test_no_log_to_read(log: Path) -> None:
    """Of a journal that may not be read, what is known beside it counts; a missing file is an error."""
    found = await GenerationLog("journal", str, FakeJournal("not allowed", [])).diagnose(0, Context(signal=11))
    assert found is not None
    assert found.cls == "segfault"
    with pytest.raises(FileNotFoundError):
        await part(log).diagnose(0, FAILED)


async def test_a_part_that_is_no_file() -> None:
    """What the journal has of the generation is read in pieces, wherever they are cut."""
    journal = FakeJournal(None, [b"filler\nvllm: error: unrecog", b"nized arguments: --no-such-flag\n"])
    found = await GenerationLog("journal", str, journal).diagnose(7, FAILED)
    assert found is not None
    assert (found.cls, found.line) == ("bad_cli_argument", 2)
    assert journal.asked == [7]


async def test_the_last_megabytes_of_a_flood(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond the limit is not read; the end always is."""
    monkeypatch.setattr(GenerationLog, "LIMIT", 1000)
    write(log, OTHER + "filler\n" * 1000 + CAUSE)
    found = await part(log).diagnose(0, FAILED)
    assert found is not None
    assert (found.cls, found.secondary) == ("bad_cli_argument", ())


async def test_when_time_is_up_the_end_is_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk or host: the middle is skipped, and the last words are still heard."""
    monkeypatch.setattr(GenerationLog, "SECONDS", -1.0)
    monkeypatch.setattr(GenerationLog, "PIECE", 100)
    monkeypatch.setattr(GenerationLog, "TAIL", 500)
    write(log, "filler\n" * 100 + OTHER + "filler\n" * 100 + CAUSE)
    found = await part(log).diagnose(0, FAILED)
    assert found is not None
    assert (found.cls, found.secondary) == ("bad_cli_argument", ())
