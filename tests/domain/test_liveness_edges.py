"""What the verdict on an engine's stepping says in words, when it changes, and when `/load` is asked."""

from collections.abc import Callable

import pytest

from tests.domain.test_liveness import BUSY, IDLE, NONE, STORIES, Story, figures, late_canary, ranks, refused
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.domain.liveness import (
    Limits,
    Liveness,
    canary_deadline,
    canary_due,
    load_due,
    proof_due,
    rank_in_doubt,
)
from vllm_supervisor.domain.model import Outcome

Tell = Callable[[Story], Story]
LOOKED = "no counter and no gauge of the engine moved for"
WORDS = {
    "it has just served": "it stepped just now",
    "nothing moves, nothing is pending": "nothing is pending; the last step is 29 s ago",
    "requests run, the last step is not long ago": (
        "3 requests running and 0 waiting when it last said so; the last step is 25 s ago"
    ),
    "a canary is in flight": "a canary is unanswered; the last step is 50 s ago",
    "it is late": "a canary is unanswered for 35 s; the last step is 65 s ago",
    "it is late by the timeout": f"a canary is unanswered, and {LOOKED} 120 s",
    "until a look succeeds that shows that nothing moved": f"a canary was not answered, and {LOOKED} 130 s",
    "load tracked, all of the timeout": f"/load counts 2, and {LOOKED} 120 s",
    "load that fell to nothing in between": (
        "/load counts 2, 3 requests running and 0 waiting when it last said so; the last step is 121 s ago"
    ),
    "asleep with work waiting": "the engine is asleep",
    "paused": "the engine is paused",
    "canaries refused": "canaries are refused (completions: HTTP 401); the last step is 100 s ago",
    "without counters, a late canary": (
        "a canary is unanswered for 970 s, without counters that proves nothing; the last step is 1000 s ago"
    ),
    "without counters, with load that does not get less": (
        "a canary is unanswered, and none of the 5 other requests that /load counts ended for 120 s"
    ),
    "a rank with requests stands still while another steps": (
        "rank 1 has requests running, and none of its counters moved for 120 s"
    ),
    "a rank that was idle meanwhile": "rank 1 has requests running and stands still; the last step is 0 s ago",
}


@pytest.mark.parametrize(("name", "words"), WORDS.items(), ids=WORDS)
def test_the_evidence_is_told_with_its_figures(name: str, words: str) -> None:
    """Operators read it in the status and in the event of a restart."""
    (tell,) = (tell for each, tell, _ in STORIES if each == name)
    assert tell(Story()).evidence == words


def test_a_look_that_fails_is_told_with_its_reason() -> None:
    """Whether it proves something, keeps from a proof, or is all that is known."""
    refusal = Story().look(IDLE).at(20).fail(Outcome.REFUSED, "connection refused")
    assert refusal.evidence == "nobody listens: connection refused"
    late = Story().look(IDLE).at(30).ask().at(61).fail(detail="timed out")
    assert late.evidence == (
        "a canary is unanswered for 31 s, /metrics cannot be read: timed out; the last step is 61 s ago"
    )
    alone = Story().look(figures(running=1)).at(11).fail(detail="timed out")
    assert alone.evidence == (
        "1 requests running and 0 waiting when it last said so, /metrics cannot be read: timed out; "
        "the last step is 11 s ago"
    )
    blind = Story(limits=Limits(mode="none")).look(NONE).at(31)
    assert blind.evidence == "there are no counters, and liveness.mode is none; the last step is 31 s ago"


def test_figures_that_are_not_shown_count_as_none() -> None:
    """A version that tells only one of running and waiting is busy by that one."""
    waiting = EngineMetrics(waiting=2, counters=figures().counters, gauges={})
    assert Story().look(waiting).at(11).evidence == (
        "0 requests running and 2 waiting when it last said so; the last step is 11 s ago"
    )
    running = EngineMetrics(running=2, counters=figures().counters, gauges={})
    assert Story().look(running).at(11).evidence == (
        "2 requests running and 0 waiting when it last said so; the last step is 11 s ago"
    )


EDGES: list[tuple[str, Tell, Liveness]] = [
    ("two heartbeats after a step", lambda s: s.look(IDLE).at(10), Liveness.ALIVE),
    ("later", lambda s: s.look(IDLE).at(10.5), Liveness.IDLE),
    ("late begins after `interval`", lambda s: late_canary(s.look(IDLE), IDLE, 30, 60), Liveness.BUSY),
    ("and no later", lambda s: late_canary(s.look(IDLE), IDLE, 30, 60.5), Liveness.SUSPECT),
    ("refused, silent for `interval`", lambda s: refused(s.look(IDLE), 2).looks(IDLE, 30), Liveness.IDLE),
    ("refused, silent for longer", lambda s: refused(s.look(IDLE), 2).looks(IDLE, 30.5), Liveness.BLIND),
    ("given up, not long ago", lambda s: s.look(IDLE).ask().at(20).answer(Outcome.TIMEOUT, None).at(30).look(IDLE),
     Liveness.BUSY),
    ("given up, before that", lambda s: s.look(IDLE).ask().at(20).answer(Outcome.TIMEOUT, None).at(30.5).look(IDLE),
     Liveness.IDLE),
    ("a timer that is early by a millisecond", lambda s: late_canary(s.look(IDLE), IDLE, 30, 149.9995), Liveness.STUCK),
    ("by more", lambda s: late_canary(s.look(IDLE), IDLE, 30, 149.998), Liveness.SUSPECT),
    ("only waiting", lambda s: s.look(EngineMetrics(waiting=1, counters=IDLE.counters)).at(11), Liveness.BUSY),
    ("a rank, a millisecond early",
     lambda s: s.look(ranks((1, 1), (1, 1))).at(119.9995).look(ranks((2, 1), (1, 1))), Liveness.STUCK),
    ("a rank, by more",
     lambda s: s.look(ranks((1, 1), (1, 1))).at(119.998).look(ranks((2, 1), (1, 1))), Liveness.SUSPECT),
    ("a rank in doubt, not yet", lambda s: s.look(ranks((1, 1), (1, 1))).at(30).look(ranks((2, 1), (1, 1))),
     Liveness.ALIVE),
    ("a rank excused by a nap",
     lambda s: s.look(ranks((1, 1), (1, 1))).at(100).pause(paused=True).pause(paused=False)
     .at(121).look(ranks((2, 1), (1, 1))), Liveness.SUSPECT),
    ("a single rank is no rank in doubt", lambda s: s.look(ranks((1, 1))).at(200).look(ranks((1, 1))), Liveness.BUSY),
    ("without counters, a millisecond early",
     lambda s: s.look(NONE).at(30).ask().load(1).at(149.9995).load(1), Liveness.STUCK),
    ("without counters, by more", lambda s: s.look(NONE).at(30).ask().load(1).at(149.998).load(1), Liveness.SUSPECT),
    ("without counters, load before the canary",
     lambda s: s.look(NONE).load(5).at(100).ask().load(6).at(210).load(6), Liveness.SUSPECT),
    ("without counters, load but no canary",
     lambda s: s.look(NONE).load(5).at(25).load(5).at(31).load(0), Liveness.IDLE),
]  # fmt: skip


@pytest.mark.parametrize(("tell", "expected"), [pytest.param(tell, v, id=i) for i, tell, v in EDGES])
def test_when_the_verdict_changes(tell: Tell, expected: Liveness) -> None:
    """Two heartbeats are 10 s, late is 30, the timeout 120."""
    story = tell(Story())
    assert story.verdict is expected, story.evidence


@pytest.mark.parametrize(
    ("interval", "timeout", "heartbeat", "late"),
    [(30, 120, 5, 30), (12, 120, 2, 12), (30, 18, 3, 9), (60, 600, 5, 60)],
)
def test_the_pauses_that_follow_from_the_limits(interval: float, timeout: float, heartbeat: float, late: float) -> None:
    """Looks are six to an interval or a timeout, and at least each 5 s; late is half a timeout at most."""
    limits = Limits(interval=interval, timeout=timeout)
    assert (limits.heartbeat, limits.late) == (heartbeat, late)


LOADS: list[tuple[str, Tell, str, bool]] = [
    ("it stepped a heartbeat ago", lambda s: s.look(BUSY).at(5), "auto", False),
    ("it has been at rest since", lambda s: s.look(IDLE).looks(IDLE, 100), "auto", False),
    ("requests run", lambda s: s.look(BUSY).at(5.5), "auto", True),
    ("requests wait", lambda s: s.look(EngineMetrics(waiting=1, counters=IDLE.counters)).at(5.5), "auto", True),
    ("a canary is in flight", lambda s: s.look(IDLE).at(30).ask(), "auto", True),
    ("a canary was refused", lambda s: refused(s.look(IDLE).at(30), 1), "auto", True),
    ("no canary may be sent", lambda s: s.look(IDLE).at(30), "none", True),
    ("the look failed", lambda s: s.look(IDLE).at(30).fail(), "auto", True),
    ("no look succeeded yet", lambda s: s.at(30), "auto", True),
    ("without counters, also just after a step", lambda s: s.look(NONE), "auto", True),
]


@pytest.mark.parametrize(("tell", "mode", "due"), [pytest.param(*rest, id=name) for name, *rest in LOADS])
def test_when_load_is_asked(tell: Tell, mode: str, due: bool) -> None:
    """Where it could add to what the last look says, and no more often: it costs the server a request."""
    story = tell(Story())
    assert load_due(story.series, Limits(mode=mode), story.now) is due


def test_nothing_is_due_where_nothing_is_known() -> None:
    """No canary in flight has no deadline, nothing pending has no proof, one that rests is not asked."""
    story = Story().look(IDLE)
    assert canary_deadline(story.series, story.limits) is None
    assert proof_due(story.series, story.limits) is None
    assert canary_due(story.pause(paused=True).series, story.limits) is None
    assert canary_due(Story().look(IDLE).series, Limits(mode="none")) is None
    assert rank_in_doubt(Story().series, LIMITS) is None


LIMITS = Limits()


def test_a_canary_counts_from_the_end_of_a_nap() -> None:
    """Its deadline and the first possible proof do, too."""
    story = Story().look(figures(asleep=True)).at(50).look(figures(asleep=True)).at(55).look(IDLE)
    assert canary_due(story.series, LIMITS) == 80
    story.at(52).ask()
    assert canary_deadline(story.series, LIMITS) == 52 + 120 + 10
    assert proof_due(story.series, LIMITS) == 52 + 120
    early = Story().look(IDLE).at(1).ask().at(40).pause(paused=True).pause(paused=False)
    assert canary_deadline(early.series, LIMITS) == 40 + 120 + 10
    assert proof_due(early.series, LIMITS) == 40 + 120


def test_the_first_rank_by_name_is_in_doubt() -> None:
    """When it has stood still, or has had requests, for longer than late; those that step are not."""
    two = Story().look(ranks((1, 1), (1, 1), (1, 1))).at(31).look(ranks((2, 1), (1, 1), (1, 1)))
    assert rank_in_doubt(two.series, LIMITS) == "1"
    just = Story().look(ranks((1, 1), (1, 1))).at(30).look(ranks((2, 1), (1, 1)))
    assert rank_in_doubt(just.series, LIMITS) is None
    lately = Story().look(ranks((1, 1), (1, 0))).at(20).look(ranks((2, 1), (1, 1))).at(45).look(ranks((3, 1), (1, 1)))
    assert rank_in_doubt(lately.series, LIMITS) is None
