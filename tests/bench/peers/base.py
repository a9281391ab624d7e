"""What the bench needs of a supervisor."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.bench import observe
from tests.bench.programs import Place, Program


class Running(Protocol):
    """A supervisor that was launched and has one program."""

    place: Place

    def pids(self) -> list[int]:
        """Return its own processes, loggers included, without the program's."""

    def answers(self) -> bool:
        """Tell whether it answers a client now. Cheap enough to be asked every millisecond."""

    def says_up(self) -> bool:
        """Tell whether it says that the program is there."""

    def status(self) -> Sequence[str] | None:
        """Return the command by which an operator asks, None where there is none."""

    def stop(self) -> None:
        """Stop the program as an operator does; return when the supervisor says that it is stopped."""

    def end(self) -> None:
        """End the supervisor."""


class Peer(Protocol):
    """One kind of supervisor."""

    name: str
    settle: float
    """How long a program has to run to count as started, seconds: what dies earlier is relaunched later on purpose."""

    def missing(self) -> str | None:
        """Return why it cannot be measured here, None where it can."""

    def version(self) -> str: ...

    def place(self) -> contextlib.AbstractContextManager[Place]:
        """Return a fresh folder to run in."""

    def launch(self, place: Place, program: Program) -> Running:
        """Return at once: nothing is waited for."""


@contextmanager
def supervised(running: Running) -> Iterator[Running]:
    """Whatever is launched ends, and its program with it, whoever forgot about it."""
    try:
        yield running
    finally:
        running.end()
        sweep(lambda: observe.bearing(running.place.token))


def sweep(find: Callable[[], Collection[int]]) -> None:
    """SIGKILL for whatever `find` finds, until that is nothing. Raises UnmetError."""
    deadline = time.monotonic() + 20
    while left := find():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise observe.UnmetError(f"processes {left} cannot be killed")
        time.sleep(0.01)


@contextmanager
def host_place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        yield Place(folder, str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class HostProcess:
    """A supervisor that is one process of this host, with children."""

    def __init__(self, place: Place, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self.place = place
        with (place.host / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environ or {})},
                cwd=place.host,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        programs = set(observe.bearing(self.place.token))
        return [pid for pid in observe.descendants(self.process.pid) if pid not in programs]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        # What it left of itself, such as loggers and those who launch them anew.
        sweep(lambda: observe.working_in(self.place.host))


def quiet(command: Sequence[str], timeout: float = 60, environ: Mapping[str, str] | None = None) -> str:
    """Run a client; return what it printed, whatever its exit status."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(environ or {})},
        check=False,
    )
    return done.stdout + done.stderr
