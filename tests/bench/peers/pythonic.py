"""Those from PyPI, in an environment of their own: Supervisor, circus, and what vLLM's SageMaker image uses."""

import http.client
import shlex
import socket
import xmlrpc.client
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.bench.observe import UnmetError, until
from tests.bench.peers.base import HostProcess, host_place, quiet
from tests.bench.programs import Place, Program


class _FromPyPI:
    name: str
    settle: float
    project: str
    program: str

    def __init__(self, environment: Path) -> None:
        self.bin = environment / "bin"

    def missing(self) -> str | None:
        return None if (self.bin / self.program).exists() else f"no {self.program} in {self.bin.parent.name}"

    def version(self) -> str:
        code = f"import importlib.metadata as m; print(m.version({self.project!r}))"
        return quiet([str(self.bin / "python"), "-c", code]).strip()

    def place(self) -> AbstractContextManager[Place]:
        return host_place()


class Supervisor(_FromPyPI):
    name = "Supervisor"
    settle = 1.2  # startsecs=1
    project = "supervisor"
    program = "supervisord"

    def launch(self, place: Place, program: Program) -> "_Supervisord":
        """With `autorestart`, and what its manual has for trees of processes."""
        config = place.write(
            "supervisord.conf",
            f"""
[unix_http_server]
file={place.inside}/control.sock
[supervisord]
logfile={place.inside}/supervisord.log
pidfile={place.inside}/supervisord.pid
childlogdir={place.inside}
nodaemon=true
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{place.inside}/control.sock
[program:engine]
command={shlex.join(program.argv)}
autorestart=true
redirect_stderr=true
stdout_logfile={place.inside}/engine.log
stopasgroup=true
killasgroup=true
stopwaitsecs={max(1, round(program.grace))}
""",
        )
        return _Supervisord(place, self.bin, config)


class _Supervisord(HostProcess):
    def __init__(self, place: Place, programs: Path, config: str) -> None:
        super().__init__(place, [str(programs / "supervisord"), "-c", config])
        self._control = [str(programs / "supervisorctl"), "-c", config]

    def _call(self, method: str, *arguments: str) -> Any:
        proxy = xmlrpc.client.ServerProxy("http://x", transport=_OverUnix(self.place.host / "control.sock"))
        return getattr(proxy.supervisor, method)(*arguments)

    def answers(self) -> bool:
        try:
            return bool(self._call("getState")["statename"])
        except (OSError, xmlrpc.client.Error, http.client.HTTPException):
            return False

    def says_up(self) -> bool:
        return bool(self._call("getProcessInfo", "engine")["statename"] == "RUNNING")

    def status(self) -> list[str]:
        return [*self._control, "status", "engine"]

    def stop(self) -> None:
        quiet([*self._control, "stop", "engine"], 120)


class _OverUnix(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: object) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("x")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(10)
        connection.sock.connect(str(self._path))
        return connection


class Circus(_FromPyPI):
    name = "circus"
    settle = 0.3
    project = "circus"
    program = "circusd"

    def launch(self, place: Place, program: Program) -> "_Circusd":
        command = shlex.join(program.argv)
        config = place.write(
            "circus.ini",
            f"""
[circus]
endpoint = ipc://{place.inside}/control.sock
pubsub_endpoint = ipc://{place.inside}/events.sock
statsd = False
[watcher:engine]
cmd = {command}
copy_env = True
max_retry = -1
stop_children = True
graceful_timeout = {program.grace}
stdout_stream.class = FileStream
stdout_stream.filename = {place.inside}/engine.log
stdout_stream.max_bytes = 100000000
stdout_stream.backup_count = 5
stderr_stream.class = FileStream
stderr_stream.filename = {place.inside}/engine.err
""",
        )
        return _Circusd(place, self.bin, config)


class _Circusd(HostProcess):
    def __init__(self, place: Place, programs: Path, config: str) -> None:
        super().__init__(place, [str(programs / "circusd"), config])
        self._control = [str(programs / "circusctl"), "--endpoint", f"ipc://{place.inside}/control.sock"]

    def answers(self) -> bool:
        """Return whether it greets: its protocol is not spoken here."""
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1)
                client.connect(str(self.place.host / "control.sock"))
                return bool(client.recv(1))
        except OSError:
            return False

    def says_up(self) -> bool:
        return quiet(self.status()).strip().startswith("active")

    def status(self) -> list[str]:
        return [*self._control, "status", "engine"]

    def stop(self) -> None:
        quiet([*self._control, "stop", "engine", "--waiting"], 120)


class StandardSupervisor(_FromPyPI):
    name = "standard-supervisor"
    settle = 1.2
    project = "model-hosting-container-standards"
    program = "standard-supervisor"

    def launch(self, place: Place, program: Program) -> "_Standard":
        return _Standard(place, self.bin, program)


class _Standard(HostProcess):
    """As it comes: it has no control socket, and only its own SIGTERM stops the program."""

    def __init__(self, place: Place, programs: Path, program: Program) -> None:
        environ = {
            "PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SUPERVISOR_CONFIG_PATH": f"{place.inside}/supervisord.conf",
            "SUPERVISOR_SUPERVISORD_PIDFILE": f"{place.inside}/supervisord.pid",
            "SUPERVISOR_PROGRAM__APP_STOPWAITSECS": str(max(1, round(program.grace))),
        }
        super().__init__(place, [str(programs / "standard-supervisor"), *program.argv], environ)

    def answers(self) -> bool:
        raise UnmetError("no socket")

    def says_up(self) -> bool:
        raise UnmetError("cannot be asked")

    def status(self) -> None:
        return None

    def stop(self) -> None:
        self.process.terminate()
        until(lambda: self.process.poll() is not None, 120, "the end of standard-supervisor")
