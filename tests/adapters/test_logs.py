import contextlib
import io
import json
import logging
import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import structlog

from vllm_supervisor.adapters.logs import LogObserver, configure, under_journal
from vllm_supervisor.adapters.logs.sink import Sink
from vllm_supervisor.domain.messages import (
    Adopted,
    Blocked,
    Event,
    GroupEmpty,
    LeaderExited,
    Probed,
    Record,
    Spawned,
    StartAsked,
)
from vllm_supervisor.domain.model import Blocker, BlockerKind, Cause, ExitStatus, Outcome, Phase, Process, State
from vllm_supervisor.domain.secret import Secret
from vllm_supervisor.ports import Level, Note, Observer


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Put structlog and the standard library's logging back as they were."""
    handlers = list(logging.getLogger().handlers)
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_has_utc_time_level_event_and_fields() -> None:
    """A stream that is no terminal gets an object a line, in a fixed order."""
    stream = io.StringIO()
    configure("auto", "info", stream).info("phase_changed", before="starting", seconds=1.5)
    (line,) = lines(stream)
    assert list(line) == ["timestamp", "level", "event", "before", "seconds"]
    assert line["timestamp"].endswith("Z")
    assert (line["level"], line["event"], line["seconds"]) == ("info", "phase_changed", 1.5)


def test_level_filters() -> None:
    """What is below the configured level is not written."""
    stream = io.StringIO()
    logger = configure("json", "warning", stream)
    logger.info("quiet")
    logger.warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_console_is_plain_off_a_terminal() -> None:
    """Asked for, the console form comes without colours where nobody could see them."""
    stream = io.StringIO()
    configure("console", "info", stream).warning("probe_failing", outcome="timeout")
    assert "probe_failing" in stream.getvalue()
    assert "outcome=timeout" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("no_color", ["", "1"])
def test_auto_on_a_terminal_is_console(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    """A terminal gets key=value, coloured unless NO_COLOR says otherwise."""
    monkeypatch.setenv("NO_COLOR", no_color)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        configure("auto", "info", terminal).info("spawned", pid=7)
        seen = os.read(ours, 4096).decode()
    os.close(ours)
    assert "spawned" in seen
    assert ("\x1b" in seen) == (no_color == "")


@pytest.mark.parametrize(
    ("level", "prefix"), [("debug", "<7>"), ("info", "<6>"), ("warning", "<4>"), ("error", "<3>"), ("critical", "<2>")]
)
def test_journal_gets_priorities_and_no_timestamp(level: str, prefix: str) -> None:
    """Under systemd each line begins with its priority; the journal has its own clock."""
    stream = io.StringIO()
    getattr(configure("auto", "debug", stream, journal=True), level)("x", a=1)
    text = stream.getvalue()
    assert text.startswith(f'{prefix}{{"level": "{level}", "event": "x"')
    assert "timestamp" not in text


def test_each_line_of_a_traceback_has_a_priority() -> None:
    """The journal would file the rest of a traceback under another priority."""
    stream = io.StringIO()
    logger = configure("console", "info", stream, journal=True)
    try:
        int("bad")
    except ValueError:
        logger.exception("internal_error")
    written = stream.getvalue().splitlines()
    assert len(written) > 2
    assert all(line.startswith("<3>") for line in written)


def test_journal_is_recognised_by_device_and_inode() -> None:
    """JOURNAL_STREAM is inherited by shells below a unit: only a stream that is the journal's counts."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("w") as stream:
        status = os.fstat(ours.fileno())
        assert under_journal(stream, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not under_journal(stream, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"})
        assert not under_journal(stream, {})
        assert not under_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})
        assert not under_journal(None, {"JOURNAL_STREAM": "1:2"})


def test_secrets_are_masked_at_any_depth() -> None:
    """By name or by type, in mappings and lists; figures stay although `tokens` is in their name."""
    stream = io.StringIO()
    configure("json", "info", stream).info(
        "x", HF_TOKEN="t", env={"API_KEY": "k", "n": [{"password": "p"}]}, value=Secret("s"), kv_cache_tokens=5
    )
    (line,) = lines(stream)
    assert line["HF_TOKEN"] == "***"
    assert line["env"] == {"API_KEY": "***", "n": [{"password": "***"}]}
    assert line["value"] == "***"
    assert line["kv_cache_tokens"] == 5


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_field_that_cannot_be_rendered_costs_only_its_line(form: str) -> None:
    """A line comes out all the same, and names the event."""
    stream = io.StringIO()
    configure(form, "info", stream).info("spawned", thing=Unprintable(), text="\udcff")
    assert "spawned" in stream.getvalue()


def test_libraries_speak_in_the_same_form() -> None:
    """What asyncio logs of a lost exception is a line like any other; a wrong format string is survived."""
    stream = io.StringIO()
    configure("json", "info", stream)
    configure("json", "info", stream)  # a second time does not double the lines
    logging.getLogger("asyncio").error("Task exception was never retrieved %s", 1)
    logging.getLogger("httpx").info("not this")
    (bridge,) = [handler for handler in logging.getLogger().handlers if "vllm_supervisor" in type(handler).__module__]
    bridge.handle(logging.LogRecord("x", logging.WARNING, __file__, 1, "%d", ("y",), None))
    first, second = lines(stream)
    assert (first["event"], first["logger"], first["level"]) == ("library_message", "asyncio", "error")
    assert first["message"] == "Task exception was never retrieved 1"
    assert second["message"] == "%d"


def test_rich_is_not_needed() -> None:
    """Run time has no rich: both forms work where importing it fails."""
    code = (
        "import sys; sys.modules['rich'] = None\n"
        "from vllm_supervisor.adapters.logs import configure\n"
        "configure('json').info('one')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: configure('console').exception('two')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "one" in done.stderr
    assert "ZeroDivisionError" in done.stderr


# --- streams that fail


def _closed() -> TextIO:
    stream = io.StringIO()
    stream.close()
    return stream


def _reader_gone() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


def _full_disk() -> TextIO:
    return Path("/dev/full").open("w", encoding="utf-8")


@pytest.mark.parametrize("make", [_closed, _reader_gone, _full_disk])
def test_a_dead_stream_is_survived(make: Callable[[], TextIO]) -> None:
    """A closed stream, a pipe whose reader is gone and a full disk lose lines, and nothing else happens."""
    stream = make()
    logger = configure("json", "info", stream)
    for _ in range(3):
        logger.error("x")
    with contextlib.suppress(OSError, ValueError):
        stream.close()


def test_no_stderr_at_all() -> None:
    """`2>&-`: Python has no stderr then, and the daemon runs all the same."""
    code = "from vllm_supervisor.adapters.logs import configure; configure().error('x'); print('alive')"
    done = subprocess.run(
        ["/bin/sh", "-c", f'{sys.executable} -c "{code}" 2>&-'], stdout=subprocess.PIPE, check=True, timeout=60
    )
    assert done.stdout == b"alive\n"


def _pipe() -> tuple[int, int]:
    return os.pipe()


def _socket() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def _terminal() -> tuple[int, int]:
    return pty.openpty()


@pytest.mark.parametrize("make", [_pipe, _socket, _terminal])
def test_a_stalled_reader_does_not_block(make: Callable[[], tuple[int, int]]) -> None:
    """When the reader stalls, lines are dropped, counted and told once it reads again; flags of others stay."""
    reader, writer = make()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        logger = configure("json", "info", stream)
        began = time.monotonic()
        for number in range(5000):
            logger.info("flood", number=number, filler="x" * 200)
        assert time.monotonic() - began < 20
        assert os.get_blocking(writer), "O_NONBLOCK would hit everybody who shares the stream"
        os.set_blocking(reader, False)
        _drain(reader)
        for _ in range(3):
            logger.info("again")
        seen = _drain(reader)
    os.close(reader)
    events = [json.loads(line) for line in seen.decode().splitlines() if line.strip().startswith("{")]
    assert [event["event"] for event in events][-4:].count("again") == 3
    (told,) = [event for event in events if event["event"] == "log_lines_dropped"]
    assert 0 < told["count"] < 5000


def _drain(reader: int) -> bytes:
    seen = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(reader, 65536):
            seen += part
    return seen


def test_a_torn_line_does_not_spoil_the_next() -> None:
    """A line that only partly fitted is ended before the next one."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        sink = Sink(stream)
        assert not sink.write("x" * 1_000_000)
        os.set_blocking(reader, False)
        _drain(reader)
        assert sink.write("next")
    assert _drain(reader) == b"\nnext\n"
    assert sink.dropped == 1
    os.close(reader)


# --- the observer


def observed(do: Callable[[LogObserver], None]) -> list[dict[str, Any]]:
    stream = io.StringIO()
    observer = LogObserver(configure("json", "info", stream))
    port: Observer = observer
    assert port is observer
    do(observer)
    return lines(stream)


@pytest.mark.parametrize(
    ("after", "cause", "level"),
    [
        (Phase.READY, None, "info"),
        (Phase.STOPPING, Cause.STOP, "info"),
        (Phase.REAPING, Cause.CRASH, "warning"),
        (Phase.UNHEALTHY, None, "warning"),
        (Phase.FAILED, Cause.CRASH, "error"),
    ],
)
def test_a_line_for_each_change_of_phase(after: Phase, cause: Cause | None, level: str) -> None:
    """Generation, phases, cause and duration are fields; what went wrong is louder."""
    record = Record(at=9.0, generation=3, before=Phase.STARTING, after=after, seconds=1.23456, cause=cause, detail="d")
    (line,) = observed(lambda observer: observer.recorded(record))
    assert line.pop("timestamp")
    assert line == {
        "level": level,
        "event": "phase_changed",
        "generation": 3,
        "before": "starting",
        "after": after.value,
        "cause": cause.value if cause else None,
        "seconds": 1.235,
        "detail": "d",
    }


def test_notes_are_events() -> None:
    """A note's kind is the event, its fields are fields, also one that is called `event`."""
    note = Note("control_request", Level.WARNING, {"verb": "stop", "event": "x", "api_key": "k"})
    (line,) = observed(lambda observer: observer.noted(note))
    assert (line["event"], line["level"], line["verb"], line["event_"]) == ("control_request", "warning", "stop", "x")
    assert line["api_key"] == "***"


RUNNING = State(phase=Phase.READY, generation=3, process=Process(77))
FAILING = State(phase=Phase.READY, generation=3, process=Process(77), probe_failures=2)
BLOCKER = Blocker(BlockerKind.PORT, "port 8000 is held by pid 5", "stop it")


@pytest.mark.parametrize(
    ("before", "event", "after", "expected"),
    [
        pytest.param(
            State(generation=3, spawning=True), Spawned(3, 77), RUNNING, ("spawned", {"pid": 77}), id="spawned"
        ),
        pytest.param(State(generation=3), Spawned(3, 77), State(generation=3), None, id="spawned, not expected"),
        pytest.param(
            State(), Adopted(3, 77, leader_alive=True), RUNNING, ("leftover_found", {"pid": 77}), id="leftover"
        ),
        pytest.param(
            RUNNING,
            LeaderExited(3, ExitStatus(code=0)),
            RUNNING,
            ("leader_exited", {"code": 0, "signal": None, "asked": False, "level": "warning", "pid": 77}),
            id="exit nobody asked for",
        ),
        pytest.param(
            State(phase=Phase.STOPPING, generation=3, process=Process(77), cause=Cause.STOP),
            LeaderExited(3, ExitStatus(signal=15)),
            RUNNING,
            ("leader_exited", {"code": None, "signal": 15, "asked": True, "level": "info"}),
            id="exit asked for",
        ),
        pytest.param(RUNNING, LeaderExited(2, ExitStatus(code=0)), RUNNING, None, id="stale exit"),
        pytest.param(
            State(phase=Phase.REAPING, generation=3, process=Process(77, leader_alive=False)),
            GroupEmpty(3),
            State(generation=3),
            ("members_gone", {"generation": 3}),
            id="members gone",
        ),
        pytest.param(
            State(generation=3),
            Blocked(3, BLOCKER),
            State(generation=3, blocker=BLOCKER),
            ("launch_blocked", {"kind": "port", "why": BLOCKER.why, "remedy": "stop it"}),
            id="blocked",
        ),
        pytest.param(
            State(generation=3, blocker=BLOCKER), Blocked(3, BLOCKER), State(), None, id="blocked as before: not again"
        ),
        pytest.param(
            RUNNING,
            Probed(3, Outcome.TIMEOUT, 10.0, "silence"),
            FAILING,
            ("probe_failing", {"outcome": "timeout", "detail": "silence"}),
            id="first failure",
        ),
        pytest.param(FAILING, Probed(3, Outcome.TIMEOUT, 10.0), FAILING, None, id="failing still"),
        pytest.param(
            FAILING, Probed(3, Outcome.OK, 0.1), RUNNING, ("probe_recovered", {"failures": 2}), id="recovered"
        ),
        pytest.param(RUNNING, Probed(3, Outcome.OK, 0.1), RUNNING, None, id="fine still"),
        pytest.param(
            State(phase=Phase.STARTING, generation=3, process=Process(77)),
            Probed(3, Outcome.REFUSED, 0.1),
            RUNNING,
            None,
            id="refused while starting",
        ),
        pytest.param(State(), StartAsked(), State(intent=RUNNING.intent), None, id="asked: the phase tells"),
    ],
)
def test_facts_worth_a_line(
    before: State, event: Event, after: State, expected: tuple[str, dict[str, object]] | None
) -> None:
    """Facts about processes and changes of a probe's finding are told; what repeats, or is stale, is not."""
    told = observed(lambda observer: observer.stepped(before, event, after, 1.0))
    if expected is None:
        assert told == []
    else:
        (line,) = told
        assert line["event"] == expected[0]
        assert line.items() >= expected[1].items()


def test_probes_that_could_not_be_made_are_told_once() -> None:
    """Being out of descriptors for an hour is one line, not 720."""

    def probe(observer: LogObserver) -> None:
        for outcome in (Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.OK, Outcome.UNKNOWN):
            observer.stepped(RUNNING, Probed(3, outcome, 0.0, "Too many open files"), RUNNING, 1.0)

    assert [line["event"] for line in observed(probe)] == ["probe_not_made", "probe_not_made"]
