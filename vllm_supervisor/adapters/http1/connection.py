"""One client's connection: requests out of h11, answers into it, within the limits.

A transport rather than streams, because an idle connection then costs no task, the end of a client is noticed while its
answer is being made, and a keep-alive round trip is two turns of the loop. Each request is answered in a task of its
own; whatever goes wrong in one ends there.
"""

import asyncio
import fcntl
import sys
import termios
from collections.abc import AsyncIterator, Coroutine
from enum import IntEnum
from typing import Any, Protocol, cast

import h11

from vllm_supervisor.adapters.http1.messages import Limits, error_response, read_request
from vllm_supervisor.ports import Handler, Peer, Request, Response

_LINGER_TIMEOUT = 1.0
_LINGER_BYTES = 1024 * 1024


class Standing(IntEnum):
    """What a connection is doing; where room is needed the lowest goes first."""

    CLOSING = 0
    IDLE = 1
    READING = 2
    STALLED = 3
    """The client does not read its answer."""
    STREAMING = 4
    """An answer without end: followers must not lock out who asks for the state."""
    BUSY = 5


class Owner(Protocol):
    """What a connection needs of the server that it belongs to."""

    handler: Handler
    limits: Limits
    loop: asyncio.AbstractEventLoop
    draining: bool

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that the server ends at the latest with itself."""
        ...

    def drop(self, connection: "Connection") -> None:
        """Forget a connection that is over. May be called twice."""
        ...

    def answered(self, request: Request, status: int, seconds: float) -> None:
        """Take note of an answer."""
        ...

    def failed(self, request: Request | None, error: BaseException) -> None:
        """Take note of an error."""
        ...


class Connection(asyncio.Protocol):
    """One client. At most one request is being answered; those behind it wait in h11's buffer, which is bounded."""

    def __init__(self, server: Owner, peer: Peer | None) -> None:
        self.standing = Standing.READING
        self.since = server.loop.time()
        self._server = server
        self._limits = server.limits
        self._peer = peer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=server.limits.head)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._received = 0
        """Bytes since the last answer was complete."""
        self._resumed: asyncio.Future[None] | None = None
        """Set while the client does not read; done when it reads again or is gone."""
        self._streaming = False
        self._ending = False
        """The stream is to end where it is."""
        self._cut = False

    @property
    def unread(self) -> bool:
        """Whether the client has sent what the loop has had no turn to read yet."""
        if self._transport is None:
            return not self._cut
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        waiting = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) > 0

    # --- what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; or end at once where the server changed its mind while the transport was made."""
        # uvloop's transports are no subclass of asyncio.Transport, but keep its contract.
        self._transport = cast("asyncio.Transport", transport)
        if self._cut or self._server.draining:
            self._transport.abort()
        else:
            self._stand(Standing.READING, self._limits.request_timeout)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """End a stream; any other answer is made to its end, unread: what was asked for is not half done."""
        self._cut = True
        self._disarm()
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._end_stream()
        if self._task is None:
            self._server.drop(self)

    def pause_writing(self) -> None:
        """Note that the client does not read as fast as it is written to."""
        self._resumed = self._server.loop.create_future()

    def resume_writing(self) -> None:
        """Note that the client has read."""
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._resumed = None

    def data_received(self, data: bytes) -> None:
        """Take bytes; stop reading once more wait than a request may have."""
        self._received += len(data)
        if self.standing is Standing.CLOSING:
            if self._received > _LINGER_BYTES:
                self.cut()
            return
        self._http.receive_data(data)
        if self._task is None:
            self._pump()
        elif self._received > self._limits.head + self._limits.body and self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Take the end of what the client sends; True keeps the other direction open."""
        if self.standing is Standing.CLOSING:
            return False
        self._http.receive_data(b"")
        if self._task is None:
            self._pump()
            return self._transport is not None and not self._transport.is_closing()
        # A client may close its half once it has asked (`nc -N`). One that follows a stream has gone away: without
        # anything to write, that would not be noticed any other way.
        self._end_stream()
        return True

    # --- requests

    def _pump(self) -> None:
        """Take events out of h11 until a request is complete or more bytes are needed."""
        try:
            while self._task is None:
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    self._await_more()
                    return
                if isinstance(event, h11.ConnectionClosed):
                    self._close()
                    return
                if not self._take(event):
                    return
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:  # noqa: PLR2004 - h11's word for a head over the limit
                self._refuse(431, "too_large", f"the request head is larger than {self._limits.head} bytes")
            else:
                self._refuse(400, "bad_request", str(error))

    def _await_more(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
        if self.standing is Standing.IDLE and self._received:
            self._stand(Standing.READING, self._limits.request_timeout)

    def _take(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> bool:
        """Take one part of a request; False when the request was refused."""
        if isinstance(event, h11.Request):
            self._head = event
            self._body.clear()
            if len(event.target) + sum(len(name) + len(value) for name, value in event.headers) > self._limits.head:
                self._refuse(431, "too_large", f"the request head is larger than {self._limits.head} bytes")
                return False
            declared = next((int(value) for name, value in event.headers if name == b"content-length"), 0)
            if declared > self._limits.body:
                return self._refuse_body()
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > self._limits.body:
                return self._refuse_body()
        elif isinstance(event, h11.EndOfMessage) and self._head is not None:
            request = read_request(self._head, bytes(self._body), self._peer)
            if request is None:
                self._refuse(400, "bad_request", "the request target cannot be read")
                return False
            self._stand(Standing.BUSY)
            self._task = self._server.start(self._answer(request, head_only=self._head.method == b"HEAD"))
        return True

    def _refuse_body(self) -> bool:
        self._refuse(413, "too_large", f"the request body is larger than {self._limits.body} bytes")
        return False

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer what is no request, and close. Reading goes on for a moment: a reset would take the answer away."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._send_whole(error_response(status, code, message), head_only=False, close=True)
        self._stand(Standing.CLOSING, _LINGER_TIMEOUT)
        self._received = 0
        if self._transport is not None and self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    # --- answers

    async def _answer(self, request: Request, *, head_only: bool) -> None:
        began = self._server.loop.time()
        status = 0
        try:
            try:
                response = await self._server.handler(request)
            except Exception as error:  # noqa: BLE001 - the task's boundary: reported, and one client's 500
                self._server.failed(request, error)
                response = error_response(500, "internal", f"{type(error).__name__} while answering; see the log")
            status = response.status
            if isinstance(response.body, bytes):
                self._send_whole(response, head_only=head_only, close=self._server.draining)
                await self._flushed(self._limits.write_timeout)
            else:
                await self._send_stream(response, response.body, head_only=head_only)
        except TimeoutError:
            self.cut()
        except Exception as error:  # noqa: BLE001 - the task's boundary: a stream that broke cannot become a 500
            self._server.failed(request, error)
            self.cut()
        finally:
            self._task = None
            if status:
                self._server.answered(request, status, self._server.loop.time() - began)
            self._next()

    def _send_whole(self, response: Response, *, head_only: bool, close: bool) -> None:
        body = cast("bytes", response.body)
        headers = [("content-type", response.content_type), ("content-length", str(len(body)))]
        if close:
            headers.append(("connection", "close"))
        data = self._http.send(h11.Response(status_code=response.status, headers=headers)) or b""
        if not head_only:
            data += self._http.send(h11.Data(data=body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        self._write(data)

    async def _send_stream(self, response: Response, body: AsyncIterator[bytes], *, head_only: bool) -> None:
        headers = [("content-type", response.content_type)]
        self._write(self._http.send(h11.Response(status_code=response.status, headers=headers)))
        self._streaming = True
        try:
            if not head_only:
                await self._pour(body)
        except asyncio.CancelledError:
            if not self._ending:
                raise
            cast("asyncio.Task[None]", asyncio.current_task()).uncancel()
        finally:
            self._streaming = False
            close = getattr(body, "aclose", None)
            if close is not None:
                await close()
        self._write(self._http.send(h11.EndOfMessage()))

    async def _pour(self, body: AsyncIterator[bytes]) -> None:
        if self._ending or self._cut or self._server.draining:
            return
        self._stand(Standing.STREAMING)
        async for piece in body:
            if piece:
                self._write(self._http.send(h11.Data(data=piece)))
                await self._flushed(None)
            if self._cut:
                return

    def _end_stream(self) -> None:
        if self._streaming and not self._ending and self._task is not None:
            self._ending = True
            self._task.cancel()

    def _write(self, data: bytes | None) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def _flushed(self, within: float | None) -> None:
        """Wait until the client has read most of what was written. Raises TimeoutError."""
        resumed = self._resumed
        if resumed is None or resumed.done():
            return
        standing = self.standing
        self._stand(Standing.STALLED)
        async with asyncio.timeout(within):
            await resumed
        self._stand(standing)

    # --- between requests, and the end

    def _next(self) -> None:
        if self._cut:
            self._server.drop(self)
            return
        self._ending = False
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE or self._server.draining:
            self._close()
            return
        self._http.start_next_cycle()
        self._received = len(self._http.trailing_data[0])
        self._head = None
        self._stand(Standing.IDLE, self._limits.idle_timeout)
        if self._transport is not None:
            self._transport.resume_reading()
        self._pump()

    def _stand(self, standing: Standing, within: float | None = None) -> None:
        self.standing = standing
        self.since = self._server.loop.time()
        self._disarm()
        if within is not None:
            self._timer = self._server.loop.call_later(within, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self.standing is Standing.READING and self._received:
            self._refuse(408, "timeout", f"no complete request within {self._limits.request_timeout:g} s")
        elif self.standing is Standing.CLOSING:
            self.cut()
        else:
            self._close()

    def _close(self) -> None:
        """Close once everything is written, within the time that a client has to read it."""
        if self.standing is not Standing.CLOSING:
            self._stand(Standing.CLOSING, self._limits.write_timeout)
        if self._transport is not None:
            self._transport.close()

    def wind_down(self) -> None:
        """End soon: at once where nothing is being answered."""
        if self._task is None:
            self._close()
        else:
            self._end_stream()

    def cut(self) -> None:
        """End at once. What was not written is lost."""
        self._cut = True
        if self._transport is not None:
            self._transport.abort()
