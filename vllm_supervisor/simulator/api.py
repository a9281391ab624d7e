"""What the API server answers: routes, authorisation, generation, and the faults that show over HTTP."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import NamedTuple

from vllm_supervisor.simulator import answers
from vllm_supervisor.simulator.answers import Body, RefusalError, dump
from vllm_supervisor.simulator.client import EngineClient, EngineDeadError, Ticket, Token
from vllm_supervisor.simulator.engine import Settings
from vllm_supervisor.simulator.metrics import Metrics
from vllm_supervisor.simulator.web import ClientGoneError, Exchange

VERSION = "0.32.0"
_SERVER_ERROR = 500
_LOOK = 0.05
"""Seconds between two looks whether the client is still there."""

QUIET = frozenset({"/health", "/ping", "/load", "/version", "/metrics", "/metrics/"})
"""Paths that vLLM leaves out of its own request counters."""


class Route(NamedTuple):
    """Who answers, for which method."""

    method: str
    answer: Callable[[Exchange], None]


class Generation(NamedTuple):
    """A request to generate, checked. `prompts` are lengths in tokens, one a choice."""

    name: str
    prompts: list[int]
    limit: int
    reason: str
    chat: bool
    show_usage: bool


class Api:
    """Handles exchanges, each in its connection's thread. `on_engine_error` is called when one met a dead engine."""

    def __init__(
        self, settings: Settings, client: EngineClient, metrics: Metrics, on_engine_error: Callable[[], None]
    ) -> None:
        self._args, self._knobs, environ = settings
        self._client = client
        self._metrics = metrics
        self._on_engine_error = on_engine_error
        self._created = int(time.time())
        self._ready_at = time.monotonic()
        self._load = 0
        self._lock = threading.Lock()
        self.draining = False
        """Set when a shutdown with a timeout began: new requests are answered 500."""
        self._routes = self._table()
        if environ.get("VLLM_SERVER_DEV_MODE") == "1" and self._args.given.get("enable_sleep_mode"):
            self._routes |= self._sleep_table()

    def _table(self) -> dict[str, tuple[Route, ...]]:
        health = Route("GET", self._health)
        table: dict[str, tuple[Route, ...]] = {
            "/health": (health,),
            "/ping": (health, Route("POST", self._health)),
            "/load": (Route("GET", lambda e: e.reply(200, dump({"server_load": self._load}))),),
            "/version": (Route("GET", lambda e: e.reply(200, dump({"version": VERSION}))),),
            "/v1/models": (Route("GET", lambda e: e.reply(200, dump(answers.models(self._args, self._created)))),),
        }
        if not self._knobs.no_metrics:
            table["/metrics"] = table["/metrics/"] = (Route("GET", self._exposition),)
        if self._args.pooling:
            table["/v1/embeddings"] = (Route("POST", lambda e: self._pool(e, "embedding")),)
            table["/pooling"] = (Route("POST", lambda e: self._pool(e, "pooling")),)
        else:
            table["/v1/completions"] = (Route("POST", lambda e: self._generate(e, chat=False)),)
            table["/v1/chat/completions"] = (Route("POST", lambda e: self._generate(e, chat=True)),)
        return table

    def _sleep_table(self) -> dict[str, tuple[Route, ...]]:
        return {
            "/sleep": (Route("POST", lambda e: self._sleep(e, asleep=True)),),
            "/wake_up": (Route("POST", lambda e: self._sleep(e, asleep=False)),),
            "/is_sleeping": (Route("GET", lambda e: e.reply(200, dump({"is_sleeping": self._metrics.asleep}))),),
        }

    def _sleep(self, exchange: Exchange, *, asleep: bool) -> None:
        """Fall asleep at level 1, or wake up. Requests that come meanwhile wait, as they do in a paused scheduler."""
        self._metrics.asleep = asleep
        exchange.reply(200, dump({"status": "sleeping" if asleep else "awake"}))

    def handle(self, exchange: Exchange) -> None:
        """Answer one request. Raises ClientGoneError."""
        routes = self._routes.get(exchange.path, ())
        route = next((r for r in routes if r.method == exchange.method), None)
        try:
            if not self._authorized(exchange):
                exchange.reply(401, dump({"error": "Unauthorized"}))
            elif route is not None:
                route.answer(exchange)
            elif routes:
                allow = ", ".join(r.method for r in routes)
                exchange.reply(405, dump({"detail": "Method Not Allowed"}), allow=allow)
            else:
                exchange.reply(404, dump({"detail": "Not Found"}))
        finally:
            if exchange.path not in QUIET and exchange.status is not None:
                self._metrics.answered(exchange.path if route else "none", exchange.method, exchange.status)

    def _authorized(self, exchange: Exchange) -> bool:
        # Only paths under /v1 are guarded (0.6 to 0.32): /health, /metrics and /pooling stay open.
        if not self._args.api_keys or not exchange.path.startswith("/v1") or exchange.method == "OPTIONS":
            return True
        scheme, _, key = exchange.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and key in self._args.api_keys

    def _fault(self, *, on: bool) -> bool:
        """Say whether a fault that is asked for holds now."""
        if not on or time.monotonic() < self._ready_at + self._knobs.fault_after:
            return False
        return self._knobs.fault_while is None or os.access(self._knobs.fault_while, os.F_OK)

    def _health(self, exchange: Exchange) -> None:
        knobs = self._knobs
        while self._fault(on=knobs.health_hang):
            if exchange.gone():
                raise ClientGoneError
            time.sleep(_LOOK)
        if self._fault(on=knobs.health_delay > 0):
            time.sleep(knobs.health_delay)
        if knobs.health_status is not None and self._fault(on=True):
            exchange.reply(knobs.health_status)
        else:
            exchange.reply(503 if self._client.dead else 200)

    def _exposition(self, exchange: Exchange) -> None:
        version = "0.0.4" if exchange.path.endswith("/") else "1.0.0"
        exchange.reply(200, self._metrics.render(), f"text/plain; version={version}; charset=utf-8")

    def _generate(self, exchange: Exchange, *, chat: bool) -> None:
        status = self._knobs.chat_status if chat else self._knobs.completions_status
        self._serve(exchange, status, lambda: self._generation(exchange, chat=chat))

    def _pool(self, exchange: Exchange, kind: str) -> None:
        self._serve(exchange, self._knobs.embeddings_status, lambda: self._vectors(exchange, kind))

    def _serve(self, exchange: Exchange, status: int | None, answer: Callable[[], None]) -> None:
        """Have `answer` answer, and turn what it raises into vLLM's answers. Raises ClientGoneError."""
        with self._lock:
            self._load += self._args.load_tracking
        try:
            self._admit(status)
            answer()
        except RefusalError as refusal:
            exchange.reply(refusal.status, dump(refusal.body))
        except EngineDeadError:
            if exchange.status is None:
                exchange.reply(500, dump(answers.engine_dead()))
            else:
                exchange.event(json.dumps(answers.engine_dead()))
                exchange.event("[DONE]")
                exchange.end_stream()
            self._on_engine_error()
        finally:
            with self._lock:
                self._load -= self._args.load_tracking

    def _admit(self, status: int | None) -> None:
        """Raise the RefusalError that stands in the way, if one does."""
        if status is not None and self._fault(on=True):
            kind = "InternalServerError" if status >= _SERVER_ERROR else "BadRequestError"
            raise RefusalError(status, f"simulated status {status}", kind)
        if self.draining:
            raise RefusalError(500, "cannot schedule new futures after shutdown", "InternalServerError")

    def _generation(self, exchange: Exchange, *, chat: bool) -> None:
        body = answers.parse(exchange.body)
        name = answers.check_model(body, self._args)
        prompts = [answers.chat_length(body.get("messages"))] if chat else answers.prompt_lengths(body.get("prompt"))
        # OpenAI's default for completions is 16 tokens; a chat goes on until the model ends it.
        default = self._knobs.answer_tokens if chat else min(16, self._knobs.answer_tokens)
        limit, reason = answers.limit(body, max(prompts), self._args, default)
        choices = [length for length in prompts for _ in range(max(1, int(body.get("n") or 1)))]
        options = body.get("stream_options")
        show = isinstance(options, dict) and bool(options.get("include_usage"))
        generation = Generation(name, choices, limit, reason, chat, show)
        if body.get("stream"):
            self._stream(exchange, generation)
        else:
            self._whole(exchange, generation)

    def _whole(self, exchange: Exchange, g: Generation) -> None:
        made = [0] * len(g.prompts)
        reasons = [g.reason] * len(g.prompts)
        for index, reason in self._tokens(exchange, g):
            made[index] += 1
            reasons[index] = reason or reasons[index]
        texts = [("".join(map(answers.word, range(n))), why) for n, why in zip(made, reasons, strict=True)]
        counts = answers.usage(sum(g.prompts), sum(made))
        exchange.reply(200, dump((answers.chat if g.chat else answers.completion)(g.name, texts, counts)))

    def _stream(self, exchange: Exchange, g: Generation) -> None:
        base: Body = {
            "id": answers.fresh_id("chatcmpl" if g.chat else "cmpl"),
            "object": "chat.completion.chunk" if g.chat else "text_completion",
            "created": int(time.time()),
            "model": g.name,
        }
        made = [0] * len(g.prompts)
        chunk = answers.chat_chunk if g.chat else answers.completion_chunk
        for index, reason in self._tokens(exchange, g):
            if exchange.status is None:
                exchange.stream()
                for event in answers.chat_opening(base, len(g.prompts)) if g.chat else ():
                    exchange.event(dump(event).decode())
            last = reason is not None and not g.show_usage
            exchange.event(dump(chunk(base, index, answers.word(made[index]), reason, last=last)).decode())
            made[index] += 1
        if g.show_usage:
            counts = answers.usage(sum(g.prompts), sum(made), details=False)
            summary = {**base, "choices": [], "usage": counts, "system_fingerprint": answers.FINGERPRINT}
            exchange.event(dump(summary).decode())
        exchange.event("[DONE]")
        exchange.end_stream()

    def _vectors(self, exchange: Exchange, kind: str) -> None:
        body = answers.parse(exchange.body)
        name = answers.check_model(body, self._args)
        lengths = answers.prompt_lengths(body.get("input"), "input")
        for _ in self._tokens(exchange, Generation(name, lengths, 1, "stop", chat=False, show_usage=False)):
            pass
        exchange.reply(200, dump(answers.vectors(name, kind, lengths)))

    def _tokens(self, exchange: Exchange, g: Generation) -> Iterator[Token]:
        """Yield tokens as the engine makes them, until every choice ended. Raises EngineDeadError, ClientGoneError."""
        queue: SimpleQueue[Token | None] = SimpleQueue()
        tickets: list[Ticket] = []
        while self._metrics.asleep:
            if exchange.gone():
                raise ClientGoneError
            time.sleep(_LOOK)
        try:
            for index, prompt in enumerate(g.prompts):
                tickets.append(self._client.submit(prompt, g.limit, g.reason, queue, index))
            left = len(tickets)
            while left:
                try:
                    token = queue.get(timeout=_LOOK)
                except Empty:
                    if exchange.gone():
                        raise ClientGoneError from None
                    continue
                if token is None:
                    raise EngineDeadError
                left -= token[1] is not None
                yield token
        finally:
            # Whatever ended this early, a client that hung up for one, frees the engine of it.
            self._client.abort(tickets)
