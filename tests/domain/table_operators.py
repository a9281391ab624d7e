"""What operators' words do, in every situation. A pair that is not listed here changes nothing."""

from tests.domain.rows import Row, row

NEXT_GENERATION = (
    "backoff>starting generation=2 no deadline no cause not was_ready no ready_since no launched_at failures=0"
)
KILL_AGAIN = "failed>killing deadline=+35 signal_due=+1 cause={} no fail_why | SIGKILL"
KILL_AGAIN_UP = "failed>killing intent=up deadline=+35 signal_due=+1{} no fail_why | SIGKILL"
SKIP_DRAIN = "deadline=+25 signal_due=+3 not draining | SIGTERM"

START = [
    row("start", "stopped", "begins a generation", "stopped>starting intent=up generation=1"),
    row(
        "start",
        "stopped after a run",
        "begins a generation that owes nothing to the last",
        "stopped>starting intent=up generation=2 no cause not was_ready no ready_since no launched_at",
    ),
    row("start", "backoff", "waits no longer and forgives", NEXT_GENERATION),
    row("start", "blocked", "looks again now", "backoff>starting generation=2 no deadline blocked=0 no blocker"),
    row(
        "start",
        "failed",
        "forgives and begins",
        "failed>starting generation=4 no cause no launched_at failures=0 never_ready=0 no fail_why",
    ),
    row("start", "crashed, reaping", "is no failure any more, still a restart", "cause=stop next_cause=crash"),
    row("start", "unhealthy, terminating", "needs no backoff afterwards", "cause=stop next_cause=unhealthy"),
    *(
        row("start", where, "takes the stop back, which still ends first", "intent=up")
        for where in ("stop, draining", "stop, terminating", "stop, orphans", "stop, killing", "leftover")
    ),
    row("start", "stop, spawning", "takes the stop back", "intent=up"),
    row("start", "stop, spawn overdue", "takes the stop back", "intent=up"),
    row(
        "start",
        "failed, unkillable",
        "kills again, and what ends is no failure any more",
        KILL_AGAIN.format("stop next_cause=crash"),
    ),
    row("start", "failed, unkillable leader", "kills again", KILL_AGAIN_UP.format("")),
    row(
        "start",
        "failed, spawn overdue",
        "launches nothing beside the launch that is out",
        "failed>killing intent=up deadline=+35 signal_due=+1 no fail_why",
    ),
]

_SETTLED_STOP = [
    row(word, where, promise, expected)
    for word in ("stop", "stop --no-drain")
    for where, promise, expected in (
        ("clearing", "launches nothing", "starting>stopped intent=down"),
        (
            "spawning",
            "wins although the launch is out",
            "starting>stopping intent=down deadline=+25 signal_due=+3 cause=stop",
        ),
        (
            "starting",
            "has nothing to drain",
            "starting>stopping intent=down deadline=+25 signal_due=+3 cause=stop | SIGTERM",
        ),
        ("crashed, reaping", "wins over the restart", "intent=down"),
        ("backoff", "cancels the restart", "backoff>stopped intent=down no deadline no next_cause"),
        ("blocked", "gives up on the launch", "backoff>stopped intent=down no deadline blocked=0 no blocker"),
        ("failed", "clears the failure", "failed>stopped intent=down no next_cause no fail_why"),
        ("failed, unkillable", "waits for the members all the same", "intent=down"),
        ("restart, terminating", "wins over the restart", "intent=down"),
        ("restart, spawning", "wins over the restart", "intent=down"),
        ("unhealthy, terminating", "wins over the restart", "intent=down"),
    )
]

STOP = [
    *_SETTLED_STOP,
    row("stop", "ready", "drains first", "ready>stopping intent=down deadline=+20 draining cause=stop"),
    row(
        "stop",
        "unhealthy",
        "drains first",
        "unhealthy>stopping intent=down deadline=+20 draining cause=stop probe_failures=0",
    ),
    row("stop", "restart, draining", "wins over the restart and goes on draining", "intent=down"),
    row(
        "stop --no-drain",
        "ready",
        "terminates at once",
        "ready>stopping intent=down deadline=+25 signal_due=+3 cause=stop | SIGTERM",
    ),
    row(
        "stop --no-drain",
        "unhealthy",
        "terminates at once",
        "unhealthy>stopping intent=down deadline=+25 signal_due=+3 cause=stop probe_failures=0 | SIGTERM",
    ),
    row("stop --no-drain", "stop, draining", "ends the drain", SKIP_DRAIN),
    row("stop --no-drain", "restart, draining", "ends the drain and wins", f"intent=down {SKIP_DRAIN}"),
]


def _restart(word: str, cause: str) -> list[Row]:
    """Return what is the same for every way to ask for a restart."""
    term = f"deadline=+25 signal_due=+3 cause={cause}"
    return [
        row(word, "stopped", "is a start", "stopped>starting intent=up generation=1"),
        row(
            word,
            "stopped after a run",
            "is a start",
            "stopped>starting intent=up generation=2 no cause not was_ready no ready_since no launched_at",
        ),
        row(word, "spawning", "ends what is being launched", f"starting>stopping {term}"),
        row(word, "starting", "ends what is starting", f"starting>stopping {term} | SIGTERM"),
        row(word, "crashed, reaping", "relaunches without backoff", f"cause={cause}"),
        row(word, "unhealthy, terminating", "relaunches without backoff", f"cause={cause}"),
        row(word, "backoff", "waits no longer, and stays the restart that it was", NEXT_GENERATION),
        row(
            word,
            "blocked",
            "looks again now",
            f"backoff>starting generation=2 no deadline next_cause={cause} blocked=0 no blocker",
        ),
        row(
            word,
            "failed",
            "forgives and begins",
            "failed>starting generation=4 no cause no launched_at failures=0 never_ready=0 no fail_why",
        ),
        row(word, "failed, unkillable", "kills again", KILL_AGAIN.format(cause)),
        row(word, "failed, unkillable leader", "kills again", KILL_AGAIN_UP.format(f" cause={cause}")),
        row(
            word,
            "failed, spawn overdue",
            "launches nothing beside the launch that is out",
            f"failed>killing intent=up deadline=+35 signal_due=+1 cause={cause} no fail_why",
        ),
        *(
            row(word, where, "takes the stop back, which still ends first", f"intent=up cause={cause}")
            for where in ("stop, terminating", "stop, orphans", "stop, killing", "leftover")
        ),
        row(word, "stop, spawning", "takes the stop back", f"intent=up cause={cause}"),
        row(word, "stop, spawn overdue", "takes the stop back", f"intent=up cause={cause}"),
    ]


def _draining_restart(word: str, cause: str) -> list[Row]:
    ready = f"deadline=+20 draining cause={cause}"
    return [
        row(word, "ready", "drains first", f"ready>stopping {ready}"),
        row(word, "unhealthy", "drains first", f"unhealthy>stopping {ready} probe_failures=0"),
        row(word, "stop, draining", "takes the stop back and goes on draining", f"intent=up cause={cause}"),
    ]


RESTART = [
    *_restart("restart", "requested"),
    *_draining_restart("restart", "requested"),
    *_restart("restart for a new configuration", "config"),
    *_draining_restart("restart for a new configuration", "config"),
    *(
        row("restart for a new configuration", where, "is what the next launch is for", "cause=config")
        for where in ("restart, draining", "restart, terminating", "restart, spawning")
    ),
    *_restart("restart --no-drain", "requested"),
    row(
        "restart --no-drain",
        "ready",
        "terminates at once",
        "ready>stopping deadline=+25 signal_due=+3 cause=requested | SIGTERM",
    ),
    row(
        "restart --no-drain",
        "unhealthy",
        "terminates at once",
        "unhealthy>stopping deadline=+25 signal_due=+3 cause=requested probe_failures=0 | SIGTERM",
    ),
    row(
        "restart --no-drain",
        "stop, draining",
        "ends the drain and takes the stop back",
        "intent=up deadline=+25 signal_due=+3 not draining cause=requested | SIGTERM",
    ),
    row("restart --no-drain", "restart, draining", "ends the drain", SKIP_DRAIN),
]

SHUTDOWN = [
    row("shutdown", "stopped", "ends the daemon", "stopped>exited intent=exit | quit 0"),
    row("shutdown", "stopped after a run", "ends the daemon", "stopped>exited intent=exit | quit 0"),
    row("shutdown", "clearing", "launches nothing", "starting>exited intent=exit | quit 0"),
    row("shutdown", "backoff", "ends the daemon", "backoff>exited intent=exit no deadline no next_cause | quit 0"),
    row(
        "shutdown", "blocked", "ends the daemon", "backoff>exited intent=exit no deadline blocked=0 no blocker | quit 0"
    ),
    row("shutdown", "failed", "ends the daemon", "failed>exited intent=exit no next_cause no fail_why | quit 0"),
    *(
        row("shutdown", where, "owns up to what it leaves behind", "failed>exited intent=exit no fail_why | quit 11")
        for where in ("failed, unkillable", "failed, unkillable leader", "failed, spawn overdue")
    ),
    row("shutdown", "ready", "drains first", "ready>stopping intent=exit deadline=+20 draining cause=stop"),
    row(
        "shutdown",
        "unhealthy",
        "drains first",
        "unhealthy>stopping intent=exit deadline=+20 draining cause=stop probe_failures=0",
    ),
    row(
        "shutdown",
        "starting",
        "has nothing to drain",
        "starting>stopping intent=exit deadline=+25 signal_due=+3 cause=stop | SIGTERM",
    ),
    row(
        "shutdown",
        "spawning",
        "waits for the launch that is out",
        "starting>stopping intent=exit deadline=+25 signal_due=+3 cause=stop",
    ),
    *(
        row("shutdown", where, "lets the stop go on and then ends the daemon", "intent=exit")
        for where in (
            "crashed, reaping",
            "leftover",
            "restart, draining",
            "restart, spawning",
            "restart, terminating",
            "stop, draining",
            "stop, killing",
            "stop, orphans",
            "stop, spawn overdue",
            "stop, spawning",
            "stop, terminating",
            "unhealthy, terminating",
        )
    ),
    row("shutdown", "end, draining", "skips the drain, being the second", SKIP_DRAIN),
]

REFUSED = [
    row(word, where, "is refused, the daemon is ending", "unchanged | refuse: the daemon is ending")
    for word in ("start", "restart", "restart --no-drain", "restart for a new configuration")
    for where in ("end, draining", "end, terminating", "end, killing", "end, spawn overdue")
]

_GRACE = ("stop, terminating", "stop, orphans", "stop, spawning", "restart, terminating", "restart, spawning",
          "unhealthy, terminating", "end, terminating", "leftover")  # fmt: skip
NEW_POLICY = [
    row("new policy", "starting", "lifts the limit of the start that is under way", "no deadline"),
    row("new policy", "unhealthy", "counts from when it became unhealthy", "deadline=+6.5"),
    row("new policy", "backoff", "does not sit out a pause that would be shorter now", "deadline=+1"),
    row("new policy", "blocked", "does not sit out a pause that would be shorter now", "deadline=+1"),
    row("new policy", "failed", "tries again, counted from the failure", "deadline=+299.5"),
    *(
        row("new policy", where, "drains for as long as it says now", "deadline=+7.5")
        for where in ("stop, draining", "restart, draining", "end, draining")
    ),
    *(row("new policy", where, "moves the end of the grace", "deadline=+8.5") for where in _GRACE),
]

OPERATORS = [*START, *STOP, *RESTART, *SHUTDOWN, *REFUSED, *NEW_POLICY]
