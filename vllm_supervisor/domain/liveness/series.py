"""What has been observed of a ready engine, as one immutable value, and how each observation adds to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vllm_supervisor.domain.engine import EngineMetrics, ProbeResult, Scrape, comparable, moved
from vllm_supervisor.domain.model import Outcome

_FULL = frozenset({429, 503})
"""How an API server answers whose queue is full (0.32 and later: 503, under `--max-num-queued-reqs`)."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A stretch of time in which `what` waited for the engine."""

    since: float
    until: float
    what: str


@dataclass(frozen=True, slots=True)
class Rank:
    """One data-parallel rank."""

    still_since: float
    """The first look with its present figures."""
    running_since: float | None
    """The first look since which it always had requests running; None when it has none."""


@dataclass(frozen=True, slots=True)
class Series:
    """All that has been observed of one engine. Times are monotonic seconds."""

    stepped_at: float
    """No later than this was the last step that is proven."""
    quiet_since: float
    """No earlier than this was it."""
    excused_at: float
    """When it was last known to be asleep or paused, or that it began."""
    resting: str = ""
    """`asleep` or `paused`, while it is."""
    metrics: EngineMetrics | None = None
    """The last look that succeeded."""
    seen_at: float | None = None
    still_since: float | None = None
    """The first look with the present figures."""
    ranks: Mapping[str, Rank] = field(default_factory=dict)
    failed: Scrape | None = None
    """The last look, where it failed."""
    failed_since: float | None = None
    asked_at: float | None = None
    """When the canary in flight was sent."""
    answered_at: float | None = None
    """When the last canary ended, however."""
    silent: Pending | None = None
    """The last canary, where it ended without an answer and nothing stepped since."""
    rejected: Pending | None = None
    refusals: int = 0
    """Canaries in a row that the API server refused."""
    refusal: str = ""
    load: int | None = None
    """Requests inside the API server, where it says so, without our canary."""
    load_at: float | None = None
    load_since: float | None = None
    """Since when there have been some at each look."""
    held_since: float | None = None
    """Since when there have been some, ours included, and never fewer than before."""

    @property
    def countless(self) -> bool:
        """Whether the engine shows no figures by which a step could be seen."""
        if self.metrics is not None and self.metrics.usable:
            return False
        return self.metrics is not None or (self.failed is not None and self.failed.outcome is Outcome.ERROR)

    @property
    def start(self) -> float:
        """Nothing before this can count as a stretch without a step."""
        return max(self.stepped_at, self.excused_at)


def begin(now: float) -> Series:
    """Return what is known of an engine that has just served."""
    return Series(stepped_at=now, quiet_since=now, excused_at=now)


# --- what is observed


def looked(series: Series, scrape: Scrape, asked: float, now: float) -> Series:
    """Take in a look at `/metrics` that was asked for at `asked` and ended at `now`."""
    metrics = scrape.metrics
    if metrics is None:
        since = series.failed_since if series.failed_since is not None else asked
        if scrape.outcome is Outcome.ERROR:
            series = replace(series, metrics=None, still_since=None, ranks={})
        return replace(series, failed=scrape, failed_since=since)
    before = series.metrics
    stepped = moved(before, metrics)
    same = before is not None and not stepped and comparable(before, metrics)
    if stepped:
        quiet = series.seen_at if series.seen_at is not None else series.quiet_since
        series = _stepped(series, max(series.quiet_since, quiet), now)
    elif before is not None and (metrics.rejections or 0) > (before.rejections or 0):
        series = _rejected(series, now)
    return replace(
        series,
        metrics=metrics,
        seen_at=asked,
        still_since=series.still_since if same and series.still_since is not None else now,
        ranks={rank: _look_at(rank, series, metrics, now) for rank in metrics.ranks},
        excused_at=now if metrics.asleep else series.excused_at,
        resting="asleep" if metrics.asleep else "" if series.resting == "asleep" else series.resting,
        failed=None,
        failed_since=None,
    )


def _look_at(name: str, series: Series, metrics: EngineMetrics, now: float) -> Rank:
    before, known = series.metrics, series.ranks.get(name)
    runs = metrics.gauges.get((name, "running"), 0) > 0
    if before is None or known is None or not comparable(before, metrics, name) or moved(before, metrics, name):
        return Rank(now, now if runs else None)
    if known.running_since is not None and runs:
        return known
    return Rank(known.still_since, now if runs else None)


def _stepped(series: Series, quiet_since: float, now: float) -> Series:
    return replace(series, stepped_at=now, quiet_since=quiet_since, silent=None, rejected=None)


def _rejected(series: Series, now: float) -> Series:
    since = series.rejected.since if series.rejected is not None else now
    return replace(series, rejected=Pending(since, now, "requests were turned away since the queue is full"))


def suspended(series: Series, now: float, *, paused: bool) -> Series:
    """Take in what the engine says of being paused, or asleep."""
    if paused:
        return replace(series, excused_at=now, resting=series.resting or "paused")
    return replace(series, resting="" if series.resting == "paused" else series.resting)


def loaded(series: Series, load: int | None, asked: float, now: float) -> Series:
    """Take in `/load`, our canary included, that was asked for at `asked` and answered at `now`."""
    if load is None:
        return replace(series, load=None, load_at=None, load_since=None, held_since=None)
    ours = series.asked_at is not None
    others = max(0, load - ours)
    held = series.held_since if series.held_since is not None and others >= (series.load or 0) else now
    return replace(
        series,
        load=others,
        load_at=asked,
        load_since=None if not others else series.load_since if series.load_since is not None else now,
        held_since=held if load else None,
    )


def asked(series: Series, now: float) -> Series:
    """Note that a canary was sent."""
    return replace(series, asked_at=now)


def answered(series: Series, result: ProbeResult, now: float) -> Series:
    """Take in how the canary ended. A refusal comes from the API server and says nothing about the engine."""
    since = series.asked_at if series.asked_at is not None else now
    series = replace(series, asked_at=None, answered_at=now)
    match result.outcome:
        case Outcome.OK:
            return replace(_stepped(series, now, now), refusals=0, refusal="")
        case Outcome.TIMEOUT:
            return replace(series, silent=Pending(since, now, "a canary was not answered"))
        case Outcome.ERROR if result.status in _FULL and (full := _says_full(series)) is not None:
            return _rejected(series, now) if full else series
        case Outcome.ERROR:
            return replace(series, refusals=series.refusals + 1, refusal=result.detail)
        case _:
            return series


def _says_full(series: Series) -> bool | None:
    """Say whether a 503 means a full queue: False where the next look will tell, None where it means something else."""
    metrics = series.metrics
    if metrics is not None and metrics.rejections is not None:
        return False
    return True if metrics is not None and (metrics.running or metrics.waiting) else None
