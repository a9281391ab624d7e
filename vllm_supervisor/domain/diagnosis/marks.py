"""Lines that say where a run of the engine stands, and what in a line belongs to a request."""

import re
from enum import Enum

from vllm_supervisor.domain.diagnosis.lines import Line
from vllm_supervisor.domain.diagnosis.tracebacks import HEADER

STATS_HINT = "Avg prompt throughput"
LAUNCHED_HINT = "[vllm-supervisor] generation "


class Mark(Enum):
    """What a line says about the run. The values of the stages are their names in `Evidence.stage`."""

    BANNER = "banner"
    LAUNCHED = "launched"
    """Our own line between two generations."""
    STARTED = "started"
    SERVING = "serving"
    """A stats line, or an answer to a client: the start lies behind, wherever the log begins."""
    ASGI = "asgi"
    """A traceback follows that belongs to one request."""
    STOPPING = "stopping"
    ENDED = "ended"
    WORKER_FAILED = "worker_failed"
    """A worker's loop ran when it failed."""
    LOAD = "load"
    LOADED = "loaded"
    CACHED = "cached"
    """The pool is made."""
    GRAPHS = "graphs"
    TRACEBACK = "traceback"
    """One begins."""


_SERVING = re.compile(r'Avg prompt throughput: |HTTP/1\.\d" 2\d\d')
_MARKS: tuple[tuple[Mark, re.Pattern[str]], ...] = (
    (Mark.LAUNCHED, re.compile(r"^\[vllm-supervisor\] generation \d+ is launched at ")),
    (Mark.ASGI, re.compile(r"Exception in ASGI application")),
    (Mark.BANNER, re.compile(r"vLLM (?:API )?server version |\u2588  version \d")),
    (
        Mark.STOPPING,
        re.compile(
            r"^\[shutdown\] API server: shutdown triggered|^Shutting down(?: FastAPI HTTP server\.?)?$|"
            r"^Received signal \d+|^Gracefully stop"
        ),
    ),
    (Mark.ENDED, re.compile(r"^Finished server process|^Application shutdown complete")),
    (Mark.WORKER_FAILED, re.compile(r"^WorkerProc hit an exception")),
    (
        Mark.LOAD,
        re.compile(
            r"^Starting to load model|^Loading \w+ (?:checkpoint )?(?:shards|model weights)\b(?! took)|"
            r"^Multi-thread loading shards"
        ),
    ),
    (
        Mark.LOADED,
        re.compile(r"^Model loading took|^Loading model weights took|^Loading weights took"),
    ),
    (Mark.CACHED, re.compile(r"^Available KV cache memory: [\d.]|KV cache size: |^# \w+ blocks: ")),
    (Mark.GRAPHS, re.compile(r"^Capturing |^Graph capturing finished")),
)
_ECHO = re.compile(
    r"Received request |Generated response |Added request |\bprompt(?:_token_ids)?[:=] ?['\"\[]|['\"](?:prompt|content|"
    r"input|messages|text)['\"]: |input_value=|messages=\[|Dumping (?:input|scheduler)|dump_input|"
    r"The following fields were present in the request"
)
_ACCESS = re.compile(r'^\S+ - "[A-Z]+ \S')
_REQUEST_FILES = re.compile(
    r"^(?:serving(?:_\w+)?|protocol|chat_utils|preprocess|logger|request_logger|loggers|metrics|dump_input|"
    r"error_handling|exception_handlers?)\.py$"
)


def mark_of(line: Line) -> Mark | None:
    """Return what `line` says about the run."""
    body = line.body
    if not line.quiet and body.startswith(HEADER):
        return Mark.TRACEBACK
    if line.quiet:
        if "Application startup complete" in body:
            return Mark.STARTED
        if _SERVING.search(body):
            return Mark.SERVING
    return next((mark for mark, pattern in _MARKS if pattern.search(body)), None)


def own_words(line: Line) -> Line:
    """Cut off what `line` quotes of a request.

    Up to 0.10 every request is logged with its prompt; later on demand, and within errors.
    """
    echo = _ECHO.search(line.body)
    return line if echo is None else Line(line.body[: echo.start()], line.level, line.file)


def is_access(line: Line) -> bool:
    """Whether the line is uvicorn's about one request: its address is the client's words."""
    return _ACCESS.match(line.body) is not None


def is_of_request(line: Line) -> bool:
    """Whether sources that answer one request wrote it: serving_chat.py in 0.11, serving.py since 0.15."""
    return line.file is not None and _REQUEST_FILES.match(line.file) is not None
