"""A big log costs neither memory nor patience."""

import random
import time
import tracemalloc

import pytest

from tests.domain.diagnosis.feeding import in_bulk, line_by_line
from tests.domain.diagnosis.snippets import DEAD, ERR, FATAL, HEALTHY, NEW, SERVING, SNIPPETS
from vllm_supervisor.domain.diagnosis import Diagnoser, Scanner
from vllm_supervisor.domain.diagnosis.lines import MAX_LINE

STATS = (
    "(APIServer pid=7) INFO 09-02 08:03:{:02} [loggers.py:271] Engine 000: Avg prompt throughput: 9.0 tokens/s, "
    "Avg generation throughput: 40.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.0%, "
    "Prefix cache hit rate: 0.0%\n"
)
ACCESS = '(APIServer pid=7) INFO:     10.0.0.7:{} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
END = FATAL + ERR + "torch.OutOfMemoryError: CUDA out of memory.\n" + DEAD


def test_a_cause_behind_much_traffic() -> None:
    """32 MB of traffic: the cause is found with its line number, in a few MB, at speed."""
    block = "".join(STATS.format(n % 60) + ACCESS.format(40000 + n) * 6 for n in range(1200)).encode()
    blocks = 32 * 1024 * 1024 // len(block)
    diagnoser = Diagnoser()
    scanner = Scanner(diagnoser)
    scanner.feed((NEW + SERVING).encode())
    started = time.process_time()
    for _ in range(blocks):
        scanner.feed(block)
    spent = time.process_time() - started
    tracemalloc.start()
    scanner.feed(block)
    scanner.feed(END.encode())
    scanner.finish()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    diagnosis = diagnoser.verdict()
    assert diagnosis is not None
    assert diagnosis.cls == "oom_runtime"
    assert diagnosis.line == (NEW + SERVING).count("\n") + block.count(b"\n") * (blocks + 1) + 2
    assert peak < 8 * len(block)
    assert blocks * len(block) / spent / 1e6 > 10, "MB/s of CPU time; a fifth of what is promised, for busy machines"


def test_a_line_without_end() -> None:
    """A progress bar that never breaks its line, or a binary file: a part is kept, the rest passes by."""
    scanner = Scanner(diagnoser := Diagnoser())
    for _ in range(64):
        scanner.feed(b"\rLoading shards: 10%|#  |" * 4096)
    scanner.feed(b"\n" + END.encode())
    scanner.finish()
    diagnosis = diagnoser.verdict()
    assert diagnosis is not None
    assert diagnosis.line == 3


def test_shapes_do_not_pile_up() -> None:
    """Ten thousand different errors of requests leave a bounded memory, and no class."""
    diagnoser = Diagnoser()
    for line in (NEW + SERVING).splitlines():
        diagnoser.feed(line)
    for number in range(10_000):
        word = "".join("ghijklmnop"[int(digit)] for digit in str(number))
        diagnoser.feed(f"ERROR 09-02 08:00:00 [x.py:1] ValueError: {word}")
    assert len(diagnoser._shapes) <= 8192
    assert diagnoser.verdict() is None


def test_both_ways_agree_on_any_mixture() -> None:
    """Lines and logs in any order: skipping what cannot matter changes nothing."""
    chance = random.Random(7)
    logs = [snippet.text for snippet in SNIPPETS] + list(HEALTHY.values())
    lines = [line for log in logs for line in log.splitlines()]
    for number in range(600):
        if number % 2:
            log = "\n".join(chance.choices(lines, k=chance.randint(1, 25)))
        else:
            log = "".join(chance.choices(logs, k=3))
        assert in_bulk(log, chunk=chance.choice((7, 64, 997))) == line_by_line(log), log


@pytest.mark.parametrize("unit", ["x", " ", "1", "a b ", "A.", "/a", "Error: ", "'", "a:"])
def test_no_pattern_goes_astray(unit: str) -> None:
    """A line of one kind of characters, as long as is looked at: the time grows with the length, not with its square.

    Milliseconds; a pattern that tries every end from every beginning takes seconds.
    """
    diagnoser = Diagnoser()
    started = time.process_time()
    diagnoser.feed(unit * (2 * MAX_LINE // len(unit)) + " Error: CUDA", 1)
    assert time.process_time() - started < 0.6
