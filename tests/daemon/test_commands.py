"""The command line against a live daemon: what is printed, and the exit statuses that scripts rely on."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.conftest import SIMULATED
from tests.daemon.test_promises import streaming
from tests.rig import COMMAND, Rig

Make = Callable[..., Rig]


def code(rig: Rig, *args: str) -> int:
    done = rig.cli(*args)
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert done.stderr.startswith("vllm-supervisor: ") or args[:2] == ("status", "--check")
        assert done.stderr.count("\n") <= 1, done.stderr
    return done.returncode


def test_a_life_by_commands(pliable: Make) -> None:
    """From no daemon to ready, stopped, failed and gone: each command's exit status on the way."""
    rig = pliable({"restart": {"min_backoff": 0.05, "max_backoff": 0.1, "never_ready_limit": 1}})
    names = ("status", "wait", "start", "stop", "restart", "events", "logs")
    assert {name: code(rig, name) for name in names} == dict.fromkeys(names, 3)
    rig.simulate(load_seconds=4)
    rig.start()
    assert code(rig, "status") == 0
    assert code(rig, "status", "--check") == 1
    timed_out = rig.cli("wait", "--timeout", "0.1")
    assert (timed_out.returncode, "timed out" in timed_out.stderr) == (1, True)
    assert code(rig, "wait") == 0
    assert code(rig, "status", "--check") == 0
    shown = rig.cli("status", "--json")
    assert json.loads(shown.stdout)["state"] == "ready"
    assert "ready" in rig.cli("status").stdout.splitlines()[0]

    assert code(rig, "stop", "--reason", "lunch") == 0
    assert rig.status()["state"] == "stopped"
    assert rig.members() == []
    assert code(rig, "wait", "--for", "stopped", "--timeout", "0") == 0
    rig.simulate()
    assert code(rig, "start") == 0
    assert code(rig, "restart", "--no-drain") == 0
    assert rig.status()["generation"] == 3
    assert code(rig, "restart", "--no-wait") == 0
    assert code(rig, "stop", "--no-wait") == 0
    assert code(rig, "wait", "--for", "stopped") == 0
    events = [json.loads(line) for line in rig.cli("events").stdout.splitlines()]
    asked = [(event["verb"], event["reason"]) for event in events if event["event"] == "control_request"]
    assert asked == [("stop", "lunch"), ("start", None), ("restart", None), ("restart", None), ("stop", None)]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))

    rig.simulate(exit_code=1)
    failed = rig.cli("start")
    assert failed.returncode == 5
    assert "never got ready" in failed.stderr
    assert code(rig, "restart") == 5
    assert code(rig, "wait") == 5
    assert code(rig, "wait", "--for", "failed") == 0
    assert code(rig, "stop") == 0
    # A progress bar redraws with \r, which Python reads as the end of a line and `logs` does not.
    last = rig.cli("logs", "-n", "2").stdout
    assert last.strip()
    assert rig.engine_log().endswith(last)


@contextmanager
def following(rig: Rig, *args: str) -> Iterator[Path]:
    """Run a command that goes on, and yield the file that it writes to."""
    path = rig.folder / f"{args[0]}.out"
    with path.open("wb") as out:
        process = subprocess.Popen([str(COMMAND), *args, "--socket", str(rig.socket)], stdout=out)
    try:
        yield path
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(10)


def test_a_follower_says_when_its_daemon_was_killed(pliable: Make) -> None:
    """`logs -f` and `events -f` end with one line and status 3, not as if there were no more to tell."""
    rig = pliable()
    rig.start()
    rig.wait_state("ready")
    followers = []
    for command in ("logs", "events"):
        argv = [str(COMMAND), command, "-f", "--socket", str(rig.socket)]
        followers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        assert followers[-1].stdout is not None
        assert followers[-1].stdout.read(1), "it follows"
    rig.send(signal.SIGKILL)
    rig.wait_exit()
    for follower in followers:
        _, complaint = follower.communicate(timeout=60)
        assert follower.returncode == 3
        assert complaint.startswith(b"vllm-supervisor: the daemon closed the connection")
        assert complaint.count(b"\n") == 1
    rig.start()  # the next daemon ends the engine that was left
    assert rig.stop() == 0


def test_logs_and_events_are_followed_over_a_restart(pliable: Make) -> None:
    """`logs -f` and `events -f` go on with what the next engine writes and what happens to it."""
    rig = pliable()
    rig.start()
    rig.wait_state("ready")
    with following(rig, "logs", "-f", "-n", "1") as logs, following(rig, "events", "-f") as events:
        rig.until(lambda: '"after": "ready"' in events.read_text(), what="past events")
        rig.until(logs.read_text, what="the last line of the log")
        assert "Application startup complete" not in logs.read_text()
        rig.post("restart", reason="watched")
        rig.wait_state("ready", after=1)
        rig.until(lambda: "Application startup complete" in logs.read_text(), what="the new engine's lines")
        rig.until(lambda: events.read_text().count('"after": "ready"') == 2, what="the new events")
        assert "watched" in events.read_text()
        # The daemon's end ends both, with all that was to tell.
        assert rig.stop() == 0
        rig.until(lambda: '"intent": "exit"' in events.read_text(), what="the daemon's end")
    assert all(json.loads(line) for line in events.read_text().splitlines())


def test_stop_commands_during_a_drain(pliable: Make) -> None:
    """`start` while somebody stops, and `stop --no-drain` during a drain, end as each of them should."""
    rig = pliable({"stop": {"drain_timeout": 100, "grace": 10}})
    rig.simulate(tokens_per_second=5)
    rig.start()
    rig.wait_state("ready")
    with streaming(rig, SIMULATED):
        assert code(rig, "stop", "--timeout", "0.2") == 1
        assert rig.status()["phase"]["name"] == "draining"
        assert code(rig, "stop", "--no-drain") == 0
    assert code(rig, "start") == 0
    with streaming(rig, SIMULATED):
        rig.send(signal.SIGTERM)
        rig.until(lambda: rig.status()["intent"] == "exit", what="the end")
        assert code(rig, "restart") == 1
        waiting = subprocess.Popen(
            [str(COMMAND), "wait", "--socket", str(rig.socket)], stderr=subprocess.PIPE, env=os.environ
        )
        rig.send(signal.SIGTERM)
        assert rig.wait_exit() == 0
        _, complaint = waiting.communicate(timeout=20)
    assert waiting.returncode == 3
    assert b"no daemon" in complaint
