"""Follows tracebacks to the exception at their end.

Which code raised tells causes apart whose last lines are alike, and an exception that no signature knows is still the
best that a log can say of a start that failed.
"""

import re
from dataclasses import dataclass

from vllm_supervisor.domain.diagnosis.lines import Line, shortened

HEADER = "Traceback (most recent call last)"
MAX_LINES = 250
"""Lines of a traceback at most: the middleware's frames are many."""
MAX_TRACEBACKS = 500
"""Followed in one run: a loop that prints them for hours is not looked at line by line for hours."""
_MAX_FRAMES = 64 * 1024
"""Characters of the frames that are kept."""
_MAX_TEXT = 400

_EXCEPTION = re.compile(r"(?P<name>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80})(?:: |:?$)")
_NAMED_SO = ("Error", "Exception", "Interrupt", "Exit", "Timeout", "Unsupported")
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|Engine process failed to start|WorkerProc (?:initialization failed|failed to)|"
    r"EngineDeadError|See (?:root cause|stack trace)|stack trace above|"
    r"^(?:SystemExit|KeyboardInterrupt|asyncio\.\S*CancelledError)\b"
)
"""Raised because something else failed."""
_ANNOUNCES = re.compile(r"\braised:$|\bvalidation errors? for \w+$")
"""The cause stands in the line after."""
_MODEL_FIELD = re.compile(r"[\w.\[\]]{1,80}$")
"""pydantic names the field in a line of its own, unless it means the whole."""
_PLACE = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<what>\S+)')
_MAIN = re.compile(r'\s*File "(?:[^"]*/vllm|<frozen runpy>|[^"]*/runpy\.py)", line')
"""The first frame of what vLLM's own process prints when it ends; a child's begins in multiprocessing."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception at the end of a traceback."""

    line: int
    text: str
    """Its line, and the next one where that holds the cause."""
    where: str
    """The last frame, as `FILE:LINE in FUNCTION`; empty where no frame was seen."""
    of_main: bool
    """It ended vLLM's first process."""
    importing: bool
    """It came while modules were imported: before vLLM says anything of itself."""

    @property
    def name(self) -> str:
        """The exception's name without its module."""
        found = _EXCEPTION.match(self.text)
        return "" if found is None else found["name"].rpartition(".")[2]

    @property
    def consequence(self) -> bool:
        """Whether it only says that something else failed."""
        return _CONSEQUENCE.search(self.text) is not None


class Tracebacks:
    """Takes lines, and says when a traceback has reached its exception. Several processes may print at once."""

    def __init__(self) -> None:
        self._count = 0
        self._pending = 0
        """Headers whose exception has not come."""
        self._until = 0
        self._frames: list[str] = []
        self._size = 0
        self._after_frame = False
        self._ended_at = 0
        self._announced: Raised | None = None
        self._main_only = False

    def open_at(self, number: int) -> bool:
        """Whether line `number` may belong to a traceback."""
        return number < self._until

    def begin(self, number: int, *, main_only: bool) -> None:
        """Take a header at line `number`. With `main_only`, let go unless vLLM's first process is ending."""
        if self._count >= MAX_TRACEBACKS:
            return
        self._count += 1
        if not self.open_at(number) or not self._frames:
            self._frames, self._size, self._pending = [], 0, 0
            self._announced = None
        self._pending += 1
        self._until = number + MAX_LINES
        self._after_frame = False
        self._main_only = main_only

    def renew(self) -> None:
        """Follow as many again: another run begins."""
        self._count = 0

    def expect(self, number: int) -> None:
        """Take line `number` as one after which an exception is due, with or without a header."""
        if not self.open_at(number):
            self.begin(number, main_only=False)

    def passed(self, place: re.Pattern[str], number: int) -> bool:
        """Whether the traceback that line `number` belongs to or ends has a frame that matches."""
        return (self.open_at(number) or self._ended_at == number) and any(place.search(it) for it in self._frames)

    def take(self, line: Line, number: int) -> Raised | None:
        """Take a line of an open traceback; return the exception where this line completes one."""
        body = line.body
        if line.quiet or not body.strip():
            return None
        if self._announced is not None:
            return self._completed(self._announced, line)
        if line.frame:
            self._keep(body)
            return None
        following, self._after_frame = self._after_frame, False
        exception = _EXCEPTION.match(body)
        if exception is None or not (following or exception["name"].endswith(_NAMED_SO)):
            return None
        self._ended_at = number
        raised = self._raised(body.strip(), number)
        if _ANNOUNCES.search(raised.text):
            self._announced = raised
            return None
        self._close()
        return raised

    def _keep(self, body: str) -> None:
        if self._main_only and not self._frames and not _MAIN.match(body):
            self._until = self._pending = 0
            return
        self._after_frame = True
        frame = body[:_MAX_TEXT]
        if self._size < _MAX_FRAMES:
            self._frames.append(frame)
            self._size += len(frame)
        elif _PLACE.match(frame):
            self._frames[-1] = frame  # the last one is where it was raised

    def _completed(self, announced: Raised, line: Line) -> Raised | None:
        text = line.body.strip()
        if _MODEL_FIELD.match(text):
            return None
        self._announced = None
        self._close()
        whole = shortened(f"{announced.text} {text}", _MAX_TEXT)
        return Raised(announced.line, whole, announced.where, announced.of_main, announced.importing)

    def _raised(self, text: str, number: int) -> Raised:
        places = [found for frame in self._frames if (found := _PLACE.match(frame))]
        where = f"{places[-1]['file']}:{places[-1]['line']} in {places[-1]['what']}" if places else ""
        of_main = bool(self._frames) and _MAIN.match(self._frames[0]) is not None
        imported = len(places) > 1 or text.startswith(("ImportError", "ModuleNotFoundError"))
        importing = bool(places) and places[-1]["what"] == "<module>" and imported
        return Raised(number, shortened(text, _MAX_TEXT), where, of_main, importing)

    def _close(self) -> None:
        self._pending = max(0, self._pending - 1)
        if self._pending == 0:
            self._until = 0
