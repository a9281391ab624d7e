"""Every situation that the machine can be in, each reached by events alone, never made up.

All begin at second 1000. The policy's numbers differ from each other, so that no two can be mixed up.
"""

from collections.abc import Callable

from vllm_supervisor.domain.machine import step
from vllm_supervisor.domain.messages import (
    Absolved,
    Adopted,
    Blocked,
    Cleared,
    Condemned,
    DeadlinePassed,
    Drained,
    Event,
    GroupEmpty,
    LeaderExited,
    PolicyChanged,
    Probed,
    RestartAsked,
    Served,
    ShutdownAsked,
    Spawned,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import Blocker, BlockerKind, Cause, ExitStatus, Outcome, Policy, State

NOW = 1000.0
PID = 4711
POLICY = Policy(
    min_backoff=2.0,
    max_backoff=64.0,
    healthy_reset=600.0,
    never_ready_limit=3,
    startup_timeout=900.0,
    probe_interval=5.0,
    failure_threshold=3,
    restart_after=40.0,
    drain_timeout=20.0,
    stop_grace=25.0,
    self_exit_grace=10.0,
    term_interval=3.0,
    kill_interval=1.0,
    kill_timeout=35.0,
)
SHORTER = Policy(
    min_backoff=0.5,
    max_backoff=1.5,
    healthy_reset=60.0,
    never_ready_limit=9,
    retry_failed_every=300.0,
    startup_timeout=None,
    failure_threshold=2,
    restart_after=7.0,
    drain_timeout=8.0,
    stop_grace=9.0,
)
"""What a reload puts in its place."""
BLOCKER = Blocker(BlockerKind.PORT, "port 8000 is held by pid 12 (python)", "stop it")
EXIT_0 = ExitStatus(code=0)

Word = Callable[[State], Event]
"""An event about whatever generation is current."""


def cleared(state: State) -> Event:
    return Cleared(state.generation)


def blocked(state: State) -> Event:
    return Blocked(state.generation, BLOCKER)


def spawned(state: State) -> Event:
    return Spawned(state.generation, PID)


def leader_exited(state: State) -> Event:
    return LeaderExited(state.generation, EXIT_0)


def group_empty(state: State) -> Event:
    return GroupEmpty(state.generation)


def served(state: State) -> Event:
    return Served(state.generation)


def drained(state: State) -> Event:
    return Drained(state.generation)


def probed(outcome: Outcome) -> Word:
    return lambda state: Probed(state.generation, outcome, 0.01, "")


def condemned(state: State) -> Event:
    return Condemned(state.generation, Cause.HANG, "no step for 120 s")


def absolved(state: State) -> Event:
    return Absolved(state.generation)


def deadline(_: State) -> Event:
    return DeadlinePassed()


def go(state: State, *words: Word | Event, policy: Policy = POLICY, now: float = NOW, u: float = 0.5) -> State:
    """Step through `words` at one moment; a deadline is taken at the time that it names."""
    for word in words:
        event = word(state) if callable(word) else word
        at = state.deadline if isinstance(event, DeadlinePassed) and state.deadline is not None else now
        state, _ = step(state, event, at, policy, u)
    return state


WORDS: dict[str, Word | Event] = {
    "start": StartAsked(),
    "stop": StopAsked(),
    "stop --no-drain": StopAsked(drain=False),
    "restart": RestartAsked(),
    "restart --no-drain": RestartAsked(drain=False),
    "restart for a new configuration": RestartAsked(Cause.CONFIG),
    "shutdown": ShutdownAsked(),
    "new policy": PolicyChanged(SHORTER),
    "adopted": Adopted(9, 99, leader_alive=True),
    "adopted without its leader": Adopted(9, 99, leader_alive=False),
    "cleared": cleared,
    "blocked": blocked,
    "spawned": spawned,
    "leader exited": leader_exited,
    "group empty": group_empty,
    "served": served,
    "drained": drained,
    "condemned": condemned,
    "absolved": absolved,
    **{f"probe {outcome}": probed(outcome) for outcome in Outcome},
    "deadline": deadline,
    "signal due": deadline,
}
"""Everything that the machine can hear, by name."""

TIMED_OUT = (probed(Outcome.TIMEOUT),) * 3

_PATHS: dict[str, tuple[str | None, tuple[Word | Event, ...]]] = {
    "stopped": (None, ()),
    "clearing": ("stopped", (StartAsked(),)),
    "spawning": ("clearing", (cleared,)),
    "starting": ("spawning", (spawned,)),
    "ready": ("starting", (served,)),
    "unhealthy": ("ready", TIMED_OUT),
    "crashed, reaping": ("ready", (leader_exited,)),
    "backoff": ("crashed, reaping", (group_empty,)),
    "blocked": ("clearing", (blocked,)),
    "stop, draining": ("ready", (StopAsked(),)),
    "stop, terminating": ("ready", (StopAsked(drain=False),)),
    "stop, orphans": ("stop, terminating", (leader_exited,)),
    "stop, killing": ("stop, terminating", (deadline,)),
    "stop, spawning": ("spawning", (StopAsked(),)),
    "stop, spawn overdue": ("stop, spawning", (deadline,)),
    "stopped after a run": ("stop, orphans", (group_empty,)),
    "restart, draining": ("ready", (RestartAsked(),)),
    "restart, terminating": ("ready", (RestartAsked(drain=False),)),
    "restart, spawning": ("spawning", (RestartAsked(),)),
    "unhealthy, terminating": ("unhealthy", (deadline,)),
    "end, draining": ("ready", (ShutdownAsked(),)),
    "end, terminating": ("starting", (ShutdownAsked(),)),
    "end, killing": ("end, terminating", (deadline,)),
    "end, spawn overdue": ("spawning", (ShutdownAsked(), deadline)),
    "failed, unkillable": ("crashed, reaping", (deadline,)),
    "failed, unkillable leader": ("stop, killing", (deadline,)),
    "failed, spawn overdue": ("stop, spawn overdue", (deadline,)),
    "failed": (
        "starting",
        (leader_exited, group_empty, *((deadline, cleared, spawned, leader_exited, group_empty) * 2)),
    ),
    "leftover": ("stopped", (Adopted(7, PID, leader_alive=True),)),
    "exited": ("stopped", (ShutdownAsked(),)),
}

SITUATIONS = tuple(_PATHS)


def situation(name: str, policy: Policy = POLICY) -> State:
    """Return the state called `name`, reached under `policy`."""
    base, words = _PATHS[name]
    start = State(since=NOW) if base is None else situation(base, policy)
    return go(start, *words, policy=policy)


def moment(state: State, word: str) -> float:
    """Return when `word` is heard: timers when they are due, the rest half a second into the phase."""
    due = {"deadline": state.deadline, "signal due": state.signal_due}.get(word)
    return state.since + 0.5 if due is None else due


def hear(state: State, word: str) -> Event:
    """Return the event called `word`, about the current generation."""
    event = WORDS[word]
    return event(state) if callable(event) else event
