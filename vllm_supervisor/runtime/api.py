"""The control routes: a request becomes a question to the snapshot, or an event for the loop."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol

from vllm_supervisor.domain.messages import Event, RestartAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import Cause, Phase
from vllm_supervisor.errors import ConfigError
from vllm_supervisor.ports import Note, Request, Response
from vllm_supervisor.runtime.recorder import Recorder
from vllm_supervisor.runtime.reload import ReloadAsked, Reloaded, ReloadRefusedError
from vllm_supervisor.runtime.supervisor import Supervisor

PLAIN = "text/plain; charset=utf-8"
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
JSON_LINES = "application/jsonl"

RELOAD = "/v1/reload"

MAX_TAIL = 100_000
MAX_WINDOW = 3600.0
"""Seconds."""
MAX_CONCURRENCY = 1e6


class LogReader(Protocol):
    """Reads vLLM's log for `GET /v1/logs`."""

    async def why_unread(self) -> str | None:
        """Say why the log cannot be read, "why; what to do"; None where it can be, or is not there yet."""
        ...

    async def tail(self, lines: int) -> bytes:
        """Return the last `lines` lines; empty when there is no log yet."""
        ...

    def follow(self, lines: int) -> AsyncIterator[bytes]:
        """Yield the last `lines` lines and then what is appended, across rotation, without end."""
        ...


class BadRequestError(Exception):
    """Raised when a request does not make sense; `message` is for the client."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def error(status: int, code: str, message: str) -> Response:
    """Return an error in the one shape that all of them have."""
    return _json({"error": {"code": code, "message": message}}, status)


def _json(value: object, status: int = 200) -> Response:
    return Response(status, json.dumps(value).encode() + b"\n")


class Api:
    """Routes of the control socket (`control`) and of the metrics listener (`public`)."""

    def __init__(
        self,
        supervisor: Supervisor,
        recorder: Recorder,
        logs: LogReader,
        exposition: Callable[[], bytes],
        reload: Callable[[ReloadAsked], Awaitable[Reloaded]],
        advise: Callable[[float | None, int | None], Awaitable[dict[str, object]]] | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._recorder = recorder
        self._logs = logs
        self._exposition = exposition
        self._reload = reload
        self._advise = advise
        self._admins: frozenset[int] = frozenset()
        self._gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/v1/status": self._status,
            "/v1/models": self._models,
            "/v1/events": self._events,
            "/v1/logs": self._log,
            "/v1/advice": self._advice,
        }
        self._public: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
        }
        self._posts = frozenset({"/v1/start", "/v1/stop", "/v1/restart", RELOAD})

    def admit(self, admins: Iterable[int]) -> None:
        """Let these uids change state from now on, and no others."""
        self._admins = frozenset(admins)

    def route(self, path: str) -> str:
        """Return the label that stands for `path` in metrics: one of a fixed few."""
        return path if path in self._gets or path in self._public or path in self._posts else "other"

    async def control(self, request: Request) -> Response:
        """Answer on the control socket."""
        if request.path in self._posts:
            if request.method != "POST":
                return error(405, "method_not_allowed", f"{request.path} takes POST")
            return await self._change(request)
        return await self._read(request, self._gets | self._public)

    async def public(self, request: Request) -> Response:
        """Answer on the metrics listener, where nothing can be changed and little be seen."""
        return await self._read(request, self._public)

    async def _read(self, request: Request, routes: dict[str, Callable[[Request], Awaitable[Response]]]) -> Response:
        route = routes.get(request.path)
        if route is None:
            return error(404, "not_found", f"there is no {request.path} here")
        if request.method not in ("GET", "HEAD"):
            return error(405, "method_not_allowed", f"{request.path} takes GET")
        try:
            return await route(request)
        except BadRequestError as bad:
            return error(400, "bad_request", bad.message)

    # --- questions

    async def _status(self, _: Request) -> Response:
        return _json(self._supervisor.status())

    async def _models(self, _: Request) -> Response:
        models = [{"name": name, "served": served} for name, served in self._supervisor.models()]
        return _json({"models": models})

    async def _events(self, request: Request) -> Response:
        follow = _flag(request, "follow")
        return Response(200, self._recorder.follow() if follow else self._recorder.entries(), JSON_LINES)

    async def _log(self, request: Request) -> Response:
        text = request.query.get("tail", "100")
        if not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_TAIL)) or int(text) > MAX_TAIL:
            raise BadRequestError(f"tail={text[:40]!r} is not a number of lines from 0 to {MAX_TAIL}")
        lines, follows = int(text), _flag(request, "follow")
        why = await self._logs.why_unread()
        if why is not None:
            return error(409, "log_not_read", why)
        if follows:
            return Response(200, self._logs.follow(lines), PLAIN)
        return Response(200, await self._logs.tail(lines), PLAIN)

    async def _advice(self, request: Request) -> Response:
        window = _number(request, "window", MAX_WINDOW)
        concurrency = _number(request, "concurrency", MAX_CONCURRENCY)
        if self._supervisor.state.phase is not Phase.READY:
            state = self._supervisor.state.phase.value
            return _json({"advice": None, "why": f"the engine is not ready but {state}", "now": None})
        if self._advise is None:
            return _json({"advice": None, "why": "this daemon does not look at the figures", "now": None})
        told = await self._advise(window, None if concurrency is None else round(concurrency))
        return _json(told)

    async def _metrics(self, _: Request) -> Response:
        return Response(200, self._exposition(), EXPOSITION)

    async def _livez(self, _: Request) -> Response:
        return Response(200, b"ok\n", PLAIN)

    async def _readyz(self, _: Request) -> Response:
        phase = self._supervisor.state.phase
        return Response(200 if phase is Phase.READY else 503, f"{phase.value}\n".encode(), PLAIN)

    # --- changes

    async def _change(self, request: Request) -> Response:
        peer = request.peer
        if peer is None or peer.uid not in self._admins:
            who = "unknown" if peer is None else f"uid {peer.uid}"
            message = f"{who} may not change the state; control.admins names those who may"
            return error(403, "forbidden", message)
        try:
            wish, reason = _parse_reload(request) if request.path == RELOAD else _parse_change(request)
        except BadRequestError as bad:
            return error(400, "bad_request", bad.message)
        verb = request.path.rpartition("/")[2]
        fields = {"verb": verb, "uid": peer.uid, "pid": peer.pid, "reason": reason}
        if isinstance(wish, ReloadAsked):
            if not wish.dry_run:
                self._supervisor.post(Note("control_request", fields=fields))
            return await self._reloaded(wish)
        self._supervisor.post(Note("control_request", fields=fields))
        refused = await self._supervisor.ask(wish)
        if refused is not None:
            return error(409, "conflict", refused)
        return _json(self._supervisor.status(), 202)

    async def _reloaded(self, wish: ReloadAsked) -> Response:
        """Reload, or say what a reload would change. What is wrong with the file is answered a line each."""
        try:
            done = await self._reload(wish)
        except ConfigError as bad:
            return error(409, "bad_configuration", str(bad))
        except ReloadRefusedError as refused:
            return error(409, "conflict", refused.why)
        return _json(self._supervisor.status() | {"reload": done.as_json()}, 200 if wish.dry_run else 202)


def _flag(request: Request, name: str) -> bool:
    value = request.query.get(name, "0")
    if value not in ("0", "1"):
        raise BadRequestError(f"{name}={value[:40]!r} is neither 0 nor 1")
    return value == "1"


def _number(request: Request, name: str, most: float) -> float | None:
    """Return the number above 0 that the query has under `name`, None where it has none. Raises BadRequestError."""
    text = request.query.get(name)
    if text is None:
        return None
    try:
        value = float(text[:40])
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise BadRequestError(f"{name}={text[:40]!r} is not a number above 0 and up to {most:g}")
    return value


def _parse_change(request: Request) -> tuple[Event, str | None]:
    """Return the event that the request asks for and the operator's reason. Raises BadRequestError."""
    body = _object(request, ("reason", "drain"))
    drain, reason = _switch(body, "drain", default=True), _reason(body)
    match request.path:
        case "/v1/start":
            return StartAsked(), reason
        case "/v1/stop":
            return StopAsked(drain=drain), reason
        case _:
            return RestartAsked(Cause.REQUESTED, drain=drain), reason


def _parse_reload(request: Request) -> tuple[ReloadAsked, str | None]:
    """Return the reload that the request asks for and the operator's reason. Raises BadRequestError."""
    body = _object(request, ("reason", "drain", "restart_engine", "dry_run", "values"))
    values, dry_run = body.get("values"), _switch(body, "dry_run", default=False)
    if values is not None and not (
        dry_run and isinstance(values, dict) and all(isinstance(digest, str) for digest in values.values())
    ):
        raise BadRequestError("values is no object of texts, or this is no dry run")
    restart, drain = _switch(body, "restart_engine", default=False), _switch(body, "drain", default=True)
    return ReloadAsked(restart, drain, dry_run, values), _reason(body)


def _object(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
    try:
        body = json.loads(request.body or b"{}")
    except (ValueError, RecursionError) as bad:
        raise BadRequestError("the body is not JSON") from bad
    if not isinstance(body, dict):
        raise BadRequestError("the body is not a JSON object")
    unknown = sorted(set(body) - set(known))
    if unknown:
        told = f"{', '.join(known[:-1])} and {known[-1]}"
        raise BadRequestError(f"unknown key {unknown[0]!r}; known are {told}")
    return body


def _switch(body: dict[str, Any], name: str, *, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} is neither true nor false")
    return value


def _reason(body: dict[str, Any]) -> str | None:
    reason = body.get("reason")
    if reason is not None and (not isinstance(reason, str) or len(reason) > 1000):  # noqa: PLR2004 -- fits any sentence
        raise BadRequestError("reason is not a text of at most 1000 characters")
    return reason
