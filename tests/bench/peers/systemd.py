"""systemd's own `Restart=always`, in a container that is thrown away."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from tests.bench import observe
from tests.bench.peers.base import quiet
from tests.bench.programs import Place, Program

UNITS = "/run/systemd/system"


class Container:
    """A booted systemd. Its processes and files are reached from outside: it is a namespace, not a machine."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._name = f"bench-{uuid4().hex[:8]}"
        self.leader = 0

    def start(self, *options: str) -> None:
        subprocess.run([self._boot, "start", self._name, *options], check=True, timeout=90, capture_output=True)
        self.leader = int(Path("/run/systemd-test", self._name, "leader").read_text())

    def stop(self) -> None:
        subprocess.run([self._boot, "stop", self._name], check=True, timeout=90, capture_output=True)

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.leader}/root")

    def command(self, *command: str) -> list[str]:
        """Return a command that runs inside."""
        return ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--", *command]

    def run(self, *command: str, timeout: float = 120) -> str:
        return quiet(self.command(*command), timeout)


class Systemd:
    name = "systemd"
    settle = 0.1

    def __init__(self, container: Container | None, why_missing: str) -> None:
        self._container = container
        self._why = why_missing

    def missing(self) -> str | None:
        return None if self._container else self._why

    def command(self, *command: str) -> list[str]:
        """Return a command that runs where the units run."""
        assert self._container is not None
        return self._container.command(*command)

    def version(self) -> str:
        return quiet(["systemctl", "--version"]).split("\n")[0].removeprefix("systemd ").split(" ")[0]

    @contextmanager
    def place(self) -> Iterator[Place]:
        assert self._container is not None
        inside = f"/run/bench/{uuid4().hex[:8]}"
        host = self._container.root / inside.lstrip("/")
        host.mkdir(parents=True)
        try:
            yield Place(host, inside)
        finally:
            shutil.rmtree(host, ignore_errors=True)

    def launch(self, place: Place, program: Program, extra: str = "RestartSec=1ms") -> "_Unit":
        assert self._container is not None
        return _Unit(self._container, place, program, extra)


class _Unit:
    def __init__(self, container: Container, place: Place, program: Program, extra: str) -> None:
        self.place = place
        self._container = container
        self.name = f"bench-{place.token[:8]}.service"
        text = f"""
[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart={shlex.join(program.argv)}
Restart=always
TimeoutStopSec={program.grace}
{extra}
"""
        (container.root / UNITS.lstrip("/")).mkdir(parents=True, exist_ok=True)
        self._path = container.root / UNITS.lstrip("/") / self.name
        self._path.write_text(text)
        container.run("systemctl", "daemon-reload")
        container.run("systemctl", "start", "--no-block", self.name)

    def pids(self) -> list[int]:
        """Return PID 1 and the journal, which carries its services' output."""
        journal = [pid for pid in observe.descendants(self._container.leader) if "journal" in observe.command(pid)]
        return [self._container.leader, *journal]

    def answers(self) -> bool:
        raise observe.UnmetError("is PID 1")

    def says_up(self) -> bool:
        return self._container.run("systemctl", "is-active", self.name).strip() == "active"

    def status(self) -> Sequence[str] | None:
        return self._container.command("systemctl", "is-active", self.name)

    def stop(self) -> None:
        self._container.run("systemctl", "stop", self.name)

    def end(self) -> None:
        self._container.run("systemctl", "kill", "-s", "KILL", self.name)
        self._container.run("systemctl", "stop", self.name)
        self._path.unlink()
        self._container.run("systemctl", "daemon-reload")


@contextmanager
def systemd(*options: str) -> Iterator[Systemd]:
    """A peer in a fresh container, or one that says why there is none."""
    boot = os.environ.get("REAL_SYSTEMD", "")
    why = None
    if not boot:
        why = "REAL_SYSTEMD names no boot.sh"
    elif os.geteuid() != 0:
        why = "needs root"
    elif shutil.which("systemd-nspawn") is None:
        why = "no systemd-nspawn"
    if why:
        yield Systemd(None, why)
        return
    container = Container(boot)
    try:
        container.start()
    except subprocess.SubprocessError as error:
        container.stop()
        yield Systemd(None, f"the container did not boot: {error}")
        return
    try:
        yield Systemd(container, "")
    finally:
        container.stop()
