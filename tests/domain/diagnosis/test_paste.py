"""Logs as they are pasted: with a margin, numbered, broken at a terminal's width, in one line."""

import textwrap

import pytest

from tests.domain.diagnosis.feeding import in_bulk
from tests.domain.diagnosis.snippets import ERR, FAILED, GIVEN_UP, HEALTHY, NEW, SERVING, SNIPPETS
from vllm_supervisor.domain.diagnosis import Diagnoser, Scanner
from vllm_supervisor.domain.diagnosis.lines import MAX_LINE
from vllm_supervisor.domain.diagnosis.paste import MAX_JOINED, Paste

CAUSE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 23 GiB."
LONG = (
    NEW
    + "".join(f"(EngineCore pid=9) INFO 09-02 08:00:3{n} [x.py:1] {'something of interest ' * 7}\n" for n in range(9))
    + FAILED
    + ERR
    + "ValueError: Free memory on device (11.52/79.25 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 71.33 GiB). Decrease GPU memory utilization.\n" + GIVEN_UP
)


def broken(log: str, width: int) -> str:
    """Break every line at `width`, as a terminal does."""
    rows = [line[at : at + width] for line in log.split("\n") for at in range(0, max(1, len(line)), width)]
    return "\n".join(rows)


@pytest.mark.parametrize("spaces", [4, 8, 12])
def test_an_indented_block(spaces: int) -> None:
    """Markdown's way to quote: no line is taken for source code in a traceback, and frames still are."""
    for snippet in SNIPPETS[::4]:
        found = in_bulk(textwrap.indent(snippet.text, " " * spaces))
        assert found is not None, snippet.name
        plain = in_bulk(snippet.text)
        assert plain is not None
        assert (found.cls, found.line, found.action) == (plain.cls, plain.line, plain.action), snippet.name
    for name, text in HEALTHY.items():
        assert in_bulk(textwrap.indent(text, " " * spaces)) is None, name


def test_the_tail_of_a_traceback_is_no_indented_block() -> None:
    """Every line of it is indented, none begins as a line of a log does."""
    assert in_bulk('      raise ValueError("CUDA out of memory")\n      ^^^^\n    count = 1\n') is None


@pytest.mark.parametrize("width", [62, 80, 100, 120, 132])
def test_lines_broken_at_a_width(width: int) -> None:
    """A terminal's copy: the numbers in the remedy, which stand in two of its lines, and the first one's number."""
    log = broken(LONG, width)
    found = in_bulk(log, chunk=1 << 20)
    assert found is not None
    assert found.cls == "gpu_memory_not_free"
    assert "71.33 GiB are wanted" in found.action
    assert found.line is not None
    assert "[core.py:1330] Val" in broken(LONG, width).split("\n")[found.line - 1]


def test_long_lines_are_not_taken_for_broken_ones() -> None:
    """Lines of one length that each begin anew stay apart."""
    line = "INFO 09-02 08:00:30 [x.py:1] " + "y" * 60 + "\n"
    assert in_bulk(NEW + line * 50 + SERVING + line * 50) is None


@pytest.mark.parametrize("ends", ["\n", ""])
@pytest.mark.parametrize("size", [MAX_LINE, 400_000, 3_000_000])
def test_the_end_of_a_line_without_end(size: int, ends: str) -> None:
    """What stands behind megabytes of the same line is seen, in bounded memory."""
    scanner = Scanner(diagnoser := Diagnoser())
    data = b"x" * size + b" ValueError: No available memory for the cache blocks." + ends.encode()
    for start in range(0, len(data), 65_536):
        scanner.feed(data[start : start + 65_536])
    scanner.finish()
    found = diagnoser.verdict()
    assert found is not None
    assert (found.cls, found.line) == ("kv_cache_too_small", 1)
    assert found.evidence is not None
    assert found.evidence.endswith(" ValueError: No available memory for the cache blocks.")


def test_the_end_of_a_long_prompt_is_a_users() -> None:
    """A request's line that is longer than what is looked at ends in what its sender wrote."""
    for before in ("INFO 03-02 08:00:00 logger.py:37] ", "ERROR 03-02 08:00:00 [x.py:1] ", ""):
        echo = f"{before}Received request r-1: prompt: '{'word ' * 9000}{CAUSE}', params: x\n"
        assert in_bulk(NEW + SERVING + echo) is None


def test_a_line_is_put_together_from_so_many_pieces() -> None:
    """Forty before the one that matters, forty after it: a file that is one broken line is not read as a whole."""
    rows = [b"INFO 09-02 08:00:30 [x.py:1] ".ljust(80, b"y"), *[b"y" * 80] * 200, b"the end"]
    data = b"\n".join(rows) + b"\n"
    paste = Paste.of(data)
    assert paste.width == 80
    begin, end = paste.whole(data, 100 * 81, 101 * 81 - 1, 0)
    assert (begin, end) == ((100 - MAX_JOINED) * 81, (101 + MAX_JOINED) * 81 - 1)
    assert paste.whole(data, 10 * 81, 11 * 81 - 1, 0) == (0, (11 + MAX_JOINED) * 81 - 1)
    assert paste.whole(data, 190 * 81, 191 * 81 - 1, 180 * 81) == (180 * 81, len(data) - 1)
