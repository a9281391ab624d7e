"""Reads a log line by line and keeps what may name the cause. Memory is bounded, whatever the log."""

import re
from collections.abc import Iterable
from typing import assert_never

from vllm_supervisor.domain.diagnosis import verdict as judge
from vllm_supervisor.domain.diagnosis.catalogue import GATE, SIGNATURES
from vllm_supervisor.domain.diagnosis.evidence import STATS, Evidence, Hit, Stats, clock
from vllm_supervisor.domain.diagnosis.lines import MAX_LINE, Line, normalise, parts, shortened
from vllm_supervisor.domain.diagnosis.marks import STATS_HINT, Mark, is_access, is_of_request, mark_of, own_words
from vllm_supervisor.domain.diagnosis.model import Context, Diagnosis
from vllm_supervisor.domain.diagnosis.signature import Kind, Signature, Tier
from vllm_supervisor.domain.diagnosis.stages import stage_of
from vllm_supervisor.domain.diagnosis.tracebacks import Raised, Tracebacks

MAX_EVIDENCE = 400
"""Characters of an evidence line that are kept."""
_BEFORE = 40
"""Characters of a long line that are quoted before what was found in it."""
MAX_SHAPES = 8192
_SHAPE = 600
"""Bytes of a line that tell its shape."""
_VARYING = b"0123456789abcdef-"
"""Numbers, request ids, addresses: what varies between lines of a shape."""

_RUN_TIME = re.compile(
    r"EngineCore encountered a fatal error|AsyncLLM output_handler failed|EngineDeadError|"
    r"MQLLMEngine is already dead|Error in model execution"
)
_START_FAILED = re.compile(
    r"EngineCore failed to start|Engine core initialization failed|Engine process failed to start|"
    r"WorkerProc (?:initialization failed|failed to start)"
)
_DUE = re.compile(r"^EngineCore (?:failed to start|encountered a fatal error)|^WorkerProc failed to start")
"""The exception follows."""
_TRACEBACK = 250
"""Lines of an exception's traceback at most: the middleware's frames are many."""
_PORT = re.compile(r"args: .*\bport['\"]?[=:] ?(\d{2,5})\b")
_LINE_END = 4096
"""Bytes of the end of an overlong line that are looked at."""
_ALL = range(len(SIGNATURES))


def _quoted(body: str, place: int) -> str:
    """Return what is kept of a line: its beginning, unless what was found stands far behind that."""
    if place > MAX_EVIDENCE:
        body = f"… {body[body.find(' ', place - _BEFORE, place) + 1 or place :]}"
    return shortened(body.strip(), MAX_EVIDENCE)


def _may_end_otherwise(raw: bytes) -> bool:
    """Whether an overlong line may end in words of the engine: one that bears a level, or quotes a request, is one."""
    lines = [normalise(part) for part in parts(raw[:MAX_LINE].decode("utf-8", "replace"))]
    return all(line.level is None and own_words(line) is line and not is_access(line) for line in lines)


class Diagnoser:
    """Feed it the lines of a log in order; ask for the verdict whenever wanted.

    A banner, or our line between two generations, begins a new run: the last earlier one that failed is kept beside.
    """

    def __init__(self) -> None:
        self._now = Evidence()
        self._before: Evidence | None = None
        self._number = 0
        self._shapes: dict[bytes, tuple[int, ...] | Mark] = {}
        self._request_until = 0
        self._tracebacks = Tracebacks()

    @property
    def heeds_every_line(self) -> bool:
        """Whether the next line counts whatever it holds, because it may belong to a traceback."""
        return self.in_request or self._tracebacks.open_at(self._number + 1)

    @property
    def in_request(self) -> bool:
        """Whether bare lines belong to the traceback of one request, which ends at the next line of the log proper."""
        return self._number < self._request_until

    @property
    def ready(self) -> bool:
        """Whether the current run has shown that it serves."""
        return self._now.ready_line is not None

    def feed(self, line: str, number: int | None = None) -> None:
        """Take one line. `number` counts from 1 and may skip; without it, lines are counted here."""
        self.feed_raw(line.encode("utf-8", "replace"), self._number + 1 if number is None else number)

    def feed_raw(self, raw: bytes, number: int) -> None:
        """Take one line as it stands in the file.

        Lines that differ in numbers alone are matched once: a log that repeats itself a million times costs little.
        """
        self._number = number
        self._take(raw)
        if len(raw) > MAX_LINE and GATE.search(raw, len(raw) - _LINE_END) and _may_end_otherwise(raw):
            for piece in parts(raw[-_LINE_END:].decode("utf-8", "replace")):
                self._look(normalise(piece), piece, _ALL)

    def _take(self, raw: bytes) -> None:
        number = self._number
        shape = raw[:_SHAPE].translate(None, _VARYING)
        known = self._shapes.get(shape)
        in_traceback = self._tracebacks.open_at(number)
        if not self.in_request and not in_traceback:
            if isinstance(known, Mark):
                self._apply(known)
                return
            if known is not None and self._seen_before(known, raw):
                return
        text = raw.decode("utf-8", "replace")
        pieces = parts(text)
        candidates = known if isinstance(known, tuple) and not in_traceback else _ALL
        learnt = [self._look(normalise(piece), piece, candidates) for piece in pieces]
        if known is not None or in_traceback or STATS_HINT in text:
            return
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        if len(learnt) == 1 and learnt[0] is not None:
            self._shapes[shape] = learnt[0]
        elif all(isinstance(orders, tuple) for orders in learnt):
            self._shapes[shape] = tuple(order for orders in learnt if isinstance(orders, tuple) for order in orders)

    def feed_stats(self, line: str, number: int) -> None:
        """Take one stats line; one that is cut off tells nothing."""
        found = STATS.search(line)
        if found is None:
            return
        moving = float(found["prompt"]) > 0 or float(found["generation"]) > 0
        text = shortened(found.group(), MAX_EVIDENCE)
        running, waiting, usage = int(found["running"]), int(found["waiting"]), found["usage"] or ""
        self._now.stats.append(Stats(number, moving, running, waiting, usage, clock(line), text))

    def forget_stats(self) -> None:
        """Drop the stats lines taken so far; a bulk reader takes those of the tail in their place."""
        self._now.stats.clear()

    def verdict(self, context: Context | None = None) -> Diagnosis | None:
        """Return the cause, or None where neither the last run in the log nor `context` shows a failure.

        A run that has neither got ready nor failed says nothing yet (it was restarted, and the reader wants to know
        why): then the answer is that of `earlier`.
        """
        found = judge.verdict(self._now, context or Context())
        return self.earlier() if found is None and not self.ready else found

    def earlier(self) -> Diagnosis | None:
        """Return the cause of the last earlier run that failed and was not told to stop; None where there is none."""
        return None if self._before is None else judge.verdict(self._before, Context())

    def _seen_before(self, known: tuple[int, ...], raw: bytes) -> bool:
        hits = self._now.hits
        if any(SIGNATURES[order].before_banner for order in known):
            return False
        if any(order not in hits or (hits[order].late and not self._now.died) for order in known):
            return False
        for order in known:
            hits[order].again(self._number, raw[:_SHAPE].decode("utf-8", "replace"), ready=self.ready)
        return True

    def _look(self, line: Line, raw: str, candidates: Iterable[int]) -> tuple[int, ...] | Mark | None:
        """Match one line; return what holds for every line of its shape, or None where it depends on the place."""
        line = own_words(line)
        if line.level is not None:
            self._request_until = 0
        if self._tracebacks.open_at(self._number) and (raised := self._tracebacks.take(line, self._number)) is not None:
            self._note_raised(raised)
        if not line.body or line.frame:
            return ()
        if "args: " in line.body and (port := _PORT.search(line.body)) is not None:
            self._now.port = port[1]
            return None
        if candidates is _ALL and (mark := mark_of(line)) is not None:
            if STATS_HINT in line.body:
                self.feed_stats(raw, self._number)
            self._apply(mark)
            return mark
        if is_access(line):
            return ()
        self._note_failure(line)
        of_request = self.in_request or is_of_request(line)
        orders = tuple(order for order in candidates if self._counts(SIGNATURES[order], line, of_request))
        if any(SIGNATURES[order].within for order in orders):
            orders = tuple(order for order in orders if SIGNATURES[order].within)
        if self._now.eventful and any(SIGNATURES[order].before_banner for order in orders):
            self._begin_run()
        for order in orders:
            self._hit(order, line, raw)
        place_matters = self.in_request or any(self._now.hits[order].late for order in orders)
        return None if place_matters else orders

    def _counts(self, signature: Signature, line: Line, of_request: bool) -> bool:  # noqa: FBT001 # private
        if of_request and signature.tier not in {Tier.ENGINE, Tier.WORKER}:
            return False
        if line.quiet and not signature.quiet and line.level != "WARNING":
            return False
        if signature.within is not None and not self._tracebacks.passed(signature.within, self._number):
            return False
        return signature.pattern.search(line.body) is not None

    def _hit(self, order: int, line: Line, raw: str) -> None:
        now, body = self._now, line.body
        signature = SIGNATURES[order]
        kind = signature.kind
        if kind is Kind.FATAL and line.quiet and not signature.quiet:
            kind = Kind.WARNING
        known = now.hits.get(order)
        # Of what a request may provoke, the last before a death counts: days may lie between.
        renewed = known is not None and known.late and not now.died
        if known is not None and not renewed and not (known.kind is Kind.WARNING and kind is Kind.FATAL):
            known.again(self._number, raw, ready=self.ready)
            return
        found = signature.pattern.search(body)
        groups = {} if found is None else {name: value for name, value in found.groupdict().items() if value}
        late = signature.start_only and self.ready
        now.hits[order] = Hit(
            signature,
            order,
            self._number,
            _quoted(body, 0 if found is None else found.start()),
            groups,
            kind,
            late,
            last_line=self._number,
        )
        now.hits[order].note(raw, ready=self.ready)
        if signature.cls == "oom_at_load" and kind is Kind.FATAL and now.first_oom_stage is None:
            now.first_oom_stage = "run" if self.ready else stage_of(self._tracebacks, self._number) or now.stage

    def _apply(self, mark: Mark) -> None:
        """Note where the run stands."""
        now = self._now
        match mark:
            case Mark.LAUNCHED | Mark.BANNER:
                # Several servers of one run print a banner each.
                if mark is Mark.LAUNCHED or now.eventful:
                    self._begin_run()
            case Mark.STARTED | Mark.SERVING:
                if mark is Mark.STARTED and not now.died:
                    now.survive()
                if now.ready_line is None:
                    now.ready_line = self._number
            case Mark.ASGI | Mark.TRACEBACK:
                self._follow(mark)
            case Mark.STOPPING:
                if not now.died and now.stop_line is None:
                    now.stop_line = self._number
            case Mark.ENDED:
                now.ended = now.over = True
            case Mark.WORKER_FAILED:
                now.run_time_failure = True
            case Mark.LOAD | Mark.LOADED | Mark.CACHED | Mark.GRAPHS:
                now.stage, now.stage_line = mark.value, self._number
            case _:
                assert_never(mark)

    def _follow(self, mark: Mark) -> None:
        """Take note that a traceback follows, and whose."""
        if mark is Mark.ASGI:
            self._request_until = self._number + _TRACEBACK
        elif not self.in_request:
            self._tracebacks.begin(self._number, main_only=self.ready and not self._dying)

    def _note_failure(self, line: Line) -> None:
        """Note at which stage it failed; the signatures look at the line as well."""
        now, body = self._now, line.body
        if not line.quiet:
            now.run_time_failure |= _RUN_TIME.search(body) is not None
            now.start_failure |= _START_FAILED.search(body) is not None
            if _DUE.search(body):
                self._tracebacks.expect(self._number)

    def _note_raised(self, raised: Raised) -> None:
        """Keep what a traceback ended in. One of vLLM's first process ends the run, or was a run of its own."""
        if raised.of_main and not raised.consequence and self._now.eventful and (self._now.over or raised.importing):
            self._begin_run()
        self._now.over |= raised.of_main
        self._now.note_raised(raised)

    @property
    def _dying(self) -> bool:
        return self._now.run_time_failure or self._now.died

    def _begin_run(self) -> None:
        """Start afresh."""
        if self._now.failed and self._now.stop_line is None:
            self._before = self._now
        self._now = Evidence(first_line=self._number)
        self._request_until = 0
        self._tracebacks.renew()
