"""What facts about processes, probes and time do, in every situation. A pair that is not listed changes nothing."""

from tests.domain.rows import row

GRACE = "deadline=+25 signal_due=+3 not draining | SIGTERM"
KILLED = "deadline=+35 signal_due=+1"
SURVIVED = "fail_why=members of the engine survived SIGKILL"
NEXT_LAUNCH = "no cause not was_ready no ready_since no launched_at"

LAUNCH = [
    row("cleared", "clearing", "orders the launch", "spawning | spawn"),
    row("blocked", "clearing", "is no start, and is tried again", "starting>backoff deadline=+3 blocked=1 blocker"),
    row(
        "blocked",
        "spawning",
        "is no start, and is tried again",
        "starting>backoff not spawning deadline=+3 blocked=1 blocker",
    ),
    row("blocked", "stop, spawning", "ends the stop", "stopping>stopped not spawning no deadline no signal_due"),
    row("blocked", "stop, spawn overdue", "ends the stop", "killing>stopped not spawning no deadline no signal_due"),
    row(
        "blocked",
        "restart, spawning",
        "makes way for the next",
        "stopping>starting generation=2 not spawning no deadline no signal_due no cause next_cause=requested",
    ),
    row(
        "blocked",
        "end, spawn overdue",
        "ends the daemon clean",
        "killing>exited not spawning no deadline no signal_due | quit 0",
    ),
    row("blocked", "failed, spawn overdue", "ends the stop", "failed>stopped not spawning no fail_why"),
    row(
        "spawned",
        "spawning",
        "starts the clock of the start",
        "process=4711 not spawning deadline=+900 launched_at=+0",
    ),
    *(
        row("spawned", where, "is too late and ended", "process=4711 not spawning launched_at=+0 | SIGTERM")
        for where in ("stop, spawning", "restart, spawning")
    ),
    *(
        row("spawned", where, "is far too late and killed", "process=4711 not spawning launched_at=+0 | SIGKILL")
        for where in ("stop, spawn overdue", "end, spawn overdue", "failed, spawn overdue")
    ),
]

ADOPTION = [
    row(word, where, "ends what an earlier daemon left", f"stopped>stopping generation=9 {process} {rest}")
    for word, process in (("adopted", "process=99"), ("adopted without its leader", "orphans"))
    for where, rest in (
        ("stopped", "deadline=+25 signal_due=+3 cause=leftover | SIGTERM"),
        ("stopped after a run", "deadline=+25 signal_due=+3 cause=leftover | SIGTERM"),
    )
]

EXITS = [
    row(
        "leader exited",
        "starting",
        "is a crash although the code is 0",
        f"starting>reaping orphans {KILLED} cause=crash | SIGKILL",
    ),
    row(
        "leader exited",
        "ready",
        "is a crash although the code is 0",
        f"ready>reaping orphans {KILLED} cause=crash | SIGKILL",
    ),
    row(
        "leader exited",
        "unhealthy",
        "is a crash, not unhealthy",
        f"unhealthy>reaping orphans {KILLED} cause=crash probe_failures=0 | SIGKILL",
    ),
    *(
        row("leader exited", where, "ends the drain", f"orphans {GRACE}")
        for where in ("stop, draining", "restart, draining", "end, draining")
    ),
    *(
        row("leader exited", where, "leaves the members what is left of the grace", "orphans")
        for where in (
            "stop, terminating",
            "restart, terminating",
            "unhealthy, terminating",
            "end, terminating",
            "leftover",
        )
    ),
    *(
        row("leader exited", where, "leaves the members to be proven gone", "orphans")
        for where in ("stop, killing", "end, killing", "failed, unkillable leader")
    ),
    row(
        "group empty",
        "crashed, reaping",
        "counts a failure",
        "reaping>backoff no process deadline=+2.5 no signal_due next_cause=crash failures=1",
    ),
    row("group empty", "stop, orphans", "ends the stop", "stopping>stopped no process no deadline no signal_due"),
    row(
        "group empty",
        "failed, unkillable",
        "frees the way to the restart",
        "failed>backoff no process deadline=+0 next_cause=crash failures=1 no fail_why",
    ),
]

PROBES = [
    row("served", "starting", "makes it ready", "starting>ready no deadline was_ready ready_since=+0"),
    *(
        row(
            f"probe {outcome}",
            "unhealthy",
            "makes it ready again",
            "unhealthy>ready no deadline ready_since=+0 probe_failures=0",
        )
        for outcome in ("ok", "busy")
    ),
    *(
        row(f"probe {outcome}", where, "is counted and remembered as death", f"probe_failures={count} dead_since=+0")
        for outcome in ("refused", "error")
        for where, count in (("ready", 1), ("unhealthy", 4))
    ),
    row("probe timeout", "ready", "is counted, and is no death", "probe_failures=1"),
    row("probe timeout", "unhealthy", "is counted, and is no death", "probe_failures=4"),
    *(
        row("drained", where, "begins the grace", GRACE)
        for where in ("stop, draining", "restart, draining", "end, draining")
    ),
]

WATCHES = [
    row(
        "condemned",
        where,
        "ends it without drain",
        f"{where}>stopping deadline=+25 signal_due=+3 cause=hang {more}| SIGTERM",
    )
    for where, more in (("starting", ""), ("ready", ""), ("unhealthy", "probe_failures=0 "))
]

DEADLINES = [
    row(
        "deadline",
        "starting",
        "ends a start that takes too long, without drain",
        "starting>stopping deadline=+25 signal_due=+3 cause=startup_stall | SIGTERM",
    ),
    row(
        "deadline",
        "unhealthy",
        "ends it without drain",
        "unhealthy>stopping deadline=+25 signal_due=+3 cause=unhealthy probe_failures=0 | SIGTERM",
    ),
    row(
        "deadline",
        "crashed, reaping",
        "fails rather than launch a second engine",
        f"reaping>failed no deadline no signal_due {SURVIVED}",
    ),
    row("deadline", "backoff", "launches again", f"backoff>starting generation=2 no deadline {NEXT_LAUNCH}"),
    row("deadline", "blocked", "looks again", "backoff>starting generation=2 no deadline"),
    *(
        row("deadline", where, "ends the drain", GRACE)
        for where in ("stop, draining", "restart, draining", "end, draining")
    ),
    *(
        row("deadline", where, "is the end of the grace", f"stopping>killing {KILLED} | SIGKILL")
        for where in (
            "stop, terminating",
            "stop, orphans",
            "restart, terminating",
            "unhealthy, terminating",
            "end, terminating",
            "leftover",
        )
    ),
    *(
        row("deadline", where, "has nobody to kill yet", f"stopping>killing {KILLED}")
        for where in ("stop, spawning", "restart, spawning")
    ),
    row("deadline", "stop, killing", "fails, naming members", f"killing>failed no deadline no signal_due {SURVIVED}"),
    row(
        "deadline",
        "stop, spawn overdue",
        "fails, naming the launch",
        "killing>failed no deadline no signal_due fail_why=the launch neither succeeded nor failed",
    ),
    *(
        row("deadline", where, "owns up to what it leaves", "killing>exited no deadline no signal_due | quit 11")
        for where in ("end, killing", "end, spawn overdue")
    ),
]

SIGNALS = [
    *(
        row("signal due", where, "repeats SIGTERM, which vLLM loses while starting", "signal_due=+3 | SIGTERM")
        for where in (
            "stop, terminating",
            "stop, orphans",
            "restart, terminating",
            "unhealthy, terminating",
            "end, terminating",
            "leftover",
        )
    ),
    *(
        row("signal due", where, "repeats SIGKILL, for members born meanwhile", "signal_due=+1 | SIGKILL")
        for where in ("crashed, reaping", "stop, killing", "end, killing")
    ),
    *(
        row("signal due", where, "has nobody to signal yet", f"signal_due=+{pause}")
        for where, pause in (
            ("stop, spawning", 3),
            ("restart, spawning", 3),
            ("stop, spawn overdue", 1),
            ("end, spawn overdue", 1),
        )
    ),
]

FACTS = [*LAUNCH, *ADOPTION, *EXITS, *PROBES, *WATCHES, *DEADLINES, *SIGNALS]
