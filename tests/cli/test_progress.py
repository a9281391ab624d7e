"""The line that shows what a command waits for."""

import io

from tests.cli.fake_daemon import state
from vllm_supervisor.cli.progress import ProgressLine

LOADING = state("starting", phase={"name": "loading_weights", "progress": 0.4, "detail": "shard " * 40, "eta_s": None})


class Terminal(io.StringIO):
    """Says that it is a terminal, of a width that nobody knows; it may go away."""

    gone = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_it_is_drawn_in_place_and_gone_afterwards() -> None:
    """Only where it changes, cut to 80 columns; a terminal that goes away ends nothing."""
    terminal = Terminal()
    with ProgressLine(terminal) as line:
        line.show(LOADING)
        line.show(LOADING)
    drawn, cleared = terminal.getvalue().split("\r\033[K")[1:]
    assert drawn.startswith("starting, loading_weights, 40%, shard")
    assert (len(drawn), cleared) == (79, "")
    terminal = Terminal()
    with ProgressLine(terminal) as line:
        terminal.gone = True
        line.show(LOADING)
        terminal.gone = False
        line.show(state("ready"))
    assert "ready" not in terminal.getvalue()


def test_a_file_gets_nothing_but_what_stands_in_the_way() -> None:
    """A script's log has no use for progress; a port that is taken is told once, as it may be taken for ever."""
    stream = io.StringIO()
    with ProgressLine(stream) as line:
        line.show(LOADING)
        assert stream.getvalue() == ""
        for port in (8000, 8000, 8001):
            line.show(state("backoff", blocker={"kind": "port", "why": f"{port} is held", "remedy": "end the holder"}))
        line.show(LOADING)
    assert stream.getvalue() == (
        "vllm-supervisor: waiting: 8000 is held; end the holder\n"
        "vllm-supervisor: waiting: 8001 is held; end the holder\n"
    )
