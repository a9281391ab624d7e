"""How an end is understood: what was ours, what was its own, and what the operator is told."""

from dataclasses import replace

import pytest

from tests.domain.situations import POLICY, Word, cleared, deadline, go, group_empty, probed, served, situation, spawned
from vllm_supervisor.domain.diagnosis import Context, Diagnosis, Observed, Retry
from vllm_supervisor.domain.ending import (
    Ending,
    ailment,
    cache_moved,
    context,
    heard,
    judge,
    why_retried,
    with_what_was_seen,
    without_us,
)
from vllm_supervisor.domain.machine import step
from vllm_supervisor.domain.messages import (
    Adopted,
    Condemned,
    DeadlinePassed,
    Event,
    LeaderExited,
    Probed,
    RestartAsked,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import Cause, ExitStatus, Outcome, State, Verdict

READY = (cleared, spawned, served)
DEAD = (probed(Outcome.ERROR),) * 3
SILENT = (probed(Outcome.TIMEOUT),) * 3


def exits(code: int | None = None, signal: int | None = None) -> Word:
    return lambda state: LeaderExited(state.generation, ExitStatus(code, signal))


def condemned(cause: Cause) -> Word:
    return lambda state: Condemned(state.generation, cause, "the evidence")


def lived(*words: Word | Event, begin: str = "clearing") -> Ending:
    """Return what is known after the machine heard `words`."""
    state = situation(begin)
    ending = Ending(state.generation)
    for word in words:
        event = word(state) if callable(word) else word
        now = state.deadline if isinstance(event, DeadlinePassed) and state.deadline is not None else 1000.0
        after, _ = step(state, event, now, POLICY, 0.5)
        ending = heard(ending, state, event, after)
        state = after
    return ending


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((*READY, exits(0)), Context(exit_code=0, was_ready=True), id="exit 0, unasked"),
        pytest.param((cleared, spawned, exits(2)), Context(exit_code=2, was_ready=False), id="exit 2 while starting"),
        pytest.param((*READY, exits(None, 9)), Context(signal=9, was_ready=True), id="killed by somebody else"),
        pytest.param(
            (*READY, exits(1), deadline), Context(exit_code=1, was_ready=True), id="the rest is killed by us afterwards"
        ),
        pytest.param(
            (*READY, condemned(Cause.HANG), exits(0)), Context(was_ready=True, observed=Observed.HANG), id="a hang"
        ),
        pytest.param(
            (*READY, condemned(Cause.HANG), deadline, exits(None, 9)),
            Context(was_ready=True, observed=Observed.HANG, killed_by_us=True),
            id="a hang that had to be killed",
        ),
        pytest.param(
            (cleared, spawned, condemned(Cause.STARTUP_STALL), exits(0)),
            Context(was_ready=False, observed=Observed.STARTUP_HANG),
            id="a start without progress",
        ),
        pytest.param(
            (cleared, spawned, deadline, exits(0)),
            Context(was_ready=False, observed=Observed.STARTUP_TIMEOUT),
            id="a start that took too long",
        ),
        pytest.param(
            (*READY, *SILENT, deadline, deadline, exits(None, 9)),
            Context(was_ready=True, killed_by_us=True),
            id="unhealthy, silent, killed: the deaths in its log are our doing",
        ),
        pytest.param(
            (*READY, *DEAD, deadline, deadline, exits(None, 9)),
            Context(was_ready=True),
            id="unhealthy, dead, killed: its log tells of its own death",
        ),
    ],
)
def test_what_the_diagnosis_is_told(words: tuple[Word | Event, ...], expected: Context) -> None:
    """A status counts only where the engine ended by itself, and our own kill is named as ours."""
    ending = lived(*words)
    assert ending.unasked
    assert context(ending) == expected


def test_what_lies_beside() -> None:
    """The OOM counter and Xids are handed on."""
    seen = context(lived(*READY, exits(None, 9)), 1, (79,))
    assert (seen.oom_kills, seen.xids) == (1, (79,))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((*READY, StopAsked(drain=False), exits(0)), id="a stop"),
        pytest.param((*READY, StopAsked(), exits(1)), id="an exit during the drain"),
        pytest.param((*READY, RestartAsked(drain=False), deadline, exits(None, 9)), id="a restart that needed SIGKILL"),
    ],
)
def test_what_was_asked_for_is_no_failure(words: tuple[Word | Event, ...]) -> None:
    """Whatever the status, and however it was reached."""
    assert not lived(*words).unasked


def test_a_leftover_is_no_failure() -> None:
    """An engine of an earlier daemon was not ours to keep."""
    assert not lived(Adopted(9, 99, leader_alive=True), exits(1), begin="stopped").unasked


def test_an_end_that_no_daemon_saw_is_examined() -> None:
    """The leader was gone when it was found: how is not known, and nothing in its log is our doing."""
    ending = lived(Adopted(9, 99, leader_alive=False), begin="stopped")
    assert ending.unasked
    assert ending.detail
    assert context(ending) == Context()
    found = Diagnosis("killed_by_probe", Retry.TRANSIENT, "s", None, None, "a")
    assert without_us(found, ending) == found


def test_an_operator_who_cannot_wait() -> None:
    """A start while the dead engine is cleared away does not make its end one that was asked for."""
    assert lived(*READY, exits(1), StartAsked()).cause is Cause.CRASH


def test_every_generation_begins_anew() -> None:
    """Nothing of the engine before is held against the next."""
    ending = lived(*READY, condemned(Cause.HANG), deadline, exits(None, 9), group_empty, deadline)
    assert ending == Ending(2)


def test_the_line_for_the_operator() -> None:
    """Cause, class, evidence and remedy in one line; a long evidence is cut."""
    diagnosis = Diagnosis("bad_cli_argument", Retry.PERMANENT, "what happened", "word " * 100, 7, "what to do")
    verdict = judge(diagnosis, proven=True)
    shown = " ".join(["word"] * 40)
    assert verdict == Verdict(Retry.PERMANENT, f"what happened (bad_cli_argument): {shown} …; what to do", proven=True)


def test_no_cause_is_known() -> None:
    """Where to look is said, whatever there is to look at."""
    assert judge(None, proven=False).retry is None
    why = judge(None, proven=False, log_file="/x/vllm.log", bundle="/y/crashes/1").why
    assert "read the end of /x/vllm.log and the evidence in /y/crashes/1;" in why
    assert "read vLLM's log in the journal;" in judge(None, proven=False, log_file="journal").why


def test_a_cause_that_stays_and_is_tried_again() -> None:
    """Only that needs a reason."""
    assert why_retried(Verdict(Retry.PERMANENT, proven=False)) is None
    assert why_retried(Verdict(Retry.TRANSIENT, proven=True)) is None
    assert why_retried(Verdict(None, proven=True)) is None
    assert "has been ready on this host" in (why_retried(Verdict(Retry.PERMANENT, proven=True)) or "")


def test_the_remedy_once_the_cache_was_moved() -> None:
    """Nobody is told to do what was done; without anything moved, the class's own remedy stands."""
    found = Diagnosis("torch_compile_failure", Retry.TRANSIENT_ONCE, "s", None, None, "move it")
    assert cache_moved(found, (), before=False) == found
    first = cache_moved(found, ("/c.aside/a",), before=False).action
    assert "moved aside to /c.aside/a, and the next start compiles anew" in first
    assert "moved aside before, and compiling anew failed too" in cache_moved(found, (), before=True).action


def test_a_state_that_the_machine_never_saw() -> None:
    """The first thing heard of another generation replaces what was known."""
    state = go(situation("ready"), exits(1))
    assert heard(Ending(99, Cause.HANG), State(), StartAsked(), state).generation == state.generation


def test_our_own_signals_are_nobody_elses() -> None:
    """Lines about SIGTERM in the log of an engine that we were ending accuse nobody; of a crash they may."""
    found = Diagnosis("startup_hang", Retry.TRANSIENT, "s", None, None, "a", ("killed_by_probe", "worker_died"))
    stalled = Ending(1, Cause.STARTUP_STALL)
    shown = without_us(found, stalled)
    assert shown is not None
    assert shown.secondary == ("worker_died",)
    assert without_us(replace(found, cls="killed_by_probe"), stalled) is None
    assert without_us(found, Ending(1, Cause.CRASH)) == found
    assert without_us(None, stalled) is None


def test_what_was_seen_is_the_evidence_where_the_log_has_none() -> None:
    """A hang or a stall is told with its own figures; what the log shows stays."""
    hang = lived(*READY, condemned(Cause.HANG), exits(0))
    of_the_log = Diagnosis("hang_health_ok", Retry.TRANSIENT, "it hangs", "a line", 7, "restart")
    assert with_what_was_seen(of_the_log, hang, several=False) == of_the_log
    told = with_what_was_seen(replace(of_the_log, line=None), hang, several=False)
    assert told is not None
    assert (told.evidence, told.action) == ("the evidence", "restart")


@pytest.mark.parametrize("several", [True, False])
def test_a_stall_on_one_gpu_is_no_matter_of_collectives(several: bool) -> None:
    """Advice about NCCL is for those who have workers."""
    stall = lived(cleared, spawned, condemned(Cause.STARTUP_STALL), exits(0))
    nccl = Diagnosis("startup_hang", Retry.TRANSIENT, "it stands still", "nothing moves", None, "NCCL_P2P_DISABLE=1")
    told = with_what_was_seen(nccl, stall, several=several)
    assert told is not None
    assert told.evidence == "the evidence"
    assert ("NCCL" in told.action) is several


def test_probes_that_failed_are_told_at_the_end() -> None:
    """What the last one saw, and a start that ran out of its time how long it took."""
    assert lived(*READY, *DEAD, deadline, exits(0)).detail.startswith("3 health probes in a row failed")
    assert " s after the launch" in lived(cleared, spawned, deadline, exits(0)).detail


@pytest.mark.parametrize(
    ("outcome", "begin", "seen"),
    [
        (Outcome.ERROR, "ready", True),
        (Outcome.REFUSED, "ready", True),
        (Outcome.TIMEOUT, "ready", True),
        (Outcome.OK, "ready", False),
        (Outcome.BUSY, "ready", False),
        (Outcome.UNKNOWN, "ready", False),
        (Outcome.ERROR, "clearing", False),
    ],
)
def test_what_a_probe_saw(outcome: Outcome, begin: str, seen: bool) -> None:
    """Only of an engine that serves, and only where it failed; another generation's is another's."""
    state = situation(begin)
    event = Probed(state.generation, outcome, 0.1, "what it saw")
    assert ailment(state, event) == ("what it saw" if seen else None)
    assert ailment(state, replace(event, generation=state.generation - 1)) is None
    assert ailment(state, StopAsked()) is None


def test_a_start_that_took_too_long_is_told_with_its_seconds() -> None:
    """Counted from the launch, not from the order."""
    state = replace(situation("starting"), launched_at=100.0, deadline=160.0)
    after, _ = step(state, DeadlinePassed(), 160.0, POLICY, 0.5)
    assert heard(Ending(state.generation), state, DeadlinePassed(), after).detail == "not ready 60 s after the launch"


@pytest.mark.parametrize(
    ("log_file", "bundle", "unread", "begins"),
    [
        ("", None, None, "the log shows no cause that is known; read the log; `vllm-supervisor explain`"),
        ("journal", None, None, "the log shows no cause that is known; read vLLM's log in the journal; `vllm-"),
        ("/l", "/b", None, "the log shows no cause that is known; read the end of /l and the evidence in /b; `vllm-"),
        ("/l", None, "it is gone", "no known cause, for it is gone; read the end of /l; `vllm-supervisor explain`"),
    ],
)
def test_where_to_look_is_told(log_file: str, bundle: str | None, unread: str | None, begins: str) -> None:
    """The log wherever it is, and the bundle where there is one."""
    assert judge(None, proven=False, log_file=log_file, bundle=bundle, unread=unread).why.startswith(begins)
