"""The machine: `step(state, event, now, policy, u) -> (state, effects)`, and `needs(state)`.

Everything that decides about the engine's life is here and in `policy`; nothing here can wait or fail. The caller feeds
one event at a time, carries out the effects in order, and keeps running whatever `needs` says must be running; a task
or timer that a state does not need cannot exist, so none can be forgotten.

A generation is one attempt to launch. Facts about another generation than the current one are dropped first.
"""

from dataclasses import replace
from typing import assert_never

from vllm_supervisor.domain.health import become_ready, probed
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
    Judged,
    LeaderExited,
    PolicyChanged,
    Probed,
    ProcessEvent,
    Refuse,
    RestartAsked,
    Served,
    ShutdownAsked,
    Spawn,
    Spawned,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import (
    FAULTS,
    Cause,
    Intent,
    Needs,
    Phase,
    Policy,
    Process,
    Sig,
    State,
)
from vllm_supervisor.domain.policy import backoff_delay, retimed
from vllm_supervisor.domain.transitions import (
    LEFT_RUNNING,
    SERVING,
    Result,
    enter,
    fail,
    kill,
    leave,
    settle,
    signal_members,
    start,
    stop,
    terminate,
)


def step(state: State, event: Event, now: float, policy: Policy, u: float) -> Result:
    """Return the state after `event` and what is to be done about it. `u` in [0, 1) decides the jitter."""
    if state.phase is Phase.EXITED:
        return state, ()
    if isinstance(event, ProcessEvent):
        if event.generation != state.generation:
            return state, ()
        return _process_event(state, event, now, policy, u)
    match event:
        case StartAsked():
            return _start_asked(state, now, policy)
        case StopAsked():
            return _stop_asked(state, event, now, policy)
        case RestartAsked():
            return _restart_asked(state, event, now, policy)
        case ShutdownAsked():
            return _shutdown_asked(state, now, policy)
        case PolicyChanged():
            return retimed(state, policy, event.policy), ()
        case Adopted():
            return _adopted(state, event, now, policy)
        case DeadlinePassed():
            return _deadline_passed(state, now, policy)
        case _:
            assert_never(event)


def needs(state: State, policy: Policy) -> Needs:
    """Return what must be going on in `state`."""
    serving = state.phase in SERVING and state.leader_alive
    times = [at for at in (state.deadline, state.signal_due) if at is not None]
    interval = policy.probe_interval
    if state.dead_since is not None:
        interval = min(interval, policy.dead_probe_interval)
    return Needs(
        wake_at=min(times, default=None),
        clearing=state.phase is Phase.STARTING and state.process is None and not state.spawning,
        starting_probe=state.phase is Phase.STARTING and state.leader_alive,
        serving_probe=serving,
        start_watch=state.phase is Phase.STARTING and state.leader_alive,
        liveness_watch=serving,
        probe_interval=interval if serving else policy.startup_probe_interval,
        draining=state.draining,
        proving=state.process is not None and not state.process.leader_alive,
    )


# --- operators


def _forgive(state: State) -> State:
    """Reset, at an operator's word, the counts that lead to `failed`."""
    return replace(state, failures=0, never_ready=0, blocked=0, blocker=None)


def _pardon(state: State) -> State:
    """Forgive, the end under way included: the next launch follows at once, though it is still a restart."""
    state = _forgive(state)
    return replace(state, cause=Cause.STOP, next_cause=state.cause) if state.cause in FAULTS else state


def _start_asked(state: State, now: float, policy: Policy) -> Result:
    if state.intent is Intent.EXIT:
        return state, (Refuse("the daemon is ending"),)
    state = replace(state, intent=Intent.UP)
    match state.phase:
        case Phase.STARTING | Phase.READY | Phase.UNHEALTHY:
            return state, ()
        case Phase.STOPPING | Phase.KILLING | Phase.REAPING:
            return _pardon(state), ()
        case _ if state.occupied:
            return kill(_pardon(state), now, policy)
        case _:
            return start(_forgive(state), now)


def _stop_asked(state: State, event: StopAsked, now: float, policy: Policy) -> Result:
    if state.intent is Intent.EXIT:
        return state, ()
    return _bring_down(replace(state, intent=Intent.DOWN), now, policy, drain=event.drain)


def _shutdown_asked(state: State, now: float, policy: Policy) -> Result:
    again = state.intent is Intent.EXIT
    state = replace(state, intent=Intent.EXIT)
    if state.phase is Phase.FAILED and state.occupied:
        return leave(state, now, 11)
    return _bring_down(state, now, policy, drain=not again)


def _bring_down(state: State, now: float, policy: Policy, *, drain: bool) -> Result:
    """Follow an intent of DOWN or EXIT, from any phase."""
    state = replace(state, next_cause=None)
    match state.phase:
        case Phase.READY | Phase.UNHEALTHY:
            return stop(state, now, policy, Cause.STOP, drain=drain)
        case Phase.STARTING if state.occupied:
            return stop(state, now, policy, Cause.STOP, drain=False)
        case Phase.STOPPING if state.draining and not drain:
            return terminate(state, now, policy)
        case Phase.STOPPING | Phase.KILLING | Phase.REAPING:
            return state, ()
        case Phase.FAILED if state.occupied:
            return state, ()
        case Phase.STOPPED if state.intent is Intent.DOWN:
            return state, ()
        case _:
            state = replace(state, blocked=0, blocker=None)
            return leave(state, now, 0) if state.intent is Intent.EXIT else enter(state, Phase.STOPPED, now)


def _restart_asked(state: State, event: RestartAsked, now: float, policy: Policy) -> Result:
    if state.intent is Intent.EXIT:
        return state, (Refuse("the daemon is ending"),)
    state = replace(_forgive(state), intent=Intent.UP)
    match state.phase:
        case Phase.READY | Phase.UNHEALTHY:
            return stop(state, now, policy, event.cause, drain=event.drain)
        case Phase.STARTING if state.occupied:
            return stop(state, now, policy, event.cause, drain=False)
        case Phase.STARTING:
            return state, ()
        case Phase.STOPPING if state.draining and not event.drain:
            return terminate(replace(state, cause=event.cause), now, policy)
        case Phase.STOPPING | Phase.KILLING | Phase.REAPING:
            return replace(state, cause=event.cause), ()
        case Phase.STOPPED:
            return start(state, now)
        case _ if state.occupied:
            return kill(replace(state, cause=event.cause), now, policy)
        case _:
            return start(replace(state, next_cause=state.next_cause or event.cause), now)


def _adopted(state: State, event: Adopted, now: float, policy: Policy) -> Result:
    """Take over what an earlier daemon left, in order to end it. Only a machine without an engine can."""
    if state.occupied or state.phase is not Phase.STOPPED:
        return state, ()
    process = Process(event.pid, event.leader_alive)
    forgotten = replace(state, verdict=None, ended_at=None)
    adopted = replace(forgotten, generation=event.generation, process=process, cause=Cause.LEFTOVER)
    return terminate(adopted, now, policy)


# --- time


def _deadline_passed(state: State, now: float, policy: Policy) -> Result:
    if state.deadline is not None and now >= state.deadline:
        return _deadline_met(state, now, policy)
    if state.signal_due is not None and now >= state.signal_due:
        killing = state.phase is not Phase.STOPPING
        pause = policy.kill_interval if killing else policy.term_interval
        return replace(state, signal_due=now + pause), signal_members(state, Sig.KILL if killing else Sig.TERM)
    return state, ()


def _deadline_met(state: State, now: float, policy: Policy) -> Result:
    match state.phase:
        case Phase.STARTING:
            return stop(state, now, policy, Cause.STARTUP_STALL, drain=False)
        case Phase.READY:
            return replace(state, failures=0, deadline=None), ()
        case Phase.UNHEALTHY:
            return stop(state, now, policy, Cause.HANG if state.stuck else Cause.UNHEALTHY, drain=False)
        case Phase.STOPPING if state.draining:
            return terminate(state, now, policy)
        case Phase.STOPPING:
            return kill(state, now, policy)
        case Phase.KILLING | Phase.REAPING:
            if state.intent is Intent.EXIT:
                return leave(state, now, 11)
            survived = state.process is not None
            why = "members of the engine survived SIGKILL" if survived else "the launch neither succeeded nor failed"
            return fail(state, now, policy, why)
        case Phase.BACKOFF:
            return start(state, now)
        case Phase.FAILED:
            return start(_forgive(state), now)
        case Phase.STOPPED | Phase.EXITED:
            return replace(state, deadline=None), ()
        case _:
            assert_never(state.phase)


# --- facts about the current generation


def _process_event(state: State, event: ProcessEvent, now: float, policy: Policy, u: float) -> Result:
    match event:
        case Cleared():
            if not needs(state, policy).clearing:
                return state, ()
            return replace(state, spawning=True), (Spawn(state.generation),)
        case Blocked():
            return _blocked(state, event, now, policy, u)
        case Spawned():
            return _spawned(state, event, now, policy)
        case LeaderExited() | Judged() | Condemned() | Absolved() | GroupEmpty():
            return _end_event(state, event, now, policy, u)
        case Probed():
            return probed(state, event, now, policy)
        case Served():
            return _served(state, now, policy)
        case Drained():
            return terminate(state, now, policy) if state.draining else (state, ())
        case _:
            assert_never(event)


def _end_event(
    state: State, event: LeaderExited | Judged | Condemned | Absolved | GroupEmpty, now: float, policy: Policy, u: float
) -> Result:
    """Take in what is about the end of the engine."""
    match event:
        case LeaderExited():
            return _leader_exited(state, now, policy)
        case Judged():
            return (replace(state, verdict=event.verdict) if state.process is not None else state), ()
        case Condemned():
            return _condemned(state, event, now, policy)
        case Absolved():
            return replace(state, stuck=False), ()
        case GroupEmpty():
            if state.process is None or state.process.leader_alive:
                return state, ()
            return settle(state, now, policy, u)
        case _:
            assert_never(event)


def _condemned(state: State, event: Condemned, now: float, policy: Policy) -> Result:
    """End an engine that is stuck. One that served stays where nothing would follow: its operator wants to see it."""
    watched = needs(state, policy)
    if not (watched.start_watch or watched.liveness_watch):
        return state, ()
    if policy.restart_enabled or state.phase is Phase.STARTING:
        return stop(state, now, policy, event.cause, drain=False)
    state = replace(state, stuck=True)
    if state.phase is Phase.UNHEALTHY:
        return state, ()
    return enter(state, Phase.UNHEALTHY, now, f"{event.detail}; {LEFT_RUNNING}")


def _blocked(state: State, event: Blocked, now: float, policy: Policy, u: float) -> Result:
    """No start: it counts for nothing but the pause before the next attempt."""
    if state.phase is Phase.STARTING and state.process is None:
        after, effects = enter(replace(state, spawning=False), Phase.BACKOFF, now, event.blocker.why)
        after = replace(after, blocked=state.blocked + 1, blocker=event.blocker)
        return replace(after, deadline=now + backoff_delay(after.blocked, policy, u)), effects
    if state.spawning:
        return settle(replace(state, blocked=0, blocker=None), now, policy, u)
    return state, ()


def _spawned(state: State, event: Spawned, now: float, policy: Policy) -> Result:
    if not state.spawning:
        return state, ()
    state = replace(
        state,
        spawning=False,
        process=Process(event.pid),
        launched_at=now,
        next_cause=None,
        blocked=0,
        blocker=None,
    )
    if state.phase is Phase.STARTING:
        timeout = policy.startup_timeout
        return replace(state, deadline=None if timeout is None else now + timeout), ()
    # A stop was asked for between the order and its execution.
    return state, signal_members(state, Sig.TERM if state.phase is Phase.STOPPING else Sig.KILL)


def _leader_exited(state: State, now: float, policy: Policy) -> Result:
    if state.process is None or not state.process.leader_alive:
        return state, ()
    state = replace(state, process=replace(state.process, leader_alive=False), ended_at=now)
    match state.phase:
        case Phase.STARTING | Phase.READY | Phase.UNHEALTHY:
            # Nobody asked for it: a failure whatever its code (vLLM exits 0 when its engine dies).
            return kill(replace(state, cause=Cause.CRASH), now, policy, Phase.REAPING)
        case Phase.STOPPING if state.draining:
            return terminate(state, now, policy)
        case _:
            return state, ()


def _served(state: State, now: float, policy: Policy) -> Result:
    if not needs(state, policy).starting_probe or state.intent is not Intent.UP:
        return state, ()
    return become_ready(state, now, policy)
