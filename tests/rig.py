"""A whole daemon, as a user runs it: a process on a configuration of its own, asked over its socket.

Depends on the standard library and psutil alone, so that the bench can use it in the run-time environment.
"""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.ports import free_port

COMMAND = Path(sys.executable).with_name("vllm-supervisor")
SIMULATOR = [sys.executable, "-m", "vllm_supervisor.simulator", "serve"]
MARKER = "SUPERVISED_ENGINE"

Status = dict[str, Any]


class NotInTimeError(AssertionError):
    """Raised when something awaited did not happen."""


class Rig:
    """One daemon. `engine` is the `engine.vllm` section, laid over the simulator with short delays."""

    def __init__(self, folder: Path, engine: Mapping[str, object] | None = None, **top: object) -> None:
        self.folder = folder
        self.port = free_port()
        self.metrics_port = free_port()
        self.socket = folder / "control.sock"
        self.log = folder / "vllm.log"
        self.state_dir = folder / "state"
        self.process: subprocess.Popen[bytes] | None = None
        section: dict[str, object] = {
            "launcher": SIMULATOR,
            "model": "demo/model",
            "port": self.port,
            "log_file": str(self.log),
            "restart": {"min_backoff": 0.05, "max_backoff": 0.1},
            "stop": {"drain_timeout": 2, "grace": 10},
        }
        self.config: dict[str, Any] = {
            "engine": {"vllm": section | dict(engine or {})},
            "control": {"socket": str(self.socket)},
            "metrics": {"port": self.metrics_port},
            "state_dir": str(self.state_dir),
        } | top

    # --- the process

    def start(
        self,
        *options: str,
        wait: bool = True,
        environ: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Launch the daemon, by `prefix` where one is given; by default wait until its socket answers."""
        path = self.configure()
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, str(COMMAND), "run", "-c", str(path), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environ or {})},
            )
        if wait:
            self.wait_answer()

    def configure(self) -> Path:
        """Write the configuration as it is in `config` now, and return its file."""
        path = self.folder / "config.yaml"
        path.write_text(json.dumps(self.config))
        return path

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def wait_exit(self, within: float = 60) -> int:
        """Return the daemon's exit status."""
        assert self.process is not None
        return self.process.wait(within)

    def stop(self, within: float = 60) -> int:
        """SIGTERM, and the exit status."""
        self.send(signal.SIGTERM)
        return self.wait_exit(within)

    def daemon_log(self) -> str:
        return (self.folder / "daemon.log").read_text(errors="replace")

    def simulate(self, **knobs: object) -> None:
        """Set the simulator's knobs, and other variables given in capitals, for the starts to come, and no others.

        For daemons whose launcher is `launch_script`.
        """
        named = {name if name.isupper() else f"SIM_{name.upper()}": value for name, value in knobs.items()}
        fresh = self.folder / "knobs.new"
        fresh.write_text("".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in named.items()))
        fresh.replace(self.folder / "knobs")

    def launch_script(self, command: str = 'exec "$@"') -> list[str]:
        """Return a launcher that heeds `simulate`: a shell script that runs the simulator by `command`."""
        script = self.folder / "launch.sh"
        script.write_text(f". {shlex.quote(str(self.folder / 'knobs'))}\n{command}\n")
        self.simulate()
        return ["/bin/sh", str(script), *SIMULATOR]

    def engine_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def cli(self, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command against this daemon."""
        return subprocess.run(
            [str(COMMAND), *args, "--socket", str(self.socket)],
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    # --- the socket

    def request(self, method: str, path: str, body: object = None, timeout: float = 10) -> tuple[int, bytes]:
        """Return (HTTP status, body)."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.0\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout)
            client.connect(str(self.socket))
            client.sendall(head + data)
            parts = []
            while part := client.recv(65536):
                parts.append(part)
        top, _, rest = b"".join(parts).partition(b"\r\n\r\n")
        return int(top.split()[1]), rest

    def get(self, path: str) -> Any:
        status, body = self.request("GET", path)
        assert status == 200, (status, body)
        return json.loads(body)

    def post(self, verb: str, **body: object) -> Status:
        status, answer = self.request("POST", f"/v1/{verb}", body)
        assert status == 202, (status, answer)
        result: Status = json.loads(answer)
        return result

    def status(self) -> Status:
        answer: Status = self.get("/v1/status")
        return answer

    def try_status(self) -> Status | None:
        try:
            return self.status()
        except (OSError, ValueError, IndexError):
            return None

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        _, body = self.request("GET", "/v1/events")
        entries = [json.loads(line) for line in body.splitlines()]
        return [entry for entry in entries if name in (None, entry["event"])]

    def metric(self, series: str) -> float:
        """Return one sample of the daemon's own metrics, by its name and labels as exposed."""
        _, body = self.request("GET", "/metrics")
        for line in body.decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        raise AssertionError(f"no {series} in\n{body.decode()}")

    # --- waiting

    def until(self, check: Callable[[], Any], within: float = 60, *, every: float = 0.03, what: str = "") -> Any:
        """Poll; the failure shows the daemon's log."""
        deadline = time.monotonic() + within
        while True:
            result = check()
            if result:
                return result
            if time.monotonic() > deadline:
                raise NotInTimeError(f"{what or 'condition'} not within {within} s\n{self.daemon_log()[-6000:]}")
            time.sleep(every)

    def wait_answer(self, within: float = 60) -> None:
        """Wait until the socket answers; fail at once where the daemon ends instead."""
        self.until(lambda: self.try_status() is not None or self.ended(), within, what="the socket answers")
        assert not self.ended(), self.daemon_log()[-6000:]

    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def wait_state(self, state: str, within: float = 60, *, after: int = -1) -> Status:
        """Wait for a public state, of a generation above `after`."""

        def there() -> Status | None:
            status = self.status()
            return status if status["state"] == state and status["generation"] > after else None

        result: Status = self.until(there, within, what=f"state {state}")
        return result

    # --- the engine's processes, as the kernel shows them

    def members(self) -> list[psutil.Process]:
        """Return the living processes that bear a marker of this instance."""
        try:
            instance = (self.state_dir / "instance-id").read_text().strip()
        except FileNotFoundError:
            return []
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARKER, "").startswith(instance) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def member(self, title: str) -> psutil.Process:
        """Return the one member whose kernel name begins with `title`."""
        named = [process for process in self.members() if comm(process.pid).startswith(title)]
        assert len(named) == 1, [(p.pid, comm(p.pid)) for p in self.members()]
        return named[0]

    def leader(self) -> int:
        pid = self.status()["pid"]
        assert isinstance(pid, int)
        return pid

    def ask_engine(self, path: str, body: object = None, *, key: str | None = None) -> tuple[int, bytes]:
        """Ask the engine itself, over TCP."""
        data = b"" if body is None else json.dumps(body).encode()
        auth = f"Authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"{'POST' if body is not None else 'GET'} {path} HTTP/1.0\r\nHost: x\r\n{auth}"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), 60) as client:
            client.sendall(head.encode() + data)
            parts = []
            while part := client.recv(65536):
                parts.append(part)
        top, _, rest = b"".join(parts).partition(b"\r\n\r\n")
        return int(top.split()[1]), rest

    def clean_up(self) -> list[str]:
        """End whatever is left, and say what was."""
        left = []
        if self.process is not None and self.process.poll() is None:
            self.send(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                left.append(f"the daemon did not end on SIGTERM\n{self.daemon_log()[-4000:]}")
                self.process.kill()
                self.process.wait(10)
        strays = self.members()
        for process in strays:
            left.append(f"stray {process.pid} {comm(process.pid)}")
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(strays, timeout=5)
        return left


def comm(pid: int) -> str:
    """Return the kernel's name of a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextmanager
def running(folder: Path, engine: Mapping[str, object] | None = None, **top: object) -> Iterator[Rig]:
    """A started daemon that leaves nothing behind."""
    rig = Rig(folder, engine, **top)
    try:
        rig.start()
        yield rig
    finally:
        left = rig.clean_up()
    assert not left, left
