"""Reads a log line by line and keeps what may name the cause. Memory is bounded, whatever the log."""

import re

from vllm_supervisor.domain.diagnosis import verdict as judge
from vllm_supervisor.domain.diagnosis.catalogue import SIGNATURES
from vllm_supervisor.domain.diagnosis.evidence import STATS, Evidence, Hit, Stats, clock
from vllm_supervisor.domain.diagnosis.lines import Line, normalise, parts
from vllm_supervisor.domain.diagnosis.model import Context, Diagnosis
from vllm_supervisor.domain.diagnosis.signature import Kind, Signature, Tier

MAX_EVIDENCE = 400
"""Characters of an evidence line that are kept."""
MAX_SHAPES = 8192

_BANNER = re.compile(r"^v?LLM (?:API )?server version |vLLM (?:API )?server version \d|\u2588  version \d")
_READY = re.compile(r'Application startup complete|Avg prompt throughput: |HTTP/1\.\d" 2\d\d|"GET /health \S+ 2\d\d')
_ACCESS = re.compile(r'^\S+ - "[A-Z]+ \S')
_STOPPING = re.compile(
    r"^\[shutdown\] API server: shutdown triggered|^Shutting down(?: FastAPI HTTP server\.?)?$|"
    r"^Received signal \d+|^Gracefully stop"
)
_ENDED = re.compile(r"^Finished server process|^Application shutdown complete")
_ASGI = re.compile(r"Exception in ASGI application")
_STAGES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "load",
        re.compile(
            r"Starting to load model|^Loading \w+ (?:checkpoint )?(?:shards|model weights)\b(?! took)|"
            r"^Multi-thread loading shards"
        ),
    ),
    (
        "loaded",
        re.compile(
            r"Model loading took|Loading model weights took|Loading weights took|KV cache: |"
            r"Available KV cache memory: [\d.]|KV cache size: "
        ),
    ),
    ("graphs", re.compile(r"^Capturing |Graph capturing finished")),
)
_RUN_TIME = re.compile(
    r"EngineCore encountered a fatal error|AsyncLLM output_handler failed|EngineDeadError|WorkerProc hit an exception|"
    r"MQLLMEngine is already dead|Error in model execution"
)
_START_FAILED = re.compile(
    r"EngineCore failed to start|Engine core initialization failed|Engine process failed to start|"
    r"WorkerProc (?:initialization failed|failed to start)"
)
_ECHO = re.compile(
    r"Received request |Generated response |Added request |\bprompt(?:_token_ids)?[:=] ?['\"\[]|['\"](?:prompt|content|"
    r"input|messages|text)['\"]: |input_value=|messages=\[|Dumping (?:input|scheduler)|dump_input|"
    r"The following fields were present in the request"
)
"""Where a line begins to quote a request. Up to 0.10 every request is logged; later on demand, and in errors."""
_REQUEST_FILES = re.compile(
    r"^(?:serving(?:_\w+)?|protocol|chat_utils|preprocess|serving|logger|request_logger|loggers|metrics|dump_input|"
    r"error_handling|exception_handlers?)\.py$"
)
"""Sources whose ERROR lines are answers to one request. (0.11: serving_chat.py; 0.15 and later: serving.py.)"""
_SECRETS = re.compile(r"\b(?:hf_|sk-|api_org_)\w{8,}|(?<=Bearer )\S+|(?<=api_key=)\S+|(?<=token=)\w{8,}")
_STATS_HINT = "Avg prompt throughput"
_DIGITS = {ord(character): None for character in "0123456789abcdef-"}


class Diagnoser:
    """Feed it the lines of a log in order; ask for the verdict whenever wanted.

    A banner begins a new run: the last earlier one that failed is kept beside, and counts where the current one shows
    nothing (it was restarted, and the reader wants to know why).
    """

    def __init__(self) -> None:
        self._now = Evidence()
        self._before: Evidence | None = None
        self._number = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._asgi = False

    @property
    def ready(self) -> bool:
        """Whether the current run has shown that it serves."""
        return self._now.ready_line is not None

    def feed(self, line: str, number: int | None = None) -> None:
        """Take one line. `number` counts from 1 and may skip; without it, lines are counted here."""
        self._number = self._number + 1 if number is None else number
        shape = line[:600].translate(_DIGITS) if len(line) > 600 else line.translate(_DIGITS)  # noqa: PLR2004 # a head is enough to tell shapes apart
        known = self._shapes.get(shape)
        if known is not None and self._seen_before(known):
            return
        matched: set[int] = set()
        stateful = False
        for part in parts(line):
            stateful |= self._look(normalise(part), part, matched)
        if not stateful:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[shape] = tuple(matched)

    def feed_stats(self, line: str, number: int) -> bool:
        """Take one stats line, and say whether it was one."""
        found = STATS.search(line)
        if found is None:
            return False
        moving = float(found["prompt"]) > 0 or float(found["generation"]) > 0
        text = _presentable(found.group())
        running, waiting, usage = int(found["running"]), int(found["waiting"]), found["usage"] or ""
        self._now.stats.append(Stats(number, moving, running, waiting, usage, clock(line), text))
        return True

    def forget_stats(self) -> None:
        """Drop the stats lines taken so far; a bulk reader takes those of the tail in their place."""
        self._now.stats.clear()

    def verdict(self, context: Context | None = None) -> Diagnosis | None:
        """Return the cause, or None where neither the log nor `context` shows a failure."""
        context = context or Context()
        found = judge.verdict(self._now, context)
        if found is None and self._before is not None:
            return judge.verdict(self._before, Context())
        return found

    def _seen_before(self, known: tuple[int, ...]) -> bool:
        hits = self._now.hits
        if any(order not in hits for order in known):
            return False
        for order in known:
            hit = hits[order]
            hit.count += 1
            hit.last_line = self._number
            hit.after_ready += self.ready
        return True

    def _look(self, line: Line, raw: str, matched: set[int]) -> bool:
        """Match one line; return whether it changed more than counts, so that its like must be looked at again."""
        if (echo := _ECHO.search(line.body)) is not None:
            line = Line(line.body[: echo.start()], line.level, line.file)
        if not line.body:
            return False
        if self._mark(line, raw):
            return True
        if line.frame or _ACCESS.match(line.body):
            return False
        of_request = line.file is not None and _REQUEST_FILES.match(line.file) is not None
        in_asgi = self._asgi and line.level is None
        orders = [
            order for order, signature in enumerate(SIGNATURES) if self._counts(signature, line, in_asgi or of_request)
        ]
        for order in orders:
            self._hit(order, line)
        matched.update(orders)
        return bool(orders) and (self._asgi or any(self._now.hits[order].late for order in orders))

    def _counts(self, signature: Signature, line: Line, of_request: bool) -> bool:  # noqa: FBT001 # private
        if of_request and signature.tier not in {Tier.ENGINE, Tier.WORKER}:
            return False
        if line.quiet and not signature.quiet and line.level != "WARNING":
            return False
        return signature.pattern.search(line.body) is not None

    def _hit(self, order: int, line: Line) -> None:
        now, body = self._now, line.body
        signature = SIGNATURES[order]
        kind = signature.kind
        if kind is Kind.FATAL and line.quiet and not signature.quiet:
            kind = Kind.WARNING
        known = now.hits.get(order)
        # Of what a request may provoke, the last before a death counts: days may lie between.
        renewed = known is not None and known.late and not now.died
        if known is not None and not renewed and not (known.kind is Kind.WARNING and kind is Kind.FATAL):
            known.count += 1
            known.last_line = self._number
            known.after_ready += self.ready
            return
        found = signature.pattern.search(body)
        groups = {} if found is None else {name: value for name, value in found.groupdict().items() if value}
        late = signature.start_only and self.ready
        now.hits[order] = Hit(
            signature,
            order,
            self._number,
            _presentable(body),
            groups,
            kind,
            late,
            last_line=self._number,
            after_ready=int(self.ready),
        )
        if signature.cls == "oom_at_load" and kind is Kind.FATAL and now.first_oom_stage is None:
            now.first_oom_stage = "run" if self.ready else now.stage

    def _mark(self, line: Line, raw: str) -> bool:
        """Note where the run stands; return whether the line is only such a mark."""
        now, body = self._now, line.body
        if line.level is not None and self._asgi:
            self._asgi = False
        if line.frame:
            return False
        if _ASGI.search(body):
            self._asgi = True
            return True
        if self._mark_serving(line, raw):
            return True
        if _BANNER.search(body):
            self._begin_run()
            return True
        if _STOPPING.search(body):
            if not now.died and now.stop_line is None:
                now.stop_line = self._number
            return True
        if _ENDED.search(body):
            now.ended = True
            return True
        stage = next((name for name, pattern in _STAGES if pattern.search(body)), None)
        if stage is not None:
            now.stage, now.stage_line = stage, self._number
            return True
        self._note_failure(line)
        return False

    def _mark_serving(self, line: Line, raw: str) -> bool:
        """Note signs of readiness."""
        now, body = self._now, line.body
        if _STATS_HINT in body and self.feed_stats(raw, self._number):
            self._note_ready()
            return True
        if line.quiet and _READY.search(body):
            if "startup complete" in body and not now.died:
                self._survived()
            self._note_ready()
            return True
        return False

    def _note_failure(self, line: Line) -> None:
        now, body = self._now, line.body
        if not line.quiet:
            now.run_time_failure |= _RUN_TIME.search(body) is not None
            now.start_failure |= _START_FAILED.search(body) is not None

    def _note_ready(self) -> None:
        if self._now.ready_line is None:
            self._now.ready_line = self._number

    def _survived(self) -> None:
        """Forget what did not prevent readiness, however it looked; keep what explains."""
        now = self._now
        now.hits = {order: hit for order, hit in now.hits.items() if hit.kind is Kind.CONTEXT}
        now.first_oom_stage = None
        self._shapes.clear()

    def _begin_run(self) -> None:
        """Start afresh, unless nothing of note happened: several servers of one run print a banner each."""
        now = self._now
        if now.failed or now.ready_line is not None or now.stop_line is not None:
            if judge.verdict(now, Context()) is not None:
                self._before = now
            self._now = Evidence(first_line=self._number)
            self._shapes.clear()
        self._asgi = False


def _presentable(text: str) -> str:
    """Cut to length, without tokens: evidence goes into status, events and bundles."""
    return _SECRETS.sub("***", text.strip()[:MAX_EVIDENCE])
