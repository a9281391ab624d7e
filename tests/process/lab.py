"""Launches small programs as engines."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from tests.eventually import aeventually, eventually
from vllm_supervisor.adapters.process import EngineLauncher, ProcessTree
from vllm_supervisor.adapters.process.procfs import Proc, Stat
from vllm_supervisor.domain.model import Sig
from vllm_supervisor.domain.spec import LaunchSpec
from vllm_supervisor.ports import Note

PROGRAMS = Path(__file__).with_name("programs")
_PIDS = int(Path("/proc/sys/kernel/pid_max").read_text())
PATIENCE = 20.0
"""Seconds until a test gives up on what takes milliseconds on an idle machine."""


def python(program: str, *arguments: str) -> tuple[str, ...]:
    """Return the argv of one of our programs, in an interpreter that starts fast."""
    return (sys.executable, "-S", "-E", str(PROGRAMS / program), *arguments)


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


class Lab:
    """A state directory, and launchers in it."""

    def __init__(self, folder: Path) -> None:
        self.state_dir = folder / "state"
        self.state_dir.mkdir(exist_ok=True)
        self.log = folder / "logs" / "vllm.log"
        self.notes: list[Note] = []

    def spec(self, argv: tuple[str, ...], port: int = 9, host: str = "127.0.0.1", cwd: str | None = None) -> LaunchSpec:
        # Set, so that no folder for vLLM's sockets is made: most of these engines are never forgotten.
        env = {"PATH": os.environ["PATH"], "VLLM_RPC_BASE_PATH": "/nowhere"}
        return LaunchSpec(argv=argv, env=env, cwd=cwd, log_file=str(self.log), host=host, port=port)

    def launcher(
        self, argv: tuple[str, ...], port: int = 9, host: str = "127.0.0.1", cwd: str | None = None
    ) -> EngineLauncher:
        return EngineLauncher(self.spec(argv, port, host, cwd), self.state_dir, note=self.notes.append)

    @asynccontextmanager
    async def engine(self, *argv: str) -> AsyncIterator[ProcessTree]:
        """Launch, and whatever the test did, see to it that nothing is left."""
        launcher = self.launcher(argv)
        async with ending(await launcher.spawn(launcher.last_generation() + 1)) as engine:
            yield engine

    def instance(self) -> str:
        return (self.state_dir / "instance-id").read_text().strip()


@asynccontextmanager
async def ending(engine: ProcessTree) -> AsyncIterator[ProcessTree]:
    try:
        yield engine
    finally:
        with anyio.CancelScope(shield=True):
            await engine.signal(Sig.KILL)
            with anyio.fail_after(PATIENCE):
                await engine.wait_gone()


async def members(engine: ProcessTree, *names: str) -> list[int]:
    """Wait until the members have these names, in the order in which their pids were given, which are returned."""
    found: list[tuple[int, str]] = []

    async def settled() -> bool:
        # From the leader's on: after the last pid the kernel begins anew.
        found[:] = sorted(
            ((member.pid, member.name) for member in await engine.members()),
            key=lambda member: (member[0] - engine.pid) % _PIDS,
        )
        return tuple(name for _, name in found) == names

    try:
        await aeventually(settled, PATIENCE)
    except pytest.fail.Exception:
        pytest.fail(f"not within {PATIENCE} s: members {names}; last: {found}")
    return [pid for pid, _ in found]


async def gone(engine: ProcessTree) -> None:
    with anyio.fail_after(PATIENCE):
        await engine.wait_gone()


def alive(pid: int) -> Stat | None:
    stat = Proc().stat(pid)
    return stat if stat is not None and not stat.gone else None


def descendants(pid: int) -> set[int]:
    """Return all living processes below `pid`."""
    table = Proc().table()
    found = {pid}
    while more := {s.pid for s in table.values() if s.parent in found and s.pid not in found and not s.gone}:
        found |= more
    return found


@contextmanager
def daemon(lab: Lab, *argv: str, prefix: tuple[str, ...] = ()) -> Iterator["Daemon"]:
    """Run a process that launches `argv` as a daemon does, and kill it in the end, but not its engine."""
    command = [*prefix, sys.executable, str(PROGRAMS / "daemon.py"), str(lab.state_dir), str(lab.log), *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as process:
        try:
            yield Daemon(process)
        finally:
            process.kill()


class Daemon:
    """The helper process; `leader` is known once it has launched."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        self.leader = int(json.loads(line)["leader"])

    def die(self) -> None:
        """Die as a daemon that the kernel killed: without a word to anybody."""
        self.process.kill()
        self.process.wait()


def adopt(orphans: bool) -> None:
    """Have orphans below us come to us, or to init."""
    ctypes.CDLL(None).prctl(36, int(orphans), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def content(path: Path) -> str:
    return eventually(lambda: path.exists() and path.read_text(), PATIENCE, what=f"{path.name} written")  # type: ignore[return-value]  # truthy: text


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
