"""The outside observer, a process of its own: `python -m tests.chaos.observer FOLDER TOKEN PORT`.

Every 20 ms it reads the process table and asks the control socket, and ten times a second the engine's own `/health`;
it writes what it saw to stdout and judges nothing. It ends when its stdin does. FOLDER holds `control.sock` and
`daemon.pid`, which whoever started the daemon wrote there: nothing is taken from the daemon.
"""

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos import sight
from tests.chaos.table import Table, at_once, engines, stalled, starved, stat

PACE = 0.02
_HEALTH_PACE = 0.1
_PATIENCE = 3.0
"""Seconds after which a question without an answer is given up."""
_HEALTH_PATIENCE = 0.5


class Observer:
    """Three threads that look, each at its own thing, and one line of output for each look."""

    def __init__(self, folder: Path, token: str, port: int) -> None:
        self._socket = str(folder / "control.sock")
        self._pid_file = folder / "daemon.pid"
        self._table = Table(token)
        self._port = port
        self._lock = threading.Lock()

    def run(self) -> None:
        """Look until stdin ends."""
        for pace, look in ((PACE, self._processes), (PACE, self._question), (_HEALTH_PACE, self._health)):
            threading.Thread(target=self._for_ever, args=(pace, look), daemon=True).start()
        while os.read(0, 4096):
            pass

    def _for_ever(self, pace: float, look: Callable[[float], sight.Sight]) -> None:
        planned = time.monotonic()
        while True:
            line = sight.write(look(time.monotonic() - planned))
            with self._lock:
                os.write(1, line.encode())
            now = time.monotonic()
            planned = max(planned + pace, now)
            time.sleep(planned - now)

    def _daemon(self) -> int:
        try:
            return int(self._pid_file.read_text())
        except (OSError, ValueError):
            return 0

    def _processes(self, late: float) -> sight.Look:
        at = time.monotonic()
        members = self._table.look()
        found = stat(self._daemon())
        letter = found[0] if found is not None and found[0] not in "ZXx" else ""
        frozen = any(entry.letter in "Tt" for entry in members.values())
        return sight.Look(at, engines(members), at_once(members), letter, late, frozen)

    def _question(self, _: float) -> sight.Answer:
        daemon = self._daemon()
        before, own, pressure = starved(daemon), starved(os.getpid()), stalled()
        told: dict[str, Any] = {}
        code, error, sent = 0, "", time.monotonic()
        try:
            code, body = self._ask(sent + _PATIENCE)
            if code == 200:
                told = json.loads(body)
        except (OSError, ValueError, IndexError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        at = time.monotonic()
        waited = _waited(before, starved(daemon), str(daemon)) + _waited(own, starved(os.getpid()), "")
        state, generation, pid = told.get("state", ""), told.get("generation", 0), told.get("pid") or 0
        pressed = (stalled() - pressure) / (at - sent)
        return sight.Answer(sent, at, code, error, state, generation, pid, waited, min(1.0, pressed))

    def _ask(self, deadline: float) -> tuple[int, bytes]:
        with socket.socket(socket.AF_UNIX) as client:
            # The kernel's own timeout: with Python's, a connect to a full backlog fails at once instead of waiting.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_PATIENCE), 0))
            client.connect(self._socket)
            # A daemon without room answers before it is asked, and closes: the answer is there to be read.
            with suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(b"GET /v1/status HTTP/1.0\r\nHost: observer\r\n\r\n")
            return _receive(client, deadline)

    def _health(self, _: float) -> sight.Health:
        at = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", self._port), _HEALTH_PATIENCE) as client:
                client.sendall(b"GET /health HTTP/1.0\r\nHost: observer\r\n\r\n")
                code, _body = _receive(client, at + _HEALTH_PATIENCE)
        except TimeoutError:
            return sight.Health(at, "late")
        except (OSError, ValueError, IndexError):
            return sight.Health(at, "dead")
        return sight.Health(at, "ok" if 200 <= code < 300 else "dead")


def _receive(client: socket.socket, deadline: float) -> tuple[int, bytes]:
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no complete answer in time")
        client.settimeout(left)
        part = client.recv(65536)
        if not part:
            break
        data += part
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def _waited(before: dict[str, float], after: dict[str, float], main: str) -> float:
    """Return how long an answer can have been held up by threads that got no processor.

    The thread that answers is one of them; another may hold the interpreter's lock while it waits, and counts once.
    """
    grown = {thread: waits - before.get(thread, waits) for thread, waits in after.items()}
    own = grown.pop(main, 0.0)
    return own + max(grown.values(), default=0.0)


if __name__ == "__main__":
    Observer(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])).run()
