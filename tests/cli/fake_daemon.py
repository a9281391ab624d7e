"""A daemon's control socket that answers from a script."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from tests.adapters.http1_lab import running
from vllm_supervisor.ports import Request, Response

READY: dict[str, Any] = {
    "version": "0.1.0",
    "state": "ready",
    "ready": True,
    "intent": "up",
    "generation": 3,
    "model": "openai/gpt-oss-20b",
    "revision": None,
    "base_url": "http://127.0.0.1:8000",
    "pid": 1234,
    "uptime_s": 7530.2,
    "phase": {"name": "ready", "progress": None, "detail": None, "eta_s": None},
    "restarts": {"total": 3, "by_reason": {"crash": 2, "requested": 1, "hang": 0}, "consecutive": 0},
    "next_start_in_s": None,
    "last_exit": {
        "code": None,
        "signal": 9,
        "at": "2026-01-01T00:00:00Z",
        "reason": "crash",
        "diagnosis": {"class": "oom", "summary": "out of memory", "action": "lower it"},
    },
    "load": {"running": 3, "waiting": 0, "kv_cache_usage": 0.123},
    "blocker": None,
    "fail_why": None,
}


def state(name: str, **changes: Any) -> dict[str, Any]:
    """Return a status in this state."""
    return {**READY, "state": name, "ready": name == "ready", **changes}


@dataclass
class FakeDaemon:
    """Answers each question for the status with the next of `statuses`; the last one stays."""

    path: str = ""
    statuses: list[dict[str, Any]] = field(default_factory=lambda: [READY])
    advice: dict[str, Any] = field(default_factory=lambda: {"advice": None, "why": "not yet", "now": None})
    refusal: Response | None = None
    delay: float = 0
    """Seconds before a POST is answered."""
    pieces: tuple[bytes, ...] = ()
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: Request) -> Response:
        """Answer as the script says."""
        self.requests.append((request.method, request.path, dict(request.query)))
        if self.refusal is not None and (request.method == "POST" or self.refusal.status >= 500):
            return self.refusal
        if request.method == "POST":
            await anyio.sleep(self.delay)
            self.bodies.append(json.loads(request.body))
            return Response(202, json.dumps(self.statuses[0]).encode())
        if request.path == "/v1/status":
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            return Response(200, json.dumps(status).encode())
        if request.path == "/v1/advice":
            return Response(200, json.dumps(self.advice).encode())
        return Response(200, self._stream() if request.query.get("follow") else b"".join(self.pieces), "text/plain")

    async def _stream(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


@contextlib.contextmanager
def fake_daemon(directory: Path) -> Iterator[FakeDaemon]:
    """Run one for as long as the block lasts."""
    daemon = FakeDaemon()
    with running(directory, daemon.handle) as lab:
        daemon.path = lab.path
        yield daemon
