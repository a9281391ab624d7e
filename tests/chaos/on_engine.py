"""Faults of the engine: signals to its members, exits, strays, hostile answers."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from random import Random

from tests.chaos.fault import Faults, pause
from tests.chaos.hostile import MODES
from tests.chaos.world import World

FAULTS = Faults()


def _members(world: World) -> list[int]:
    return sorted(pid for pids in world.members().values() for pid in pids)


def _send(pids: list[int], signum: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def _to_one(signum: signal.Signals) -> None:
    @FAULTS(f"{signum.name} to a member")
    def one(world: World, random: Random) -> Iterator[None]:
        members = _members(world)
        _send([random.choice(members)] if members else [], signum)
        yield

    @FAULTS(f"{signum.name} to the leader")
    def leader(world: World, random: Random) -> Iterator[None]:
        _send([int(name) for name in world.members() if name.isdigit()], signum)
        yield


for _signum in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV):
    _to_one(_signum)


@FAULTS("SIGKILL to all members")
def _all_killed(world: World, random: Random) -> Iterator[None]:
    _send(_members(world), signal.SIGKILL)
    yield


@FAULTS("SIGSTOP to all members, then SIGCONT")
def _all_stopped(world: World, random: Random) -> Iterator[None]:
    members = _members(world)
    _send(members, signal.SIGSTOP)
    pause(random.uniform(0, 1.5))
    yield
    _send([pid for pid in members if pid in _members(world)], signal.SIGCONT)


@FAULTS("the engine gets a tenth of its time")
def _engine_starved(world: World, random: Random) -> Iterator[None]:
    for _ in range(10):
        members = _members(world)
        _send(members, signal.SIGSTOP)
        pause(0.09)
        _send([pid for pid in members if pid in _members(world)], signal.SIGCONT)
        pause(0.01)
    yield


def _restart(world: World) -> None:
    with suppress(OSError, ValueError, IndexError):
        world.rig.request("POST", "/v1/restart", {"drain": False, "reason": "chaos"})


@FAULTS("the engine exits with any status")
def _exits(world: World, random: Random) -> Iterator[None]:
    phase = random.choice(["import", "load", "ready"])
    world.knobs(exit_code=random.randrange(256), exit_phase=phase, exit_after=random.choice([0, 0.1, 0.5]))
    _restart(world)
    pause(random.uniform(0.1, 1.0))
    yield
    world.knobs()


@FAULTS("the engine ends by a signal")
def _ends(world: World, random: Random) -> Iterator[None]:
    world.knobs(exit_signal=random.choice([6, 9, 11, 15]), exit_phase=random.choice(["load", "ready"]))
    _restart(world)
    pause(random.uniform(0.1, 1.0))
    yield
    world.knobs()


def _knobbed(name: str, **knobs: object) -> None:
    @FAULTS(name)
    def knobbed(world: World, random: Random) -> Iterator[None]:
        world.knobs(**knobs)
        _restart(world)
        pause(random.uniform(0.3, 1.5))
        yield
        world.knobs()
        if random.random() < 0.5:
            _send(_members(world), signal.SIGKILL)
        else:
            _restart(world)


_knobbed("loading stops half-way, SIGTERM is lost", never_ready=1, lose_first_sigterm=1)
_knobbed("the engine core dies", engine_death_after=0.2)
_knobbed("a worker dies", worker_death_after=0.2)
_knobbed("the engine freezes", freeze_after=0.1)
_knobbed("the leader dies by SIGKILL", leader_sigkill_after=0.1)
_knobbed("nobody heeds SIGTERM", ignore_sigterm=1)
_knobbed("a worker leaves the session, another is daemonised", worker_setsid=1)
_knobbed("a stray without environment leaves the session", CHAOS_STRAY=1)
_knobbed("health never answers", health_hang=1)
_knobbed("health takes a second", health_delay=1)
_knobbed("no metrics", no_metrics=1)
_knobbed("completions answer 500", completions_status=500)
_knobbed("completions answer 401", completions_status=401)
_knobbed("a flood of log lines, some no text", log_flood=20, non_utf8=1)


@FAULTS("health is bad")
def _ill(world: World, random: Random) -> Iterator[None]:
    world.ill.touch()
    pause(random.uniform(0, 1.5))
    yield
    world.ill.unlink(missing_ok=True)


@FAULTS("the launch script is gone")
def _no_script(world: World, random: Random) -> Iterator[None]:
    script, aside = world.folder / "launch.sh", world.folder / "launch.aside"
    if script.exists():
        script.rename(aside)
    _restart(world)
    pause(random.uniform(0.2, 1.0))
    yield
    if aside.exists():
        aside.rename(script)


def _hostile(mode: str) -> None:
    @FAULTS(f"hostile engine: {mode}")
    def hostile(world: World, random: Random) -> Iterator[None]:
        world.mode.unlink(missing_ok=True)
        world.knobs(CHAOS_HOSTILE=1)
        _restart(world)
        pause(random.choice([0.1, 1.0, 2.0]))
        world.mode.write_text(mode)
        pause(random.uniform(1.0, 2.5))
        yield
        world.mode.unlink(missing_ok=True)
        world.knobs()
        _restart(world)


for _mode in MODES:
    _hostile(_mode)
