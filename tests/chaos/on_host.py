"""Faults of the host: ports, disks, limits, clocks, processors."""

import errno
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.chaos.fault import Faults, pause
from tests.chaos.world import World

FAULTS = Faults()


@FAULTS("the port is stolen between two starts")
def _port_stolen(world: World, random: Random) -> Iterator[None]:
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for pids in world.members().values():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            with suppress(OSError):
                thief.bind(("127.0.0.1", world.rig.port))
                thief.listen()
                break
        pause(random.uniform(0.2, 1.0))
        yield


@FAULTS("the log file is deleted")
def _log_deleted(world: World, random: Random) -> Iterator[None]:
    with suppress(OSError):  # another fault may have put a directory there
        world.rig.log.unlink(missing_ok=True)
    yield


@FAULTS("the log file is a directory")
def _log_directory(world: World, random: Random) -> Iterator[None]:
    with suppress(OSError):
        world.rig.log.unlink(missing_ok=True)
        world.rig.log.mkdir()
    pause(random.uniform(0, 0.5))
    yield
    with suppress(OSError):
        world.rig.log.rmdir()


def _own_user(world: World) -> str:
    return "" if world.user is not None else "the daemon would have to run as another user than root"


@FAULTS("the log's directory is read-only", impossible=_own_user)
def _log_read_only(world: World, random: Random) -> Iterator[None]:
    world.rig.log.parent.chmod(0o555)
    pause(random.uniform(0, 0.5))
    yield
    world.rig.log.parent.chmod(0o755)


@FAULTS("the state directory is read-only", starves=True, impossible=_own_user)
def _state_read_only(world: World, random: Random) -> Iterator[None]:
    world.rig.state_dir.chmod(0o555)
    pause(random.uniform(0, 0.5))
    yield
    world.rig.state_dir.chmod(0o755)


def _no_mounts(world: World) -> str:
    return "" if world.mounts else "a small file system of its own cannot be mounted here"


def _fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise
    return ballast


@FAULTS("the log's disk is full", impossible=_no_mounts)
def _log_full(world: World, random: Random) -> Iterator[None]:
    ballast = _fill(world.rig.log.parent)
    pause(random.uniform(0, 1.0))
    yield
    ballast.unlink(missing_ok=True)


@FAULTS("the state's disk is full", starves=True, impossible=_no_mounts)
def _state_full(world: World, random: Random) -> Iterator[None]:
    ballast = _fill(world.rig.state_dir)
    pause(random.uniform(0, 1.0))
    yield
    ballast.unlink(missing_ok=True)


def _limited(world: World, limit: str, value: int, seconds: float) -> Iterator[None]:
    """Lower one limit of the living daemon, as its own user, and raise it again if that one still lives."""
    pid = world.rig.pid

    def set_to(soft: str) -> None:
        argv = [*world.as_user(), "prlimit", "--pid", str(pid), f"--{limit}={soft}:"]
        subprocess.run(argv, capture_output=True, check=False)

    number = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}[limit]
    set_to(str(value))
    pause(seconds)
    yield
    if world.rig.pid == pid:
        before = resource.getrlimit(number)[0]
        set_to("unlimited" if before == resource.RLIM_INFINITY else str(before))


@FAULTS("out of descriptors", starves=True)
def _no_descriptors(world: World, random: Random) -> Iterator[None]:
    try:
        used = len(os.listdir(f"/proc/{world.rig.pid}/fd"))  # noqa: PTH208 -- a count
    except OSError:
        used = 20
    yield from _limited(world, "nofile", used + random.choice([0, 1, 3, 6]), random.uniform(0.2, 1.5))


@FAULTS("out of pids", starves=True, impossible=_own_user)
def _no_pids(world: World, random: Random) -> Iterator[None]:
    yield from _limited(world, "nproc", random.choice([1, 4]), random.uniform(0.2, 1.5))


@FAULTS("the daemon's clock jumps")
def _clock(world: World, random: Random) -> Iterator[None]:
    world.clock.write_text(str(random.choice([3600, -3600, -86400, 400 * 86400, 1, -1_795_000_000])))
    pause(random.uniform(0.2, 1.2))
    yield
    world.clock.write_text("0")


@FAULTS("the daemon gets a third of its time")
def _starved(world: World, random: Random) -> Iterator[None]:
    pid = world.rig.pid
    with world.judge.window("stopped"):
        for _ in range(random.randrange(5, 20)):
            if world.rig.ended():
                break
            os.kill(pid, signal.SIGSTOP)
            pause(0.06)
            os.kill(pid, signal.SIGCONT)
            pause(0.03)
        pause(0.1)
    yield


@FAULTS("the daemon is stopped for a while")
def _stopped(world: World, random: Random) -> Iterator[None]:
    pid = world.rig.pid
    with world.judge.window("stopped"):
        os.kill(pid, signal.SIGSTOP)
        pause(random.uniform(0.1, 2.5))
        os.kill(pid, signal.SIGCONT)
        pause(0.1)
    yield


@FAULTS("a neighbour takes processor time")
def _neighbour(world: World, random: Random) -> Iterator[None]:
    busy = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(2)]
    try:
        pause(random.uniform(0.3, 1.0))
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
