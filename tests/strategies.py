"""Hypothesis strategies for what the machine is made of."""

from hypothesis import strategies as st

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
    ProcessEvent,
    RestartAsked,
    Served,
    ShutdownAsked,
    Spawned,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import (
    Blocker,
    BlockerKind,
    Cause,
    ExitStatus,
    Intent,
    Outcome,
    Phase,
    Policy,
    Process,
    State,
)

times = st.floats(0.0, 1e6)
units = st.floats(0.0, 1.0, exclude_max=True)
generations = st.integers(0, 5)
pids = st.integers(2, 2**22)
blockers = st.builds(Blocker, st.sampled_from(BlockerKind), st.just("why"), st.just("remedy"))
statuses = st.one_of(
    st.builds(ExitStatus, code=st.integers(0, 255)),
    st.builds(ExitStatus, signal=st.integers(1, 64)),
    st.just(ExitStatus()),
)

policies = st.builds(
    Policy,
    restart_enabled=st.booleans(),
    min_backoff=st.sampled_from([0.1, 1.0, 5.0]),
    max_backoff=st.sampled_from([5.0, 60.0]),
    healthy_reset=st.sampled_from([0.0, 600.0]),
    never_ready_limit=st.integers(1, 5),
    retry_failed_every=st.sampled_from([0.0, 120.0]),
    exit_when_failed=st.booleans(),
    startup_timeout=st.sampled_from([None, 300.0]),
    failure_threshold=st.integers(1, 4),
    restart_after=st.sampled_from([0.0, 30.0]),
    drain_timeout=st.sampled_from([0.0, 30.0]),
    stop_grace=st.sampled_from([0.0, 5.0, 30.0]),
)
"""Policies as a configuration can give them."""

commands = st.one_of(
    st.just(StartAsked()),
    st.builds(StopAsked, st.booleans()),
    st.builds(RestartAsked, st.sampled_from([Cause.REQUESTED, Cause.CONFIG]), st.booleans()),
    st.just(ShutdownAsked()),
)


def facts(generation: st.SearchStrategy[int]) -> st.SearchStrategy[ProcessEvent]:
    """Return what can be told about a generation, true or not."""
    return st.one_of(
        st.builds(Cleared, generation),
        st.builds(Blocked, generation, blockers),
        st.builds(Spawned, generation, pids),
        st.builds(LeaderExited, generation, statuses),
        st.builds(Condemned, generation, st.sampled_from([Cause.HANG, Cause.STARTUP_STALL]), st.just("evidence")),
        st.builds(Absolved, generation),
        st.builds(GroupEmpty, generation),
        st.builds(Probed, generation, st.sampled_from(Outcome), st.just(0.01)),
        st.builds(Served, generation),
        st.builds(Drained, generation),
    )


events: st.SearchStrategy[Event] = st.one_of(
    commands,
    facts(generations),
    st.builds(RestartAsked, st.sampled_from(Cause), st.booleans()),
    st.builds(Adopted, generations, pids, st.booleans()),
    st.builds(PolicyChanged, policies),
    st.just(DeadlinePassed()),
)

states = st.builds(
    State,
    phase=st.sampled_from(Phase),
    intent=st.sampled_from(Intent),
    generation=generations,
    since=times,
    process=st.none() | st.builds(Process, pids, st.booleans()),
    spawning=st.booleans(),
    deadline=st.none() | times,
    signal_due=st.none() | times,
    draining=st.booleans(),
    cause=st.none() | st.sampled_from(Cause),
    next_cause=st.none() | st.sampled_from(Cause),
    was_ready=st.booleans(),
    ready_since=st.none() | times,
    launched_at=st.none() | times,
    probe_failures=st.integers(0, 5),
    dead_since=st.none() | times,
    failures=st.integers(0, 5),
    never_ready=st.integers(0, 5),
    blocked=st.integers(0, 5),
    blocker=st.none() | blockers,
    fail_why=st.none() | st.just("why"),
)
"""Any state at all, also those that no events lead to."""
