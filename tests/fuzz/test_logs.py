"""Whatever an engine writes, and however it arrives: no reader of logs raises, and a cut changes nothing."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, example, given

from tests.fuzz.logs import SOME, cut_logs, logs
from vllm_supervisor.adapters.enginelog import CARRY, EngineLog
from vllm_supervisor.adapters.logreader import GenerationLog, read_into
from vllm_supervisor.adapters.logtail import tail
from vllm_supervisor.domain.advice.statsline import StatsReader
from vllm_supervisor.domain.diagnosis import Context, Diagnoser, Diagnosis, Scanner
from vllm_supervisor.domain.startup import StartReader

HUGE = b"9" * 5000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "vllm.log"


def scanned(pieces: list[bytes]) -> Diagnosis | None:
    diagnoser = Diagnoser()
    scanner = Scanner(diagnoser)
    for piece in pieces:
        scanner.feed(piece)
    scanner.finish()
    return diagnoser.verdict(Context(exit_code=1))


@SOME
@given(cut_logs())
def test_a_cause_is_the_same_however_the_log_is_cut(cut: tuple[bytes, list[bytes]]) -> None:
    """The bulk reader takes chunks of a file: where they end is chance."""
    log, pieces = cut
    assert scanned(pieces) == scanned([log])


@SOME
@given(logs)
@example(b'{"message":' + b"[" * 8000)
@example(b"Avg prompt throughput: 1.2.3 tokens/s, Avg generation throughput: 1 tokens/s, Running: 1 reqs, Waiting: 0")
@example(
    b"Avg prompt throughput: 1 tokens/s, Avg generation throughput: 1 tokens/s, Running: %b reqs, Waiting: 0" % HUGE
)
def test_any_file_can_be_diagnosed(log: bytes) -> None:
    """As `diagnose FILE` does, and the daemon for the end of a generation."""
    with tempfile.TemporaryFile() as stream:
        stream.write(log)
        stream.seek(0)
        read_into(whole := Diagnoser(), stream)
    by_line = Diagnoser()
    for line in log.decode(errors="replace").split("\n"):
        by_line.feed(line)
    whole.verdict()
    by_line.verdict()


@SOME
@given(logs)
def test_any_part_of_a_log_can_be_diagnosed(file: Path, log: bytes) -> None:
    """A generation that begins anywhere in the file, or beyond its end."""
    file.write_bytes(log)
    part = GenerationLog(str(file), str)
    for start in (0, len(log) // 2, len(log) + 1):
        part._diagnose(start, Context(exit_code=1))


@SOME
@given(logs)
@example(b"GPU KV cache size: %b tokens" % HUGE[:400])
@example(b"Loading shards: 5%%| 1/%b [00:01" % HUGE)
def test_any_start_can_be_followed(log: bytes) -> None:
    """Phases go forward only, and the ratio of one stays within 0 and 1."""
    reader, phase = StartReader(), StartReader().phase
    for line in log.decode(errors="replace").splitlines():
        reader.feed(line)
        assert reader.phase.rank >= phase.rank
        assert reader.progress.ratio is None or 0 <= reader.progress.ratio <= 1
        phase = reader.phase


@SOME
@given(logs)
@example(b"max_num_seqs=%b" % HUGE[:400])
@example(b"Avg prompt throughput: 1 tokens/s, Running: 1 reqs\nPrefix cache hit rate: GPU: 1.2.3%, CPU: 0.00%")
def test_any_log_can_be_judged(log: bytes) -> None:
    """The stats lines that advice is drawn from."""
    reader = StatsReader()
    for line in log.decode(errors="replace").splitlines():
        reader.feed(line)
    assert all(sample.running >= 0 for sample in reader.samples())
    reader.setting()


def followed(file: Path, pieces: list[bytes]) -> list[str]:
    """Return the lines as they come when `pieces` are appended one by one."""
    file.write_bytes(b"")
    log, lines = EngineLog(str(file), 0), []
    for piece in pieces:
        with file.open("ab") as stream:
            stream.write(piece)
        while piece and (found := log.take()):
            lines += found
            piece = b""  # noqa: PLW2901 - one look a piece: a second one would tell a bar as it stands
    for _ in range(3):
        lines += log.take()
    return lines


@SOME
@given(cut_logs())
def test_lines_are_the_same_however_they_arrive(file: Path, cut: tuple[bytes, list[bytes]]) -> None:
    """Written in one go or byte by byte, the lines of a start are those between line ends that say something."""
    log, pieces = cut
    assume(max(map(len, log.splitlines()), default=0) < CARRY)  # longer ones are told in parts, wherever these end
    expected = [line.decode(errors="replace") for line in log.replace(b"\r", b"\n").split(b"\n") if line.strip()]
    assert followed(file, pieces) == expected


@SOME
@given(logs)
def test_a_tail_is_the_end_of_the_file(file: Path, log: bytes) -> None:
    """`logs -n N` shows the last N lines byte for byte, an unfinished one included."""
    file.write_bytes(log)
    for count in (0, 1, 3, 1000):
        kept = log.split(b"\n")
        ends = kept[-1] == b""
        body = kept[:-1] if ends else kept
        expected = b"\n".join(body[-count:]) + (b"\n" if ends else b"") if count and log else b""
        assert tail(str(file), count) == expected
