"""One request and its answer, on a connection of its own, bounded in bytes and in time."""

import errno
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import anyio
import httpx

from vllm_supervisor.domain.model import Outcome

_GONE = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN, errno.ESHUTDOWN}
)
"""The other side's doing. Any other error of the kernel is ours: descriptors, memory, ports, routes, filters."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `status` is None when no complete answer did; `latency` in seconds.

    `whole` is False when the body went on beyond the limit: `body` is then its beginning.
    """

    outcome: Outcome
    latency: float
    detail: str = ""
    status: int | None = None
    body: bytes = b""
    whole: bool = True


class Exchange:
    """A transport for life. Below httpx's client on purpose: no redirects, cookies, proxies or decompression.

    Connections are not kept: vLLM closes idle ones after 5 s, and a reused one then looks like a dead engine.
    """

    def __init__(self, base_url: str, *, connect_timeout: float) -> None:
        self._base_url = base_url.rstrip("/")
        self._urls: dict[str, httpx.URL] = {}
        """Taken apart once: the same few are asked every few seconds for weeks."""
        self.connect_timeout = connect_timeout
        # A loopback peer proves nothing by its certificate, and loading the CA bundle takes 20 ms and 1 MiB.
        # Requests are not queued for a connection: one that hangs must not hold up the next probe.
        self._transport = httpx.AsyncHTTPTransport(
            verify=False,
            trust_env=False,
            retries=0,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def aclose(self) -> None:
        """Close what is open."""
        await self._transport.aclose()

    async def ask(
        self,
        path: str,
        *,
        limit: int,
        seconds: float | None,
        headers: Mapping[str, str] | None = None,
        payload: Mapping[str, object] | None = None,
    ) -> Answer:
        """GET `path`, or POST `payload` to it as JSON. Never raises for what the other side does.

        At most `limit` bytes of body are taken, and at most `seconds` pass (None: no limit but that of connecting),
        however slowly the answer trickles in.
        """
        began = time.monotonic()  # uvloop's own clock ticks in milliseconds, and a probe may take less than one
        answer: Answer | None = None
        outcome, detail = Outcome.TIMEOUT, f"no complete answer in {seconds} s"
        try:
            with anyio.move_on_after(seconds):
                answer = await self._exchange(path, limit, headers or {}, payload, began)
        except Exception as error:  # noqa: BLE001 - the boundary: whatever a peer provokes becomes an outcome
            outcome, detail = classify(error)
        return answer or Answer(outcome, time.monotonic() - began, detail)

    async def _exchange(
        self,
        path: str,
        limit: int,
        headers: Mapping[str, str],
        payload: Mapping[str, object] | None,
        began: float,
    ) -> Answer:
        request = httpx.Request(
            "GET" if payload is None else "POST",
            self._url(path),
            headers={"User-Agent": "vllm-supervisor", **headers},
            json=payload,
            extensions={"timeout": {"connect": self.connect_timeout}},
        )
        response = await self._transport.handle_async_request(request)
        body = bytearray()
        try:
            async for part in response.aiter_raw():
                body += part
                if len(body) > limit:
                    break
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
        return Answer(
            Outcome.OK if response.is_success else Outcome.ERROR,
            time.monotonic() - began,
            status=response.status_code,
            body=bytes(body[:limit]),
            whole=len(body) <= limit,
        )

    def _url(self, path: str) -> httpx.URL:
        if path not in self._urls:
            self._urls[path] = httpx.URL(self._base_url + path)
        return self._urls[path]


def classify(error: BaseException) -> tuple[Outcome, str]:
    """Say whose failure an exception is, in words. Never quotes our own request: it may hold the key."""
    for cause in _causes(error):
        match cause:
            case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
                return Outcome.REFUSED, "the connection was closed during the TLS handshake"
            case ssl.SSLError():
                return Outcome.ERROR, f"no TLS spoken there: {getattr(cause, 'reason', None) or 'handshake failed'}"
            case socket.gaierror():
                return Outcome.UNKNOWN, f"the host's name was not resolved: {cause.strerror}"
            case MemoryError():
                return Outcome.UNKNOWN, "out of memory"
            case OSError(errno=int() as number):
                if number == errno.ETIMEDOUT:
                    return Outcome.TIMEOUT, os.strerror(number)
                return (Outcome.REFUSED if number in _GONE else Outcome.UNKNOWN), os.strerror(number)
    match error:
        case httpx.TimeoutException():
            return Outcome.TIMEOUT, "no connection in time" if isinstance(error, httpx.ConnectTimeout) else "silence"
        case httpx.RemoteProtocolError():
            text = str(error)
            broken_off = "disconnected" in text or "closed connection" in text
            return (Outcome.REFUSED if broken_off else Outcome.ERROR), text[:200]
        case httpx.NetworkError() | anyio.BrokenResourceError() | anyio.ClosedResourceError():
            return Outcome.REFUSED, "the connection was reset"
        case _:
            return Outcome.UNKNOWN, f"the request could not be made: {type(error).__name__}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Walk from an exception to what it was raised from, groups included."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        cause = pending.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        pending += [cause.__context__, cause.__cause__]
        if isinstance(cause, BaseExceptionGroup):
            pending += cause.exceptions
