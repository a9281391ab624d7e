"""The books find what does not add up."""

from typing import Any

from tests.chaos import books
from tests.chaos.books import Books, Story, samples


def event(seq: int, name: str, generation: int = 1, **fields: object) -> dict[str, Any]:
    return {"seq": seq, "event": name, "generation": generation, **fields}


def kept(*events: dict[str, Any]) -> Books:
    account = Books(0)
    account._story.take(list(events))
    return account


def test_samples_are_read() -> None:
    """Names lose the prefix, labels stay as written, comments are no samples."""
    text = '# HELP x\nvllm_supervisor_state{state="ready"} 1.0\nvllm_supervisor_starts_total 3.0\n'
    assert samples(text) == {("state", 'state="ready"'): 1.0, ("starts_total", ""): 3.0}


def test_starts_are_compared_with_the_launches_and_the_recorder() -> None:
    """A start too many, and a launch that nobody counted, are told; one that was ended before its first line is not."""
    account = kept(event(1, "spawned", pid=5), event(2, "spawned", 2, pid=6), event(3, "leader_exited", 2))
    assert account._starts({("starts_total", ""): 2.0}, [5, 6]) == []
    assert account._starts({("starts_total", ""): 2.0}, [5]) == [], "6 may have been ended before it said so"
    assert len(account._starts({("starts_total", ""): 3.0}, [5, 6])) == 2
    assert len(account._starts({("starts_total", ""): 2.0}, [5, 6, 7])) == 1


def test_ends_are_compared_with_the_diagnoses() -> None:
    """Each generation that failed is one exit and one diagnosis."""
    account = kept(event(1, "phase_changed", cause="crash", after="reaping"), event(2, "engine_diagnosed"))
    assert account._ends({("engine_exits_total", 'class="unknown"'): 1.0}, 2) == []
    assert len(account._ends({("engine_exits_total", 'class="unknown"'): 2.0}, 2)) == 2


def test_restarts_and_states_and_time() -> None:
    """Status and metrics tell the same restarts, one state holds, and the time in all states is what passed."""
    account = Books(0)
    status = {"restarts": {"total": 1, "by_reason": {"crash": 1}}}
    figures = {("restarts_total", 'reason="crash"'): 2.0, ("starts_total", ""): 1.0}
    assert len(account._restarts(figures, status)) == 2
    assert (
        account._states({("state", 'state="ready"'): 1.0, ("state", 'state="failed"'): 0.0, ("ready", ""): 1.0}) == []
    )
    assert (
        len(account._states({("state", 'state="ready"'): 0.0, ("state", 'state="failed"'): 0.0, ("ready", ""): 1.0}))
        == 2
    )
    account._figures, account._at = {("state_seconds_total", 'state="ready"'): 1.0}, 10.0
    assert account._time({("state_seconds_total", 'state="ready"'): 5.0}, 14.1, 14.1) == []
    assert len(account._time({("state_seconds_total", 'state="ready"'): 9.0}, 14.1, 14.1)) == 1


def test_the_story_has_no_holes_and_nothing_is_ready_after_a_stop() -> None:
    """A missing number, a generation that goes back, ready after a stop, a failure of the daemon's: all are told."""
    events = [event(1, "start_asked", intent="up"), event(3, "x", 2), event(4, "x", 1)]
    assert len(books._chain(events, events)) == 2
    ready = event(3, "phase_changed", after="ready")
    assert len(books._never_ready_after_stop([event(1, "stop_asked"), ready])) == 1
    assert books._never_ready_after_stop([event(1, "stop_asked"), event(2, "start_asked", intent="up"), ready]) == []
    assert len(books._own_failures([event(1, "internal_error")])) == 1


def test_a_gap_is_known() -> None:
    """Where the recorder forgot events between two questions, nothing is concluded from their number."""
    story = Story()
    story.take([event(1, "x")])
    assert not story.gap
    story.take([event(5, "x")])
    assert story.gap
