"""structlog, set up once: JSON for machines, `key=value` for people, priorities for the journal."""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from vllm_supervisor.adapters.logs.sink import Sink, descriptor
from vllm_supervisor.domain.redaction import redacted
from vllm_supervisor.domain.secret import MASK, Secret, is_secret_name

_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""sd-daemon(3): `<N>` before a line."""
_MAX_DEPTH = 6
_LEVELS = logging.getLevelNamesMapping()


class LogFormat(StrEnum):
    """`auto` is the console on a terminal, JSON elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


def configure(
    format: str = "auto",  # noqa: A002 - the configuration's own word
    level: str = "info",
    stream: TextIO | None = None,
    *,
    journal: bool | None = None,
) -> FilteringBoundLogger:
    """Set up structlog, and the standard library's logging behind it, and return a logger. Once per process.

    `stream` defaults to stderr. `journal` (default: found out) puts priorities before lines and leaves timestamps to
    the journal. Nothing that is logged afterwards raises or blocks, whatever becomes of the stream.
    """
    stream = sys.stderr if stream is None else stream
    journal = under_journal(stream, os.environ) if journal is None else journal
    console = format == LogFormat.CONSOLE or (format == LogFormat.AUTO and _is_terminal(stream))
    set_level(level)
    pipeline = _Pipeline(
        prepare=(structlog.processors.add_log_level, structlog.processors.format_exc_info, _mask_and_order),
        timestamp=None if journal else _time_of_day if console else _utc,
        render=_console_renderer(stream) if console else _render_json,
        priorities=journal,
    )
    output = _Output(Sink(stream), pipeline)
    structlog.configure(
        processors=[pipeline],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=True,
    )
    logger: FilteringBoundLogger = structlog.get_logger()
    _bridge_standard_logging(logger)
    return logger


def set_level(level: str) -> None:
    """Leave out whatever is less than `level`, from now on."""
    _threshold.number = _LEVELS[level.upper()]


class _Threshold:
    """The level of the process's one log. structlog would build it into each logger, where it could not change."""

    number = logging.INFO


_threshold = _Threshold()


def under_journal(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Say whether `stream` is the one that systemd connected to the journal (`JOURNAL_STREAM`, systemd.exec(5))."""
    fd = descriptor(stream)
    if fd is None or "JOURNAL_STREAM" not in environ:
        return False
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return environ["JOURNAL_STREAM"] == f"{status.st_dev}:{status.st_ino}"


def mask(value: object, depth: int = 0) -> object:
    """Return `value` with secrets masked, at any depth: by their names, their form, or because they are `Secret`.

    Numbers stay, whatever their name: `kv_cache_tokens` is a figure, and no secret is a number.
    """
    if isinstance(value, Secret):
        return MASK
    if depth >= _MAX_DEPTH:
        return redacted(str(value)) if isinstance(value, str | int | float) or value is None else "…"
    if isinstance(value, Mapping):
        return {
            key: MASK if is_secret_name(str(key)) and not _is_figure(item) else mask(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [mask(item, depth + 1) for item in value]
    return redacted(value) if isinstance(value, str) else value


def _is_figure(value: object) -> bool:
    return value is None or isinstance(value, int | float)


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """From an event to its line. Whatever a field does on the way (a `repr` that raises), a line comes out."""

    prepare: tuple[Processor, ...]
    timestamp: Callable[[], str] | None
    render: Processor
    priorities: bool

    def __call__(self, logger: Any, method: str, event_dict: EventDict) -> str:
        if _LEVELS.get(method.upper(), logging.CRITICAL) < _threshold.number:
            raise structlog.DropEvent
        event = str(event_dict.get("event"))
        try:
            line = self._line(logger, method, event_dict)
        except Exception as error:  # noqa: BLE001 - the log must not be able to end the daemon
            line = json.dumps({"level": method, "event": event, "log_error": type(error).__name__})
        if not self.priorities:
            return line
        prefix = f"<{_PRIORITIES.get(method, 6)}>"
        return "\n".join(prefix + part for part in line.split("\n"))

    def _line(self, logger: Any, method: str, event_dict: EventDict) -> str:
        fields: Any = event_dict
        for processor in self.prepare:
            fields = processor(logger, method, fields)
        if self.timestamp is not None:
            fields = {"timestamp": self.timestamp(), **fields}
        return str(self.render(logger, method, fields))


class _Output:
    """structlog's innermost logger, one for all: a method per level, all of them the same."""

    def __init__(self, sink: Sink, pipeline: _Pipeline) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._told = 0

    def msg(self, line: str) -> None:
        """Write the line, and once lines get through again, how many did not."""
        lost = self._sink.dropped - self._told
        if self._sink.write(line) and lost:
            told = self._pipeline(None, "warning", {"event": "log_lines_dropped", "count": lost})
            self._told += lost if self._sink.write(told) else 0

    debug = info = warning = error = critical = msg


def _mask_and_order(_: Any, __: str, event_dict: EventDict) -> EventDict:
    ordered: EventDict = {"level": event_dict.pop("level", "info"), "event": event_dict.pop("event", "")}
    for key, value in event_dict.items():
        ordered[key] = MASK if is_secret_name(key) and not _is_figure(value) else mask(value)
    return ordered


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time_of_day() -> str:
    return f"{datetime.now().astimezone():%H:%M:%S}"


def _render_json(_: Any, __: str, event_dict: EventDict) -> str:
    return json.dumps(event_dict, default=str)


def _console_renderer(stream: TextIO | None) -> Processor:
    """Return structlog's plain renderer. Its default would format exceptions with rich, where that is installed."""
    return structlog.dev.ConsoleRenderer(
        colors=_is_terminal(stream) and not os.environ.get("NO_COLOR"),
        exception_formatter=structlog.dev.plain_traceback,
        sort_keys=False,
    )


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


class _Bridge(logging.Handler):
    """Brings what libraries log (asyncio's lost exceptions, for one) into the same stream and form."""

    def __init__(self, log: Callable[..., Any]) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"exc_info": record.exc_info} if record.exc_info else {}
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - a library's wrong format string is its own problem
            message = str(record.msg)
        self._log(record.levelno, "library_message", logger=record.name, message=message, **fields)


def _bridge_standard_logging(logger: FilteringBoundLogger) -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Bridge)]:
        root.removeHandler(handler)
    root.addHandler(_Bridge(logger.log))
