"""The listeners, the connections that they bring, and the end of both."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import anyio
from anyio.abc import TaskStatus

from vllm_supervisor.adapters.http1.connection import Connection, Standing
from vllm_supervisor.adapters.http1.messages import DEFAULT_LIMITS, Limits, error_response
from vllm_supervisor.ports import Handler, Peer, Request

_ACCEPT_BATCH = 16
_ACCEPT_BACKOFF = 0.03
"""Seconds without accepting after a failure. Whoever waits meanwhile shall have an answer within 0.1 s all the same."""
_TIME_TO_ASK = 0.005
"""What a new client has, before it may be cut to make room for others."""
_TURN = 0.002
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


async def serve(
    listeners: Sequence[socket.socket],
    handler: Handler,
    *,
    limits: Limits = DEFAULT_LIMITS,
    peer_of: Callable[[socket.socket], Peer | None] | None = None,
    on_request: Callable[[Request, int, float], None] | None = None,
    on_error: Callable[[Request | None, BaseException], None] | None = None,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on listening sockets until cancelled; the sockets stay open and stay the caller's.

    On cancellation idle connections are closed at once, streams end where they are, and other answers have
    `limits.drain_timeout` to be finished. HEAD reaches the handler as GET. `on_request` gets each answered request
    with its status and the seconds it took; `on_error` what a handler raised (or, without a request, why connections
    cannot be accepted). Neither may raise.
    """
    server = _Server(handler, limits, peer_of, on_request, on_error)
    try:
        server.open(listeners)
        task_status.started()
        await anyio.sleep_forever()
    finally:
        server.close_listeners()
        with anyio.CancelScope(shield=True):
            await server.drain()


class _Server:
    """The listeners and the connections they brought."""

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        peer_of: Callable[[socket.socket], Peer | None] | None,
        on_request: Callable[[Request, int, float], None] | None,
        on_error: Callable[[Request | None, BaseException], None] | None,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.draining = False
        self.tasks: set[asyncio.Task[None]] = set()
        self._peer_of = peer_of
        self._on_request = on_request
        self._on_error = on_error
        self._connections: set[Connection] = set()
        self._listeners: list[socket.socket] = []
        self._backoffs: dict[socket.socket, asyncio.TimerHandle] = {}
        self._empty = asyncio.Event()
        self._spare: int | None = None
        """A descriptor to let go of when there is no other; None where even that one could not be had again."""
        self._keep_spare()

    def open(self, listeners: Sequence[socket.socket]) -> None:
        for listener in listeners:
            listener.settimeout(0)
            self._listeners.append(listener)
            self.loop.add_reader(listener, self._accept, listener)

    def close_listeners(self) -> None:
        for listener in self._listeners:
            self.loop.remove_reader(listener)
        for backoff in self._backoffs.values():
            backoff.cancel()
        self._let_spare_go()

    async def drain(self) -> None:
        self.draining = True
        for connection in tuple(self._connections):
            connection.wind_down()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), self.limits.drain_timeout)
        for connection in tuple(self._connections):
            connection.cut()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        # An aborted transport closes its descriptor in the next turn of the loop.
        await asyncio.sleep(0)

    def _accept(self, listener: socket.socket) -> None:
        # A batch, so that a flood of connections leaves the loop time for those it has.
        for _ in range(_ACCEPT_BATCH):
            if self._crowded():
                # They wait in the kernel's queue: a newcomer let in now would cost somebody a request not yet read.
                self._pause(listener, _TURN)
                return
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED or not self._accept_with_spare(listener):
                    self._back_off(listener, error)
                return
            self._admit(sock)

    def _accept_with_spare(self, listener: socket.socket) -> bool:
        """Answer one client although descriptors ran out: it would wait in the backlog, and the loop would spin."""
        self._evict()
        self._let_spare_go()
        try:
            sock, _address = listener.accept()
            _turn_away(sock)
        except OSError:
            return False
        finally:
            self._keep_spare()
        return True

    def _keep_spare(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):  # another thread was faster, or the limit was lowered: until next time
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _let_spare_go(self) -> None:
        # Forgotten first: by the next time its number may be somebody else's, whose descriptor must not be closed.
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)

    def _back_off(self, listener: socket.socket, error: OSError) -> None:
        self._pause(listener, _ACCEPT_BACKOFF)
        self.failed(None, error)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        self.loop.remove_reader(listener)
        self._backoffs[listener] = self.loop.call_later(seconds, self.loop.add_reader, listener, self._accept, listener)

    def _crowded(self) -> bool:
        """Tell whether there is no room now, but will be: who was let in has not yet had time to ask."""
        if len(self._connections) < self.limits.connections:
            return False
        return not self._candidates() and any(each.standing is not Standing.BUSY for each in self._connections)

    def _admit(self, sock: socket.socket) -> None:
        self._keep_spare()
        if len(self._connections) >= self.limits.connections and not self._evict():
            _turn_away(sock)
            return
        connection = Connection(self, self._peer_of(sock) if self._peer_of else None)
        self._connections.add(connection)
        self._empty.clear()
        self.start(self._attach(connection, sock))

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _attach(self, connection: "Connection", sock: socket.socket) -> None:
        sock.settimeout(0)
        try:
            await self.loop.connect_accepted_socket(lambda: connection, sock)
        except OSError:
            sock.close()
            self.drop(connection)

    def _evict(self) -> bool:
        candidates = self._candidates()
        if not candidates:
            return False
        loser = min(candidates, key=lambda each: (each.standing, each.since))
        loser.cut()
        self.drop(loser)
        return True

    def _candidates(self) -> list[Connection]:
        """Return those who may be cut to make room: they are not being answered, and are not about to be."""
        asked_by = self.loop.time() - _TIME_TO_ASK
        return [
            each
            for each in self._connections
            if each.standing is not Standing.BUSY
            and (each.standing is not Standing.READING or (each.since <= asked_by and not each.unread))
        ]

    def drop(self, connection: "Connection") -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def answered(self, request: Request, status: int, seconds: float) -> None:
        if self._on_request is not None:
            self._on_request(request, status, seconds)

    def failed(self, request: Request | None, error: BaseException) -> None:
        if self._on_error is not None:
            self._on_error(request, error)


_OVERLOADED = error_response(503, "busy", "too many connections; try again").body


def _turn_away(sock: socket.socket) -> None:
    """Answer 503 without a connection's cost. Nothing here waits."""
    body = cast("bytes", _OVERLOADED)
    head = (
        f"HTTP/1.1 503 \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    with sock, contextlib.suppress(OSError):
        sock.settimeout(0)
        sock.send(head.encode() + body)
        sock.shutdown(socket.SHUT_WR)
        # What is left unread turns the close into a reset, which may overtake the answer.
        sock.recv(64 * 1024)
