"""Canaries and what is asked beside them, of nasty peers."""

import asyncio
from typing import Any

import anyio
import pytest

from tests.adapters.test_engine_http import Script, _json, answering, peer, resets, silent, spec, trickles
from vllm_supervisor.adapters.engine_http import HttpEngineClient
from vllm_supervisor.domain.engine import Warmup
from vllm_supervisor.domain.model import Outcome

TOKEN = {"choices": [{"text": "x"}]}


def _patience(script: Script) -> float:
    """Seconds to wait for an answer: few only for what has none, so that a busy machine is not taken for silence."""
    return 0.2 if script in (silent, trickles) else 30


@pytest.mark.parametrize(
    ("script", "outcome", "status"),
    [
        pytest.param(_json("200 OK", TOKEN), Outcome.OK, 200, id="a token"),
        pytest.param(_json("200 OK", {"choices": []}), Outcome.ERROR, 200, id="none"),
        pytest.param(answering("200 OK", b"<html>"), Outcome.ERROR, 200, id="another server"),
        pytest.param(_json("401 Unauthorized", {"error": "Unauthorized"}), Outcome.ERROR, 401, id="wrong key"),
        pytest.param(_json("503 Busy", {"error": {"message": "full"}}), Outcome.ERROR, 503, id="queue full"),
        pytest.param(resets, Outcome.REFUSED, None, id="reset"),
    ],
)
def test_only_a_token_is_proof(script: Script, outcome: Outcome, status: int | None) -> None:
    """Whatever else is answered keeps its status, by which the verdict tells a refusal from a full queue."""

    async def body() -> None:
        async with peer(script) as client:
            client._found = "completions"
            result = await client.canary()
        assert (result.outcome, result.status) == (outcome, status)

    asyncio.run(body())


def test_a_canary_has_no_time_limit_and_ends_when_cancelled() -> None:
    """The probe's timeout is not its own; when it is cancelled, the connection goes: vLLM then drops the request."""
    hung_up = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent(reader, writer)
        hung_up.set()

    async def body() -> None:
        async with peer(script, timeout=0.3) as client:
            client._found = "chat"
            with anyio.move_on_after(1) as limit:
                await client.canary()
            assert limit.cancelled_caught
            with anyio.fail_after(5):
                await hung_up.wait()

    asyncio.run(body())


def test_auto_keeps_to_the_rung_that_the_warm_up_found() -> None:
    """A model that only embeds is asked for embeddings, and nothing else; a named rank goes along."""
    asked: list[tuple[str, str]] = []

    async def body() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            rank = [line for line in head.splitlines() if line.lower().startswith("x-data-parallel-rank")]
            asked.append((path, rank[0].partition(": ")[2] if rank else ""))
            found = path == "/v1/embeddings"
            await _json("200 OK" if found else "404 Not Found", {"data": [{"embedding": [1]}]})(reader, writer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = HttpEngineClient(spec(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        assert (await client.warm_up()).result is Warmup.SERVED
        asked.clear()
        assert (await client.canary()).outcome is Outcome.OK
        assert (await client.canary("3")).outcome is Outcome.OK
        await client.aclose()
        server.close()

    asyncio.run(body())
    assert asked == [("/v1/embeddings", ""), ("/v1/embeddings", "3")]


@pytest.mark.parametrize(
    ("script", "load"),
    [
        pytest.param(_json("200 OK", {"server_load": 3}), 3, id="as vLLM says it"),
        pytest.param(_json("200 OK", {"server_load": True}), None, id="no number"),
        pytest.param(_json("200 OK", {"server_load": -1}), None, id="negative"),
        pytest.param(_json("200 OK", [3]), None, id="no object"),
        pytest.param(_json("404 Not Found", {"detail": "Not Found"}), None, id="before 0.8"),
        pytest.param(trickles, None, id="in time or not at all"),
    ],
)
def test_load(script: Script, load: int | None) -> None:
    """Only a count counts."""

    async def body() -> None:
        async with peer(script, timeout=_patience(script)) as client:
            assert await client.load() == load

    asyncio.run(body())


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param(_json("200 OK", {"is_paused": True}), True, id="paused"),
        pytest.param(_json("200 OK", {"is_sleeping": True}), True, id="asleep"),
        pytest.param(_json("200 OK", {"is_paused": False, "is_sleeping": False}), False, id="neither"),
        pytest.param(_json("404 Not Found", {"detail": "Not Found"}), None, id="no such endpoint"),
        pytest.param(silent, False, id="an engine that cannot say so is not excused by that"),
    ],
)
def test_suspended(script: Script, expected: Any) -> None:
    """None means that there is no use in asking again."""

    async def body() -> None:
        async with peer(script, timeout=_patience(script)) as client:
            assert await client.suspended() is expected

    asyncio.run(body())


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        pytest.param(answering("200 OK", b'vllm:num_requests_running{engine="0"} 1\n'), Outcome.OK, id="figures"),
        pytest.param(answering("404 Not Found"), Outcome.ERROR, id="404"),
        pytest.param(answering("200 OK", b"x" * (17 << 20)), Outcome.ERROR, id="too long"),
        pytest.param(silent, Outcome.TIMEOUT, id="silence"),
        pytest.param(resets, Outcome.REFUSED, id="reset"),
    ],
)
def test_scrape_outcomes(script: Script, outcome: Outcome) -> None:
    """Slow, gone and without figures are three different things."""

    async def body() -> None:
        async with peer(script) as client:
            scrape = await client.scrape(_patience(script))
        assert scrape.outcome is outcome
        assert (scrape.metrics is not None) == (outcome is Outcome.OK)
        assert bool(scrape.detail) == (outcome is not Outcome.OK)

    asyncio.run(body())
