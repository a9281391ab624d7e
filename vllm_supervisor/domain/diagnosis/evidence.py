"""What one run of the engine has shown in its log so far, in bounded memory."""

import re
from collections import deque
from dataclasses import dataclass, field

from vllm_supervisor.domain.diagnosis.signature import Kind, Signature, Tier
from vllm_supervisor.domain.diagnosis.tracebacks import Raised

STATS = re.compile(
    r"Avg prompt throughput: (?P<prompt>{n}) tokens/s, Avg generation throughput: (?P<generation>{n}) tokens/s"
    r".*?Running: (?P<running>\d{{1,15}})\b.*?(?:Waiting|Pending): (?P<waiting>\d{{1,15}})\b"
    r"(?:.*?KV cache usage: (?P<usage>[\d.]{{1,15}}))?".format(n=r"\d{1,15}(?:\.\d{1,15})?")
)
"""The stats line of every version; fields are found by name (their number grew)."""

HUNG_READS = 3
"""Repeats of the shared-memory warning after readiness that make a hang: it comes once a minute, and a compilation at
run time may provoke one or two."""
HUNG_READS_PENDING = 2
"""The same where the last stats line shows requests and no token."""
ROW_GAP = 180
"""Seconds between two of them that still belong to a row: they come every 60."""
STUCK_QUEUE = 3
"""Stats lines (10 s apart) in a row with requests waiting, none running and no token: the scheduler stands still."""
STUCK_BATCH = 6
"""The same with requests running, and the cache filled as it was: even a long prefill fills it chunk by chunk."""
STUCK_SECONDS = 60.0
"""Or this long by the lines' own clock, where stats lines are sparse."""
_CLOCK = re.compile(r"\b(\d\d):(\d\d):(\d\d)\b")
_DAY = 86400


def clock(line: str) -> int | None:
    """Return the time of day that a line bears, in seconds."""
    found = _CLOCK.search(line)
    return None if found is None else int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])


MAX_RAISED = 32
"""Exceptions that are kept: of those before the death the last ones, of those after it the first."""
_NEAR = 250
"""Lines before a death in which an exception may be its cause."""

_DEATHS = frozenset({Tier.WORKER, Tier.ENGINE, Tier.START})


@dataclass(slots=True)
class Hit:
    """The first line that matched a signature, and how often it matched."""

    signature: Signature
    order: int
    """Place in the catalogue."""
    line: int
    text: str
    groups: dict[str, str]
    kind: Kind
    late: bool = False
    """Seen after readiness, where a request could have provoked it."""
    count: int = 1
    last_line: int = 0
    in_a_row: int = 0
    """After readiness, the last ones that follow by the minute: a hang repeats them, a busy week scatters them."""
    at: int | None = None
    """Time of day of the last one."""

    def again(self, line: int, text: str, *, ready: bool) -> None:
        """Count one more match."""
        self.count += 1
        self.last_line = line
        self.note(text, ready=ready)

    def note(self, text: str, *, ready: bool) -> None:
        """Note when a match came, and whether it belongs to a row."""
        if self.signature.cls != "hang_health_ok" or not ready:
            return
        at = clock(text)
        apart = 0 if at is None or self.at is None else (at - self.at) % _DAY
        self.in_a_row = self.in_a_row + 1 if apart <= ROW_GAP else 1
        self.at = at


@dataclass(frozen=True, slots=True)
class Stats:
    """One stats line."""

    line: int
    moving: bool
    running: int
    waiting: int
    usage: str
    """How full the cache is, as printed."""
    at: int | None
    """Time of day in seconds."""
    text: str

    @property
    def still(self) -> bool:
        """Whether requests are there and no token was made."""
        return not self.moving and self.running + self.waiting > 0


@dataclass(slots=True)
class Evidence:
    """One run of the engine, from its first line (or the file's) to the next banner."""

    first_line: int = 1
    hits: dict[int, Hit] = field(default_factory=dict)
    ready_line: int | None = None
    stop_line: int | None = None
    """An orderly stop began, and nothing had died before."""
    port: str | None = None
    """From the arguments that vLLM prints at its start."""
    ended: bool = False
    """The server said that it finished."""
    stage: str = "start"
    """Where the start had got to: start, load, loaded, cached, graphs."""
    stage_line: int = 0
    first_oom_stage: str | None = None
    run_time_failure: bool = False
    """The engine's loop ran when it failed, whether or not readiness is in what is left of the log."""
    start_failure: bool = False
    raised: list[Raised] = field(default_factory=list)
    """What tracebacks ended in, consequences left out."""
    over: bool = False
    """vLLM's first process has ended."""
    stats: deque[Stats] = field(default_factory=lambda: deque(maxlen=64))

    @property
    def died(self) -> bool:
        """Whether something says that a process of the engine ended badly."""
        return self.start_failure or any(
            hit.kind is Kind.FATAL and hit.signature.tier in _DEATHS for hit in self.hits.values()
        )

    @property
    def failed(self) -> bool:
        """Whether anything fatal was seen at all."""
        return any(hit.kind is Kind.FATAL for hit in self.hits.values())

    @property
    def eventful(self) -> bool:
        """Whether anything of note happened yet."""
        return self.failed or self.ready_line is not None or self.stop_line is not None

    def survive(self) -> None:
        """Forget what did not prevent readiness, however it looked; keep what explains."""
        self.hits = {order: hit for order, hit in self.hits.items() if hit.kind is Kind.CONTEXT}
        self.first_oom_stage = None
        self.raised.clear()

    def note_raised(self, raised: Raised) -> None:
        """Keep an exception that may be the cause of a death."""
        if raised.consequence:
            return
        if len(self.raised) == MAX_RAISED:
            if self.died:
                return
            del self.raised[0]
        self.raised.append(raised)

    def raised_at(self, line: int) -> Raised | None:
        """Return the exception of `line`."""
        return next((raised for raised in self.raised if raised.line == line), None)

    def root(self) -> Raised | None:
        """Return the exception that the death came from: the first after it was told, else the first shortly before."""
        death = self.death_line
        if death is None:
            return None
        after = [raised for raised in self.raised if raised.line >= death]
        before = [raised for raised in self.raised if death - _NEAR <= raised.line < death]
        return next(iter((*after, *before)), None)

    @property
    def death_line(self) -> int | None:
        """The first line that says that a process ended badly."""
        lines = [hit.line for hit in self.hits.values() if hit.kind is Kind.FATAL and hit.signature.tier in _DEATHS]
        return min(lines, default=None)

    def stuck_since(self) -> Stats | None:
        """Return the first of the last stats lines in a row that show pending requests and no token, if enough do."""
        row: list[Stats] = []
        for stats in reversed(self.stats):
            if not stats.still or (row and stats.running > 0 and stats.usage != row[-1].usage):
                break
            row.append(stats)
        if not row:
            return None
        first, last = row[-1], row[0]
        if all(stats.running == 0 for stats in row):
            return first if len(row) >= STUCK_QUEUE else None
        lasted = (last.at - first.at) % _DAY if last.at is not None and first.at is not None else 0
        if len(row) >= STUCK_BATCH or (len(row) >= STUCK_QUEUE and lasted >= STUCK_SECONDS):
            return first
        return None

    def moved_after(self, line: int) -> bool:
        """Whether tokens flowed after `line`."""
        return any(stats.moving and stats.line > line for stats in self.stats)
