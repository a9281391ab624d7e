"""Those with a folder for each service: s6 and runit, from Debian's packages unpacked beside the bench."""

import os
import shlex
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path

from tests.bench import observe
from tests.bench.peers.base import HostProcess, host_place, quiet
from tests.bench.programs import Place, Program


class _FromDebian:
    name: str
    settle = 1.2
    """Both wait a second before they relaunch what ran for less."""
    program: str
    package: str

    def __init__(self, unpacked: Path) -> None:
        self.root = unpacked

    def tool(self, name: str) -> str:
        return str(self.root / "usr/bin" / name)

    def environ(self) -> dict[str, str]:
        libraries = ":".join(str(path) for path in (self.root / "usr/lib").glob("*-linux-*"))
        path = f"{self.root / 'usr/bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"LD_LIBRARY_PATH": libraries, "PATH": path}

    def missing(self) -> str | None:
        return None if Path(self.tool(self.program)).exists() else f"no package {self.package} here"

    def version(self) -> str:
        try:
            return (self.root / f"{self.package}.version").read_text().strip()
        except FileNotFoundError:
            return ""

    def place(self) -> AbstractContextManager[Place]:
        return host_place()


class S6(_FromDebian):
    name = "s6"
    program = "s6-supervise"
    package = "s6"

    def launch(self, place: Place, program: Program) -> "_Scanned":
        place.write("scan/engine/run", f"#!/bin/sh\nexec 2>&1 {shlex.join(program.argv)}\n", 0o755)
        place.write("scan/engine/timeout-kill", f"{round(program.grace * 1000)}\n")
        # Without s6-svscan, which would look for s6-supervise in /usr/bin alone.
        supervise = f"{self.tool('s6-supervise')} {place.inside}/scan/engine"
        logger = f"{self.tool('s6-log')} n5 s100000000 {place.inside}/log"
        return _Supervise(place, self, ["/bin/sh", "-c", f"{supervise} | {logger}"])


class Runit(_FromDebian):
    name = "runit"
    program = "runsvdir"
    package = "runit"

    def launch(self, place: Place, program: Program) -> "_Scanned":
        place.write("scan/engine/run", f"#!/bin/sh\nexec 2>&1 {shlex.join(program.argv)}\n", 0o755)
        place.write("log/config", "s100000000\nn5\n")
        logger = f"{self.tool('svlogd')} {place.inside}/log"
        place.write("scan/engine/log/run", f"#!/bin/sh\nexec {logger}\n", 0o755)
        return _Runsvdir(place, self, [self.tool("runsvdir"), f"{place.inside}/scan"], program.grace)


class _Scanned(HostProcess, ABC):
    pipe: str

    def __init__(self, place: Place, peer: _FromDebian, command: list[str]) -> None:
        self.peer = peer
        self.service = f"{place.inside}/scan/engine"
        super().__init__(place, command, peer.environ())

    def answers(self) -> bool:
        """Return whether somebody reads its pipe of commands."""
        try:
            os.close(os.open(self.place.host / "scan/engine/supervise" / self.pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    @abstractmethod
    def says_up(self) -> bool: ...

    @abstractmethod
    def status(self) -> list[str]: ...

    @abstractmethod
    def stop(self) -> None: ...

    def _ask(self, *command: str) -> str:
        return quiet([self.peer.tool(command[0]), *command[1:]], 120, self.peer.environ())


class _Supervise(_Scanned):
    pipe = "control"

    def says_up(self) -> bool:
        return self._ask("s6-svstat", "-o", "up", self.service).strip() == "true"

    def status(self) -> list[str]:
        return [self.peer.tool("s6-svstat"), self.service]

    def stop(self) -> None:
        self._ask("s6-svc", "-d", self.service)
        observe.until(lambda: not self.says_up(), 60, "down")

    def end(self) -> None:
        self._ask("s6-svc", "-xd", self.service)
        super().end()


class _Runsvdir(_Scanned):
    pipe = "ok"

    def __init__(self, place: Place, peer: _FromDebian, command: list[str], grace: float) -> None:
        super().__init__(place, peer, command)
        self._grace = max(1, round(grace))

    def says_up(self) -> bool:
        return self._ask("sv", "status", self.service).startswith("run:")

    def status(self) -> list[str]:
        return [self.peer.tool("sv"), "status", self.service]

    def stop(self) -> None:
        self._ask("sv", "-w", str(self._grace), "force-stop", self.service)
        observe.until(lambda: "down:" in self._ask("sv", "status", self.service), 30, "down")

    def end(self) -> None:
        # SIGHUP is what makes it end its services as well.
        self._ask("sv", "-w", "1", "force-shutdown", self.service)
        super().end()
