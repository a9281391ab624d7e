"""vllm-supervisor itself."""

import socket
from contextlib import AbstractContextManager
from pathlib import Path

import vllm_supervisor
from tests.bench import observe
from tests.bench.peers.base import host_place
from tests.bench.programs import Place, Program
from tests.rig import COMMAND, Rig


class Ours:
    name = "vllm-supervisor"
    settle = 0.1

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return vllm_supervisor.__version__

    def place(self) -> AbstractContextManager[Place]:
        return host_place()

    def launch(self, place: Place, program: Program) -> "OurDaemon":
        return OurDaemon(place, program)


class OurDaemon:
    def __init__(self, place: Place, program: Program, *, metrics: bool = True) -> None:
        self.place = place
        section = {
            "launcher": list(program.launcher),
            "port": program.port,
            # The least delay that may be configured, as it is for the others.
            "restart": {"min_backoff": 0.001, "max_backoff": 0.001, "never_ready_limit": 100_000},
            "stop": {"drain_timeout": 0, "grace": program.grace},
        }
        self.rig = Rig(place.host, section | program.ours)
        self.rig.config["metrics"]["enabled"] = metrics
        self.rig.start(wait=False)

    def pids(self) -> list[int]:
        programs = set(observe.bearing(self.place.token))
        return [pid for pid in observe.descendants(self.rig.pid) if pid not in programs]

    def answers(self) -> bool:
        return self.rig.try_status() is not None

    def says_up(self) -> bool:
        return bool(self.rig.status()["ready"])

    def status(self) -> list[str]:
        return [str(COMMAND), "status", "--socket", str(self.rig.socket)]

    def stop(self) -> None:
        self.rig.cli("stop", timeout=120)

    def end(self) -> None:
        self.rig.clean_up()


def connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(str(path))
    return client
