"""Nasty peers, written by hand: what a client must survive and how it is to be judged."""

import asyncio
import errno
import gc
import json
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import httpx
import pytest
import uvloop

from tests.eventually import aeventually
from tests.proc import open_files
from vllm_supervisor.adapters.engine_http import HttpEngineClient
from vllm_supervisor.adapters.engine_http.exchange import classify
from vllm_supervisor.domain.engine import Warmup
from vllm_supervisor.domain.model import Outcome
from vllm_supervisor.domain.secret import Secret
from vllm_supervisor.domain.spec import EngineSpec

KEY = "sesame-4711"
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run[Any]]:
    """Run a coroutine on each of the loops that the daemon may use; they report failures differently."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


def spec(url: str, *, key: str | None = KEY, timeout: float = 10.0, health_path: str = "/health") -> EngineSpec:
    return EngineSpec(
        base_url=url,
        health_path=health_path,
        model="tiny",
        aliases={},
        api_key=Secret(key) if key else None,
        warmup=True,
        probe_timeout=timeout,
        concurrency=1,
        timeout=600.0,
    )


@asynccontextmanager
async def peer(script: Script, **options: Any) -> AsyncIterator[HttpEngineClient]:
    """Serve `script` to each connection, and yield a client of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await script(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpEngineClient(spec(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", **options))
    try:
        yield client
    finally:
        await client.aclose()
        server.close()


def answering(status: str, body: bytes = b"", headers: str = "") -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)
        await writer.drain()

    return script


def sending(raw: bytes) -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return script


async def resets(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


async def resets_in_mid_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    await writer.drain()
    await resets(reader, writer)


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def trickles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not reader.at_eof():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def trickles_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not reader.at_eof():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize(
    ("script", "outcome", "detail"),
    [
        pytest.param(answering("200 OK"), Outcome.OK, "", id="200"),
        pytest.param(answering("204 No Content"), Outcome.OK, "", id="204"),
        pytest.param(answering("503 Service Unavailable"), Outcome.ERROR, "HTTP 503", id="dead engine, 0.11 and later"),
        pytest.param(answering("500 Oops", b"broken\n\x1b[31m"), Outcome.ERROR, "HTTP 500: broken [31m", id="500"),
        pytest.param(answering("302 Found", b"", "Location: /ok\r\n"), Outcome.ERROR, "HTTP 302", id="redirect"),
        pytest.param(sending(b""), Outcome.REFUSED, "Server disconnected", id="closed without an answer"),
        pytest.param(sending(b"HTTP/1.1 200 OK\r\nX"), Outcome.REFUSED, "Server disconnected", id="half a header"),
        pytest.param(resets, Outcome.REFUSED, "", id="reset"),
        pytest.param(resets_in_mid_answer, Outcome.REFUSED, "", id="reset in mid answer"),
        pytest.param(
            sending(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), Outcome.REFUSED, "closed", id="cut short"
        ),
        pytest.param(sending(b"SSH-2.0-OpenSSH_9\r\n\r\n"), Outcome.ERROR, "", id="another protocol"),
        pytest.param(sending(bytes(range(256)) * 16 + b"\r\n\r\n"), Outcome.ERROR, "", id="noise"),
        pytest.param(
            sending(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000 + b"\r\n\r\n"), Outcome.ERROR, "", id="huge header"
        ),
        pytest.param(endless, Outcome.OK, "", id="endless body after 200"),
    ],
)
def test_health_outcomes(run: Run[None], script: Script, outcome: Outcome, detail: str) -> None:
    """Each way to answer, or not to, gives the outcome that the machine reasons with, and never an exception."""

    async def body() -> None:
        async with peer(script) as client:
            result = await client.health()
        assert result.outcome is outcome, result
        assert detail in result.detail
        assert 0 <= result.latency < 10

    run(body())


@pytest.mark.parametrize("script", [silent, trickles, trickles_headers])
def test_probe_ends_at_its_timeout(run: Run[None], script: Script) -> None:
    """Silence, and an answer that trickles in for ever, both end when the probe's timeout has passed."""

    async def body() -> None:
        async with peer(script, timeout=0.2) as client:
            with anyio.fail_after(5):
                result = await client.health()
                models = await client.models()
                metrics = await client.metrics()
        assert result.outcome is Outcome.TIMEOUT
        assert result.latency >= 0.19
        assert models.names is None
        assert models.status is None
        assert metrics is None

    run(body())


def test_nothing_listens(run: Run[None]) -> None:
    """A closed port is refused, at once; the warm-up has to ask again."""

    async def body() -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            client = HttpEngineClient(spec(f"http://127.0.0.1:{sock.getsockname()[1]}"))
            result = await client.health()
            warmup = await client.warm_up()
            await client.aclose()
        assert (result.outcome, result.detail, result.status) == (Outcome.REFUSED, "Connection refused", None)
        assert warmup.result is Warmup.NOT_YET
        assert await client.version() is None

    run(body())


def test_out_of_descriptors_says_nothing_about_the_engine(run: Run[None]) -> None:
    """A probe that our own side could not make is unknown, not a failure of the engine."""

    async def body() -> None:
        async with peer(answering("200 OK")) as client:
            assert (await client.health()).outcome is Outcome.OK
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            low = os.open("/dev/null", os.O_RDONLY)
            os.close(low)
            resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
            try:
                result = await client.health()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (result.outcome, result.detail) == (Outcome.UNKNOWN, "Too many open files")
            assert (await client.health()).outcome is Outcome.OK

    run(body())


def _raised_from(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        pytest.param(OSError(number, os.strerror(number)), Outcome.UNKNOWN, id=errno.errorcode[number])
        for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.ENETUNREACH)
    ]
    + [
        pytest.param(OSError(errno.ECONNREFUSED, ""), Outcome.REFUSED, id="ECONNREFUSED"),
        pytest.param(OSError(errno.ETIMEDOUT, ""), Outcome.TIMEOUT, id="ETIMEDOUT"),
        pytest.param(MemoryError(), Outcome.UNKNOWN, id="out of memory"),
        pytest.param(socket.gaierror(socket.EAI_AGAIN, "again"), Outcome.UNKNOWN, id="name lookup"),
        pytest.param(ssl.SSLError(1, "wrong version"), Outcome.ERROR, id="no TLS there"),
        pytest.param(ExceptionGroup("both", [OSError(errno.ECONNREFUSED, "")]), Outcome.REFUSED, id="two addresses"),
    ],
)
def test_causes_are_found_below_the_library(error: BaseException, outcome: Outcome) -> None:
    """The kernel's word decides, however many layers of exceptions it is wrapped in."""
    assert (
        classify(_raised_from(httpx.ConnectError("wrapped"), _raised_from(OSError("all failed"), error)))[0] is outcome
    )


def test_unforeseen_errors_do_not_quote_the_request(run: Run[None]) -> None:
    """A key that is no header value is not sent, and not shown in the reason why."""

    async def body() -> None:
        async with peer(answering("200 OK"), key="bad\nkey") as client:
            models = await client.models()
            warmup = await client.warm_up()
        assert models.names is None
        assert "bad" not in models.detail
        assert warmup.result is Warmup.NOT_YET
        assert "bad" not in warmup.detail

    run(body())


def test_connections_are_not_reused_and_none_is_left(run: Run[None]) -> None:
    """Each request has its own connection; answered, cut short or cancelled, none stays open."""
    accepted = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await (answering("200 OK"), endless, silent)[accepted % 3](reader, writer)

    async def body() -> None:
        async with peer(script, timeout=0.3) as client:
            before = open_files()
            for _ in range(3):
                await client.health()
            assert accepted == 3
            for _ in range(6):
                with anyio.move_on_after(0.05):
                    await client.health()

            async def all_closed() -> bool:
                return open_files() <= before

            await aeventually(all_closed)

    run(body())
    gc.collect()  # an unfinished generator or transport would warn here, and warnings are errors


def _json(status: str, value: object) -> Script:
    return answering(status, json.dumps(value).encode(), "Content-Type: application/json\r\n")


@pytest.mark.parametrize(
    ("script", "names", "length", "status"),
    [
        pytest.param(
            _json("200 OK", {"data": [{"id": "tiny", "max_model_len": 1024}, {"id": "lora"}]}),
            ("tiny", "lora"),
            1024,
            200,
            id="as vLLM says it",
        ),
        pytest.param(_json("200 OK", {"data": []}), (), None, 200, id="none"),
        pytest.param(_json("200 OK", {"data": [1, {"id": 2}, {"id": "x"}, {}]}), ("x",), None, 200, id="odd entries"),
        pytest.param(_json("200 OK", {"data": "x"}), None, None, 200, id="no list"),
        pytest.param(_json("200 OK", [1]), None, None, 200, id="no object"),
        pytest.param(answering("200 OK", b"<html>"), None, None, 200, id="no JSON"),
        pytest.param(answering("200 OK", b"[" * 500_000), None, None, 200, id="deep JSON"),
        pytest.param(answering("200 OK", b'"' + b"x" * (2 << 20) + b'"'), None, None, 200, id="too long"),
        pytest.param(_json("401 Unauthorized", {"error": "Unauthorized"}), None, None, 401, id="wrong key"),
        pytest.param(_json("403 Forbidden", {}), None, None, 403, id="forbidden"),
        pytest.param(_json("503 No", {"detail": "later"}), None, None, 503, id="503"),
    ],
)
def test_models(run: Run[None], script: Script, names: tuple[str, ...] | None, length: int | None, status: int) -> None:
    """Names are read from a proper list only; otherwise the reason is told."""

    async def body() -> None:
        async with peer(script) as client:
            models = await client.models()
        assert (models.names, models.max_model_len, models.status) == (names, length, status)
        assert bool(models.detail) == (names is None)
        if status in (401, 403):
            assert "api_key" in models.detail

    run(body())


class Engine:
    """Answers by path, and keeps what it was asked."""

    def __init__(self, answers: dict[str, Script]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, str], Any]] = []

    @asynccontextmanager
    async def client(
        self, *, key: str | None = KEY, rungs: tuple[str, ...] | None = None
    ) -> AsyncIterator[HttpEngineClient]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        where = spec(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", key=key)
        client = HttpEngineClient(where, rungs) if rungs else HttpEngineClient(where)
        try:
            yield client
        finally:
            await client.aclose()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        length = int(headers.get("content-length", "0"))
        payload = json.loads(await reader.readexactly(length)) if length else None
        path = head.split(" ")[1]
        self.asked.append((path, headers, payload))
        await self.answers.get(path, _json("404 Not Found", {"detail": "Not Found"}))(reader, writer)
        writer.close()


CHOICE = _json("200 OK", {"choices": [{"text": ""}]})
NO = _json("400 Bad Request", {"error": {"message": "The model does not support it"}})
DATA = _json("200 OK", {"data": [{"embedding": [0.0]}]})
COMPLETIONS, CHAT, EMBEDDINGS, POOLING = "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/pooling"


@pytest.mark.parametrize(
    ("answers", "result", "rung", "asked"),
    [
        pytest.param({COMPLETIONS: CHOICE}, Warmup.SERVED, "completions", 1, id="completions"),
        pytest.param({COMPLETIONS: NO, CHAT: CHOICE}, Warmup.SERVED, "chat", 2, id="chat"),
        pytest.param({EMBEDDINGS: DATA}, Warmup.SERVED, "embeddings", 3, id="embeddings"),
        pytest.param(
            {
                COMPLETIONS: _json("501 No", {}),
                CHAT: _json("405 No", {}),
                EMBEDDINGS: _json("422 No", {}),
                POOLING: DATA,
            },
            Warmup.SERVED,
            "pooling",
            4,
            id="pooling, after each kind of refusal",
        ),
        pytest.param({}, Warmup.UNSUPPORTED, None, 4, id="nothing applies"),
        pytest.param({COMPLETIONS: _json("401 No", {})}, Warmup.UNAUTHORIZED, "completions", 1, id="401"),
        pytest.param({CHAT: _json("403 No", {})}, Warmup.UNAUTHORIZED, "chat", 2, id="403"),
        pytest.param({COMPLETIONS: _json("500 No", {})}, Warmup.NOT_YET, "completions", 1, id="500"),
        pytest.param({COMPLETIONS: _json("503 No", {})}, Warmup.NOT_YET, "completions", 1, id="503"),
        pytest.param({COMPLETIONS: _json("429 No", {})}, Warmup.NOT_YET, "completions", 1, id="429"),
        pytest.param({COMPLETIONS: _json("302 No", {})}, Warmup.NOT_YET, "completions", 1, id="redirect"),
        pytest.param({COMPLETIONS: _json("200 OK", {"choices": []})}, Warmup.NOT_YET, "completions", 1, id="no choice"),
        pytest.param({COMPLETIONS: answering("200 OK", b"hello")}, Warmup.NOT_YET, "completions", 1, id="garbage"),
        pytest.param({COMPLETIONS: resets}, Warmup.NOT_YET, "completions", 1, id="reset"),
        pytest.param({COMPLETIONS: sending(b"")}, Warmup.NOT_YET, "completions", 1, id="closed"),
    ],
)
def test_warm_up_ladder(
    run: Run[None], answers: dict[str, Script], result: Warmup, rung: str | None, asked: int
) -> None:
    """The first rung that applies decides; a refusal as not applicable goes on, anything else ends the attempt."""
    engine = Engine(answers)

    async def body() -> None:
        async with engine.client() as client:
            warmup = await client.warm_up()
        assert (warmup.result, warmup.rung) == (result, rung)
        assert bool(warmup.detail) == (result is not Warmup.SERVED)

    run(body())
    assert len(engine.asked) == asked
    for _, headers, payload in engine.asked:
        assert headers["authorization"] == f"Bearer {KEY}"
        assert payload["model"] == "tiny"
        assert payload.get("max_tokens", 1) == 1


def test_unsupported_lists_what_each_rung_said(run: Run[None]) -> None:
    """The event that warm-up is unsupported has the answers in it."""

    async def body() -> None:
        async with Engine({COMPLETIONS: NO}).client() as client:
            detail = (await client.warm_up()).detail
        assert detail == (
            "completions: HTTP 400: The model does not support it; chat: HTTP 404: Not Found; "
            "embeddings: HTTP 404: Not Found; pooling: HTTP 404: Not Found"
        )

    run(body())


def test_rungs_can_be_chosen(run: Run[None]) -> None:
    """A configured mode asks nothing but its own endpoint."""
    engine = Engine({})

    async def body() -> None:
        async with engine.client(rungs=("pooling",)) as client:
            assert (await client.warm_up()).result is Warmup.UNSUPPORTED

    run(body())
    assert [path for path, _, _ in engine.asked] == [POOLING]


def test_warm_up_waits_for_a_slow_token_and_can_be_cancelled(run: Run[None]) -> None:
    """The first token may take longer than a probe; the caller decides when to give up."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)
        await CHOICE(reader, writer)

    async def body() -> None:
        async with peer(slow, timeout=0.3) as client:
            assert (await client.warm_up()).result is Warmup.SERVED
        async with peer(silent) as client:
            with anyio.move_on_after(0.1) as scope:
                await client.warm_up()
            assert scope.cancelled_caught

    run(body())


def test_key_goes_only_where_it_is_asked_for_and_comes_back_masked(run: Run[None]) -> None:
    """Health, metrics and version are open in vLLM; an answer that echoes the key does not bring it into a log."""
    engine = Engine({"/v1/models": _json("500 No", {"message": f"bad Bearer {KEY} given"})})

    async def body() -> None:
        async with engine.client() as client:
            await client.health()
            await client.metrics()
            await client.version()
            models = await client.models()
        assert models.detail == "HTTP 500: bad Bearer *** given"

    run(body())
    keyed = {path for path, headers, _ in engine.asked if "authorization" in headers}
    assert keyed == {"/v1/models"}


def test_metrics_and_version(run: Run[None]) -> None:
    """Figures and the version are read; where the engine does not say, the answer is None."""

    async def body() -> None:
        figures = answering("200 OK", b'vllm:num_requests_running{engine="0"} 3\nbad \xff line\n')
        async with Engine({"/metrics": figures, "/version": _json("200 OK", {"version": "0.32.0"})}).client() as client:
            metrics = await client.metrics()
            assert metrics is not None
            assert metrics.running == 3
            assert await client.version() == "0.32.0"
        async with Engine({"/version": answering("200 OK", b'{"version": 3}')}).client() as client:
            assert await client.metrics() is None
            assert await client.version() is None
        async with peer(endless) as client:
            assert await client.metrics() is None, "half of the ranks would be summed up wrongly"

    run(body())


def test_tls_is_not_verified_and_its_absence_is_an_error(run: Run[None]) -> None:
    """https to a peer that speaks none is an error, not a refusal: something lives there."""

    async def body() -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(64)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(script, "127.0.0.1", 0)
        client = HttpEngineClient(spec(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        result = await client.health()
        await client.aclose()
        server.close()
        assert result.outcome is Outcome.ERROR, result
        assert "TLS" in result.detail

    run(body())
