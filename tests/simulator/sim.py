"""A running simulator, as a test sees it: launched, asked, signalled, and cleared away without trace."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.eventually import eventually
from tests.ports import free_port
from tests.proc import alive

LIFETIME = 60
"""SIM_MAX_SECONDS of every process: the last net."""


def status_field(pid: int, name: str) -> str:
    """Return a field of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(name + ":"))


class Answer:
    """What came back."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


class Sim:
    """One launch. `root` holds what it leaves; the environment carries no knobs but those given."""

    def __init__(self, root: Path, *flags: str, port: int | None = None, env: Mapping[str, str] | None = None) -> None:
        self.port = port or free_port()
        self.root = root
        self._out = root / "out.log"
        self._err = root / "err.log"
        base = {name: value for name, value in os.environ.items() if not name.startswith(("SIM_", "VLLM_", "SPT_"))}
        command = [sys.executable, "-m", "vllm_supervisor.simulator", "serve", "tiny", "--host", "127.0.0.1"]
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), *flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**base, "SIM_STATE_DIR": str(root), "SIM_MAX_SECONDS": str(LIFETIME), **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The leader."""
        return self.process.pid

    @property
    def out(self) -> str:
        """Everything on stdout so far."""
        return self._out.read_bytes().decode(errors="replace")

    @property
    def err(self) -> str:
        """Everything on stderr so far."""
        return self._err.read_bytes().decode(errors="replace")

    def members(self) -> dict[str, int]:
        """Every process of the launch that has come up, by name; the leader is `APIServer`."""
        try:
            lines = (self.root / "pids").read_text().splitlines()
        except FileNotFoundError:
            return {}
        return {name: int(pid) for pid, _, name in (line.partition(" ") for line in lines)}

    def member(self, name: str) -> int:
        """Return the pid of a member, waiting for it to come up."""
        return eventually(lambda: self.members().get(name), what=f"{name} in {self.members()}") or 0

    def survivors(self) -> list[str]:
        """Names of the members that run."""
        return [name for name, pid in self.members().items() if alive(pid)]

    def ready(self) -> "Sim":
        """Wait until /health is 200."""
        eventually(lambda: self.listening() and self.get("/health").status == 200, what=f"ready; {self.err}")
        return self

    def listening(self) -> bool:
        """Say whether a connection is accepted."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=10).close()
        except ConnectionRefusedError:
            return False
        return True

    def get(self, path: str, headers: Mapping[str, str] | None = None, timeout: float = 20) -> Answer:
        """Ask, on a new connection."""
        with self.open("GET", path, None, headers, timeout) as response:
            return Answer(response)

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None, timeout: float = 20) -> Answer:
        """Send JSON, on a new connection."""
        with self.open("POST", path, body, headers, timeout) as response:
            return Answer(response)

    def complete(self, max_tokens: int = 2, timeout: float = 20, **extra: object) -> Answer:
        """Ask for a completion."""
        return self.post("/v1/completions", {"prompt": "hi", "max_tokens": max_tokens, **extra}, timeout=timeout)

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 20,
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield the response with its body unread."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, data, dict(headers or {}))
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def metric(self, series: str) -> float:
        """Return the value of a series, summed over its labels."""
        lines = self.get("/metrics").body.decode().splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(series + "{")]
        assert values, f"{series} is not there"
        return sum(values)

    def kill(self, number: int = signal.SIGTERM) -> None:
        """Signal the leader alone."""
        os.kill(self.pid, number)

    def wait(self, within: float = 20) -> int:
        """Return the exit code, negative for a signal."""
        return self.process.wait(within)

    def gone(self) -> bool:
        """Say whether no member runs any more."""
        return not self.survivors()

    def clear(self) -> None:
        """Kill what runs and prove that nothing does."""
        if "COVERAGE_PROCESS_CONFIG" in os.environ and self.process.poll() is None:
            # What is killed leaves no figures of what it ran.
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(3)
        self.process.kill()
        self.process.wait(20)

        def kill_the_rest() -> bool:
            for pid in self.members().values():
                if alive(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            return self.gone()

        eventually(kill_the_rest, what="left behind by the test")
