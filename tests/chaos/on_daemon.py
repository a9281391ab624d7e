"""Faults of the daemon itself: signals, deaths, a second one, a configuration that is garbage."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random

from tests.chaos.fault import Faults, pause
from tests.chaos.world import World
from tests.rig import COMMAND
from vllm_supervisor.cli.main import COMMANDS

FAULTS = Faults()
_ENDS_WITHIN = 45.0


@FAULTS("a burst of signals that end nothing")
def _harmless(world: World, random: Random) -> Iterator[None]:
    harmless = [signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG, signal.SIGCONT]
    for _ in range(random.randrange(5, 50)):
        os.kill(world.rig.pid, random.choice(harmless))
    yield


def _ended(world: World) -> int:
    """Wait for the daemon's end; SIGKILL and an accusation where it does not come."""
    try:
        return world.rig.wait_exit(_ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        world.judge.accuse("the daemon ends when told", f"not within {_ENDS_WITHIN:g} s")
        world.rig.send(signal.SIGKILL)
        return world.rig.wait_exit()


def _ending(name: str, *signals: signal.Signals) -> None:
    @FAULTS(name)
    def ending(world: World, random: Random) -> Iterator[None]:
        with world.down():
            for signum in signals:
                with suppress(ProcessLookupError):
                    world.rig.send(signum)
                pause(random.uniform(0, 0.3))
            status = _ended(world)
            left = world.members()
            if status != 0:
                world.judge.accuse("the daemon ends when told", f"exit status {status}")
            if left:
                world.judge.accuse("no process is left", f"after {name}: {left}")
            world.books_closed()
        yield


_ending("the daemon is told to end, and started again", signal.SIGTERM)
_ending("the daemon is told to end twice", signal.SIGTERM, signal.SIGINT)
_ending("the daemon is told to end again and again", *[signal.SIGINT, signal.SIGTERM] * 5)


@FAULTS("the daemon is killed, and started again")
def _killed(world: World, random: Random) -> Iterator[None]:
    with world.down():
        world.rig.send(signal.SIGKILL)
        world.rig.wait_exit()
        world.books_closed()
        pause(random.choice([0, 0, 0.5]))
    yield


@FAULTS("the daemon is killed as it starts, three times")
def _killed_early(world: World, random: Random) -> Iterator[None]:
    with world.down():
        for _ in range(3):
            world.rig.send(signal.SIGKILL)
            world.rig.wait_exit()
            world.books_closed()
            world.launch()
            pause(random.uniform(0, 0.8))
        world.rig.wait_answer()
    yield


@FAULTS("a second daemon on the same configuration")
def _second(world: World, random: Random) -> Iterator[None]:
    argv = [*world.as_user(), str(COMMAND), "run", "-c", str(world.folder / "config.yaml")]
    done = subprocess.run(argv, capture_output=True, timeout=30, check=False, text=True)
    if done.returncode != 3 or "Traceback" in done.stderr:
        world.judge.accuse("one daemon", f"a second one exits with {done.returncode}: {done.stderr[-500:]}")
    yield


@FAULTS("the configuration is garbage")
def _garbage(world: World, random: Random) -> Iterator[None]:
    path = world.folder / "config.yaml"
    good = path.read_text()
    words = [
        "",
        "{",
        "engine: [",
        "engine: {vllm: {port: many}}",
        "\0\x01\x02",
        "a: &a [*a, *a]",
        good.replace("port", "prot"),
    ]
    path.write_text(random.choice(words))
    for _ in range(2):
        world.rig.send(signal.SIGHUP)
        with suppress(OSError, ValueError, IndexError):
            world.rig.request("POST", "/v1/reload", {}, timeout=5)
    before = time.monotonic()
    argv = [*world.as_user(), str(COMMAND), "check", str(path)]
    done = subprocess.run(argv, capture_output=True, timeout=30, check=False, text=True)
    if done.returncode != 2 or "Traceback" in done.stderr:
        world.judge.accuse(
            "a bad configuration is refused", f"check exits with {done.returncode}: {done.stderr[-500:]}"
        )
    pause(max(0.0, random.uniform(0, 0.5) - (time.monotonic() - before)))
    yield
    path.write_text(good)


def _no_reload(_: World) -> str:
    return "" if "reload" in COMMANDS else "this version cannot reload"


@FAULTS("the configuration changes, and is reloaded again and again", impossible=_no_reload)
def _reloaded(world: World, random: Random) -> Iterator[None]:
    path = world.folder / "config.yaml"
    good = path.read_text()
    for _ in range(random.randrange(2, 8)):
        changed = json.loads(good)
        changed["engine"]["vllm"]["concurrency"] = random.randrange(1, 64)
        path.write_text(json.dumps(changed))
        if random.random() < 0.5:
            world.rig.send(signal.SIGHUP)
        else:
            with suppress(OSError, ValueError, IndexError):
                world.rig.request("POST", "/v1/reload", {}, timeout=5)
    path.write_text(good)
    world.rig.send(signal.SIGHUP)
    yield
