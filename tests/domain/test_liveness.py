"""The verdict on an engine's stepping: each rule by a story, and what no story may lead to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.domain.engine import EngineMetrics, ProbeResult, Scrape
from vllm_supervisor.domain.liveness import (
    Limits,
    Liveness,
    Series,
    answered,
    asked,
    begin,
    canary_deadline,
    canary_due,
    judge,
    loaded,
    looked,
    proof_due,
    rank_in_doubt,
    suspended,
)
from vllm_supervisor.domain.model import Outcome

LIMITS = Limits(interval=30, timeout=120)
STEPS = "vllm:iteration_tokens_total_count"


def figures(
    steps: float = 5, *, running: float = 0, usage: float = 0, rejections: float | None = 0, asleep: bool = False
) -> EngineMetrics:
    return EngineMetrics(
        running=int(running),
        waiting=0,
        counters={("0", STEPS): steps},
        gauges={("0", "running"): running, ("0", "waiting"): 0, ("0", "kv_cache_usage"): usage},
        rejections=rejections,
        asleep=asleep,
    )


def ranks(*each: tuple[float, float]) -> EngineMetrics:
    """Return the figures of ranks by their (steps, running)."""
    return EngineMetrics(
        running=int(sum(running for _, running in each)),
        waiting=0,
        counters={(str(i), STEPS): steps for i, (steps, _) in enumerate(each)},
        gauges={(str(i), "running"): running for i, (_, running) in enumerate(each)},
    )


@dataclass
class Story:
    """A series, told with a clock. Looks take no time unless said."""

    now: float = 0.0
    limits: Limits = LIMITS
    series: Series = field(default_factory=partial(begin, 0.0))

    def at(self, now: float) -> "Story":
        self.now = now
        return self

    def look(self, metrics: EngineMetrics, seconds: float = 0.0) -> "Story":
        self.series = looked(self.series, Scrape(Outcome.OK, metrics), self.now, self.now + seconds)
        self.now += seconds
        return self

    def looks(self, metrics: EngineMetrics, until: float, every: float = 5.0) -> "Story":
        """Look at the same figures again and again."""
        while self.now < until:
            self.at(min(until, self.now + every)).look(metrics)
        return self

    def fail(self, outcome: Outcome = Outcome.TIMEOUT, detail: str = "") -> "Story":
        self.series = looked(self.series, Scrape(outcome, detail=detail), self.now, self.now)
        return self

    def ask(self) -> "Story":
        self.series = asked(self.series, self.now)
        return self

    def answer(self, outcome: Outcome = Outcome.OK, status: int | None = 200, detail: str = "") -> "Story":
        self.series = answered(self.series, ProbeResult(outcome, 0.1, detail, status), self.now)
        return self

    def load(self, load: int | None) -> "Story":
        self.series = loaded(self.series, load, self.now, self.now)
        return self

    def pause(self, *, paused: bool) -> "Story":
        self.series = suspended(self.series, self.now, paused=paused)
        return self

    @property
    def verdict(self) -> Liveness:
        return judge(self.series, self.limits, self.now).verdict

    @property
    def evidence(self) -> str:
        return judge(self.series, self.limits, self.now).evidence


def refused(story: Story, times: int, status: int = 401) -> Story:
    for _ in range(times):
        story.ask().answer(Outcome.ERROR, status, f"completions: HTTP {status}")
    return story


def late_canary(story: Story, metrics: EngineMetrics, asked_at: float, until: float) -> Story:
    return story.looks(metrics, asked_at).ask().looks(metrics, until)


IDLE = figures()
BUSY = figures(running=3)
NONE = EngineMetrics()

STORIES: list[tuple[str, Callable[[Story], Story], Liveness]] = [
    ("it has just served", lambda s: s.at(1), Liveness.ALIVE),
    ("a counter moved", lambda s: s.look(figures(5)).at(60).look(figures(6)), Liveness.ALIVE),
    ("a gauge changed: a chunk of prefill", lambda s: s.look(BUSY).at(60).look(figures(usage=0.1)), Liveness.ALIVE),
    ("nothing moves, nothing is pending", lambda s: s.look(IDLE).looks(IDLE, 29), Liveness.IDLE),
    ("for hours, unasked", lambda s: s.look(IDLE).looks(IDLE, 1e4, 60), Liveness.IDLE),
    ("requests run, the last step is not long ago", lambda s: s.look(BUSY).looks(BUSY, 25), Liveness.BUSY),
    ("requests run by a gauge that is stale", lambda s: s.look(BUSY).looks(BUSY, 1e4, 60), Liveness.BUSY),
    ("a canary is in flight", lambda s: late_canary(s.look(IDLE), IDLE, 30, 50), Liveness.BUSY),
    ("it is late", lambda s: late_canary(s.look(IDLE), IDLE, 30, 65), Liveness.SUSPECT),
    ("it is late by the timeout", lambda s: late_canary(s.look(IDLE), IDLE, 30, 150), Liveness.STUCK),
    ("a moment before", lambda s: late_canary(s.look(IDLE), IDLE, 30, 149.9), Liveness.SUSPECT),
    (
        "a counter moved meanwhile: counted from there",
        lambda s: late_canary(s.look(IDLE), IDLE, 30, 100).at(101).look(figures(6)).looks(figures(6), 220),
        Liveness.SUSPECT,
    ),
    (
        "and found from there",
        lambda s: late_canary(s.look(IDLE), IDLE, 30, 100).at(101).look(figures(6)).looks(figures(6), 221),
        Liveness.STUCK,
    ),
    (
        "a counter went backwards: a new baseline, no step and no proof",
        lambda s: late_canary(s.look(IDLE), IDLE, 30, 100).at(101).look(figures(0)).looks(figures(0), 220),
        Liveness.SUSPECT,
    ),
    ("it was answered in the end", lambda s: late_canary(s.look(IDLE), IDLE, 30, 149).answer(), Liveness.ALIVE),
    (
        "looks fail: a late canary proves nothing",
        lambda s: s.look(IDLE).looks(IDLE, 30).ask().at(60).fail().at(100).fail().at(200).fail(),
        Liveness.SUSPECT,
    ),
    (
        "also given up",
        lambda s: s.look(IDLE).looks(IDLE, 30).ask().at(60).fail().at(160).answer(Outcome.TIMEOUT, None).fail(),
        Liveness.SUSPECT,
    ),
    (
        "until a look succeeds that shows that nothing moved",
        lambda s: s.look(IDLE).looks(IDLE, 30).ask().at(60).fail().at(160).answer(Outcome.TIMEOUT, None).look(IDLE),
        Liveness.STUCK,
    ),
    (
        "or one that shows that something did",
        lambda s: s.look(IDLE).looks(IDLE, 30).ask().at(60).fail().at(160).answer(Outcome.TIMEOUT, None).look(BUSY),
        Liveness.ALIVE,
    ),
    (
        "looks that fail are no idleness: the stretch begins at the first that succeeds",
        lambda s: s.at(5).fail().at(30).ask().at(100).fail().at(140).look(IDLE).at(155).look(IDLE),
        Liveness.SUSPECT,
    ),
    (
        "load tracked, all of the timeout",
        lambda s: s.look(BUSY).at(1).look(BUSY).load(3).at(60).look(BUSY).load(1).at(121).look(BUSY).load(2),
        Liveness.STUCK,
    ),
    (
        "load that fell to nothing in between",
        lambda s: s.look(BUSY).at(1).look(BUSY).load(3).at(60).look(BUSY).load(0).at(121).look(BUSY).load(2),
        Liveness.BUSY,
    ),
    (
        "load is our own canary only",
        lambda s: s.look(IDLE).at(30).ask().look(IDLE).load(1).at(59).look(IDLE).load(1),
        Liveness.BUSY,
    ),
    (
        "load that came after an hour of silence counts from its coming",
        lambda s: s.look(IDLE).looks(IDLE, 3600, 60).load(1).at(3610).look(IDLE).load(1),
        Liveness.BUSY,
    ),
    ("nobody listens", lambda s: s.look(IDLE).at(20).fail(Outcome.REFUSED), Liveness.DEAD),
    ("asleep", lambda s: s.look(figures(asleep=True)).looks(figures(asleep=True), 1000, 60), Liveness.IDLE),
    (
        "asleep with work waiting",
        lambda s: s.look(figures(asleep=True)).load(3).looks(figures(asleep=True), 1000, 60).load(3),
        Liveness.IDLE,
    ),
    (
        "awake again with work waiting: counted from there",
        lambda s: s.look(figures(asleep=True)).load(3).looks(figures(asleep=True), 500, 5).look(IDLE).load(3)
        .looks(IDLE, 610).load(3),
        Liveness.SUSPECT,
    ),
    ("paused", lambda s: s.look(IDLE).load(1).at(500).look(IDLE).load(1).pause(paused=True), Liveness.IDLE),
    ("canaries refused", lambda s: refused(s.look(IDLE).looks(IDLE, 100), 2), Liveness.BLIND),
    ("one refusal is no rule", lambda s: refused(s.look(IDLE).looks(IDLE, 100), 1), Liveness.IDLE),
    ("refused, but stepping", lambda s: refused(s.look(IDLE), 5).at(100).look(BUSY), Liveness.ALIVE),
    ("refused for ever", lambda s: refused(s.look(IDLE).looks(IDLE, 1e4, 50), 99, 404), Liveness.BLIND),
    (
        "refused, with load and nothing moving",
        lambda s: refused(s.look(IDLE).load(2).looks(IDLE, 100).load(2), 3).looks(IDLE, 120).load(2),
        Liveness.STUCK,
    ),
    (
        "turned away for a full queue, by the server's own count",
        lambda s: s.look(figures(rejections=0)).at(10).look(figures(rejections=2)).looks(figures(rejections=2), 125)
        .at(130).look(figures(rejections=3)),
        Liveness.STUCK,
    ),
    (
        "turned away once, long ago",
        lambda s: s.look(figures(rejections=0)).at(10).look(figures(rejections=2)).looks(figures(rejections=2), 300),
        Liveness.IDLE,
    ),
    (
        "503 without such a count, while requests ran when it last said so",
        lambda s: refused(refused(s.look(figures(running=9, rejections=None)).at(5)
        .look(figures(running=9, rejections=None)), 1, 503).looks(figures(running=9, rejections=None), 125), 1, 503)
        .look(figures(running=9, rejections=None)),
        Liveness.STUCK,
    ),
    (
        "503 of an engine that is idle says nothing",
        lambda s: refused(refused(s.look(figures(rejections=None)).at(5), 1, 503)
        .looks(figures(rejections=None), 200), 1, 503),
        Liveness.BLIND,
    ),
    ("without counters, a late canary", lambda s: late_canary(s.look(NONE), NONE, 30, 1000), Liveness.SUSPECT),
    (
        "without counters, with load that is ours alone",
        lambda s: late_canary(s.look(NONE), NONE, 30, 31).load(1).looks(NONE, 151).load(1),
        Liveness.STUCK,
    ),
    (
        "without counters, with load that does not get less",
        lambda s: late_canary(s.look(NONE), NONE, 30, 31).load(5).looks(NONE, 100).load(6).looks(NONE, 151).load(6),
        Liveness.STUCK,
    ),
    (
        "without counters, requests end: a queue that moves",
        lambda s: late_canary(s.look(NONE), NONE, 30, 31).load(64).looks(NONE, 100).load(63).looks(NONE, 151).load(63),
        Liveness.SUSPECT,
    ),
    ("no /metrics", lambda s: s.fail(Outcome.ERROR).at(30).ask().at(300).fail(Outcome.ERROR), Liveness.SUSPECT),
    (
        "a rank with requests stands still while another steps",
        lambda s: s.look(ranks((1, 1), (1, 1))).at(60).look(ranks((2, 1), (1, 1))).at(120).look(ranks((3, 1), (1, 1))),
        Liveness.STUCK,
    ),
    (
        "an idle rank's counters stand still, too",
        lambda s: s.look(ranks((1, 1), (1, 0))).at(60).look(ranks((2, 1), (1, 0))).at(1200).look(ranks((3, 1), (1, 0))),
        Liveness.ALIVE,
    ),
    (
        "a rank that was idle meanwhile",
        lambda s: s.look(ranks((1, 1), (1, 1))).at(60).look(ranks((2, 1), (1, 0))).at(70).look(ranks((2, 1), (1, 1)))
        .at(121).look(ranks((3, 1), (1, 1))),
        Liveness.SUSPECT,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tell", "expected"), [pytest.param(tell, v, id=i) for i, tell, v in STORIES])
def test_the_verdict(tell: Callable[[Story], Story], expected: Liveness) -> None:
    """Each rule, and its edges; the evidence is in words."""
    story = tell(Story())
    assert story.verdict is expected, story.evidence
    assert story.evidence


def test_mode_none_without_counters_is_blind() -> None:
    """Then nothing would show a freeze."""
    story = Story(limits=Limits(mode="none")).look(NONE).at(100).look(NONE)
    assert story.verdict is Liveness.BLIND
    assert canary_due(story.series, story.limits) is None


def test_when_a_canary_is_due() -> None:
    """`interval` after the earliest moment at which the last step may have been, or the last canary; one at a time."""
    story = Story().look(figures(1)).at(5).look(figures(2)).at(10).look(figures(2))
    assert canary_due(story.series, LIMITS) == 30, "the step was between 0 and 5"
    assert canary_due(story.at(30).ask().series, LIMITS) is None
    assert canary_deadline(story.series, LIMITS) == 30 + 120 + 10
    assert canary_due(story.at(31).answer().series, LIMITS) == 61
    assert canary_due(story.at(35).look(figures(3)).series, LIMITS) == 61, "the canary's own step"
    assert canary_due(story.at(70).look(figures(3, asleep=True)).series, LIMITS) is None
    assert canary_due(story.at(90).look(figures(3)).series, LIMITS) == 100, "30 after it was last seen asleep"


def test_a_canary_lives_as_long_as_the_engine_steps() -> None:
    """In a queue that moves it only waits; its deadline counts from the last step."""
    story = Story().look(figures(1)).at(30).ask().at(100).look(figures(2))
    assert canary_deadline(story.series, LIMITS) == 100 + 120 + 10
    assert proof_due(story.series, LIMITS) == 100 + 120


def test_the_rank_in_doubt_is_named() -> None:
    """So that the canary can be sent there."""
    story = Story().look(ranks((1, 1), (1, 1), (1, 0))).at(31).look(ranks((2, 1), (1, 1), (1, 0)))
    assert rank_in_doubt(story.series, LIMITS) == "1"
    assert canary_due(story.series, LIMITS) == 30, "although others step"


# --- whatever happens

_DELAYS = st.floats(0.01, 60)
_EVENTS = st.sampled_from(
    ["look", "look", "look", "timeout", "error", "ask", "serve", "silence", "refuse", "full", "load", "doze", "pause"]
)


@given(st.lists(st.tuples(_EVENTS, _DELAYS, st.integers(0, 3)), max_size=60))
def test_an_engine_that_steps_is_never_stuck(events: list[tuple[str, float, int]]) -> None:
    """Whatever else is observed: a counter that moves within each timeout keeps it from being condemned."""
    story, steps, stepped_at = Story(), 0.0, 0.0
    story.look(figures(steps))
    for event, delay, n in events:
        story.at(story.now + delay)
        if story.now - stepped_at >= LIMITS.timeout / 2:
            steps, stepped_at = steps + 1, story.now
            story.look(figures(steps))
        happen(story, event, n, steps)
        assert story.verdict is not Liveness.STUCK, story.evidence


@given(st.lists(st.tuples(_EVENTS, _DELAYS, st.integers(0, 3)), max_size=60))
def test_stuck_is_proven_by_two_looks_and_pending_work(events: list[tuple[str, float, int]]) -> None:
    """Never without figures that stood still between two looks `timeout` apart, nor with nothing pending."""
    story = Story()
    for event, delay, n in events:
        happen(story.at(story.now + delay), event, n, 5.0)
        series = story.series
        if story.verdict is Liveness.STUCK and not series.countless:
            assert series.seen_at is not None
            assert series.still_since is not None
            assert series.seen_at - series.still_since > LIMITS.timeout - 0.01
            assert series.seen_at - series.start > LIMITS.timeout - 0.01
            pending = (series.asked_at, series.silent, series.rejected, series.load_since)
            assert any(each is not None for each in pending)
            assert not series.resting
        due = canary_due(series, LIMITS)
        assert due is None or (series.asked_at is None and not series.resting)


@given(
    freeze=st.floats(1, 200),
    heartbeat=st.floats(0.5, 5),
    steps_every=st.one_of(st.none(), st.floats(0.1, 20)),
)
def test_a_freeze_is_found_within_timeout_and_interval(
    freeze: float, heartbeat: float, steps_every: float | None
) -> None:
    """Idle or under load, whenever it happens: looks each heartbeat, canaries when due, a look when it can prove."""
    story = Story()
    canary_answers: float | None = None
    while story.now <= freeze + LIMITS.timeout + LIMITS.interval + 0.01:
        alive = min(story.now, freeze)
        answered_by = canary_answers if canary_answers is not None and canary_answers < freeze else None
        if answered_by is not None and story.series.asked_at is not None and story.now >= answered_by:
            story.answer()
            canary_answers = None
        story.look(figures(float(alive // steps_every) if steps_every else 0.0))
        if story.verdict is Liveness.STUCK:
            assert story.now >= freeze + LIMITS.timeout - 2 * heartbeat, "not before either"
            return
        due = canary_due(story.series, LIMITS)
        if due is not None and story.now >= due:
            story.ask()
            canary_answers = story.now + 0.001
        times = [story.now + heartbeat, canary_due(story.series, LIMITS), proof_due(story.series, LIMITS)]
        times.append(canary_answers)
        story.at(max(story.now + 0.001, min(at for at in times if at is not None and at > story.now)))
    raise AssertionError((freeze, story.evidence))


def happen(story: Story, event: str, n: int, steps: float) -> None:
    """Let something be observed."""
    match event:
        case "look":
            story.look(figures(steps, running=float(n > 1), rejections=None))
        case "timeout":
            story.fail()
        case "error":
            story.fail(Outcome.ERROR)
        case "ask" if story.series.asked_at is None:
            story.ask()
        case "serve" if story.series.asked_at is not None:
            story.answer()
        case "silence" if story.series.asked_at is not None:
            story.answer(Outcome.TIMEOUT, None)
        case "refuse" if story.series.asked_at is not None:
            story.answer(Outcome.ERROR, 401)
        case "full" if story.series.asked_at is not None:
            story.answer(Outcome.ERROR, 503)
        case "load":
            story.load(n)
        case "doze":
            story.look(figures(steps, asleep=n == 0, rejections=None))
        case "pause":
            story.pause(paused=n == 0)
