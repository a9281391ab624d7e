"""The programs that are supervised, the same for everybody, and the places that they run in."""

import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import vllm_supervisor
from tests.bench.observe import UnmetError
from tests.ports import free_port

PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
"""The program's own interpreter: one that a container sees as well."""

NOTE = "BENCH_PROGRAM"


@dataclass(frozen=True)
class Place:
    """A folder for one supervisor and its program: `host` as the bench reaches it, `inside` as they do."""

    host: Path
    inside: str
    token: str = field(default_factory=lambda: uuid4().hex)

    def write(self, name: str, text: str, mode: int = 0o644) -> str:
        """Write a file; return its path inside."""
        path = self.host / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return f"{self.inside}/{name}"

    def read(self, name: str) -> str:
        try:
            return (self.host / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""


@dataclass(frozen=True)
class Program:
    """A command, and how long a stop may wait before SIGKILL, seconds.

    `launcher`, `model` and `arguments` are one command line; they are apart as our own configuration keeps them.
    `ours` is laid over our configuration of the engine. The port has to be free although nobody listens on it: we
    launch nothing while somebody else holds it.
    """

    launcher: tuple[str, ...]
    port: int
    grace: float = 2.0
    ours: dict[str, object] = field(default_factory=dict)
    model: str = "demo/model"
    arguments: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        return [*self.launcher, self.model, "--host", "127.0.0.1", "--port", str(self.port), *self.arguments]


class Beacon:
    """A pipe into which a program writes a line when it begins: waiting for it takes nothing from those measured."""

    def __init__(self, place: Place) -> None:
        path = place.host / "begun"
        os.mkfifo(path)
        # Both ends: with a writer of our own there is no end of file between two programs.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._go = place.host / "go"
        os.mkfifo(self._go)

    def wait(self, within: float) -> float:
        """Return the monotonic time at which the next program has begun. Raises UnmetError."""
        if not select.select([self._fd], [], [], within)[0]:
            raise UnmetError(f"not relaunched within {within:g} s")
        now = time.perf_counter()
        os.read(self._fd, 4096)
        return now

    def forget(self) -> None:
        """Drop what was written so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 65536)

    def let_exit(self) -> float:
        """Let the program that waits end with status 0; return the monotonic time."""
        fd = os.open(self._go, os.O_WRONLY)  # returns once the program reads
        now = time.perf_counter()
        os.close(fd)
        return now

    def close(self) -> None:
        os.close(self._fd)


def _noted(place: Place, *command: str, **variables: str) -> tuple[str, ...]:
    """Return a command whose processes, and their children, bear the place's token in their environment."""
    # SPT_NOENV, for all alike: without it the engine's processes erase their environment, as vLLM's do.
    extra = [f"{name}={value}" for name, value in ({"SPT_NOENV": "1"} | variables).items()]
    return ("/usr/bin/env", f"{NOTE}={place.token}", *extra, *command)


def waiter(place: Place) -> Program:
    """Announces itself, then waits until it is killed or let exit."""
    text = f"#!/bin/sh\necho begun >{place.inside}/begun\nread _ <{place.inside}/go\nexit 0\n"
    return Program(_noted(place, "/bin/sh", place.write("waiter.sh", text)), free_port())


def crowd(place: Place, size: int) -> Program:
    """Announces itself when it has `size - 1` children, half of them in sessions of their own, and waits."""
    text = f"""
import os, signal
for n in range({size - 1}):
    os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ, setsid=bool(n % 2))
with open("{place.inside}/begun", "w") as begun:
    begun.write("begun\\n")
signal.pause()
"""
    return Program(_noted(place, PYTHON, "-S", place.write("crowd.py", text)), free_port())


def hopeless(place: Place, seconds: float, last_words: Sequence[str]) -> Program:
    """Runs for a while, prints why it cannot start, and exits 1. Its starts are counted in `starts`."""
    words = "\n".join(last_words)
    text = f"""
import sys, time
with open("{place.inside}/starts", "a") as starts:
    starts.write(".")
time.sleep({seconds})
sys.stderr.write({words!r} + "\\n")
sys.exit(1)
"""
    return Program(_noted(place, PYTHON, "-S", place.write("hopeless.py", text)), free_port())


def flood(place: Place, rate: float, seconds: float) -> Program:
    """Prints `rate` MB of lines a second, notes in `flooded` how many MB were taken in how many seconds, and waits."""
    text = f"""
import os, signal, time
line = b"(APIServer pid=1) INFO 11-29 21:13:04 [loggers.py:257] Engine 000: Running: 1 reqs, Waiting: 0 reqs\\n"
chunk = line * (64 * 1024 // len(line))
begun, sent = time.monotonic(), 0
while (now := time.monotonic() - begun) < {seconds}:
    if sent > {rate * 1e6} * now:
        time.sleep(0.002)
        continue
    view = memoryview(chunk)
    while view:
        view = view[os.write(1, view):]
    sent += len(chunk)
with open("{place.inside}/flooded.new", "w") as note:
    note.write(f"{{sent / 1e6}} {{time.monotonic() - begun}}")
os.rename("{place.inside}/flooded.new", "{place.inside}/flooded")
signal.pause()
"""
    return Program(_noted(place, PYTHON, "-S", place.write("flood.py", text)), free_port())


def engine(place: Place, port: int, grace: float = 2.0, **knobs: str) -> Program:
    """A tree shaped like vLLM's, that serves: the simulator, with what it is told."""
    package = Path(vllm_supervisor.__file__).parent
    target = place.host / "lib" / package.name
    if not target.exists():
        shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    variables = {f"SIM_{name.upper()}": value for name, value in knobs.items()}
    command = (PYTHON, "-m", "vllm_supervisor.simulator", "serve")
    launcher = _noted(place, *command, PYTHONPATH=f"{place.inside}/lib", SIM_MAX_SECONDS="900", **variables)
    return Program(launcher, port, grace)
