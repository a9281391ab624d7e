"""The HTTP server among slow, greedy, broken and vanishing clients."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from tests.adapters.http1_lab import LOOPS, Answer, Lab, echo, read_all, read_until, running, streaming
from tests.eventually import aeventually, eventually
from vllm_supervisor.adapters.http1 import Limits
from vllm_supervisor.ports import Request, Response

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
GET_AND_CLOSE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def crowd(lab: Lab, size: int, greeting: bytes = b"") -> Iterator[list[socket.socket]]:
    """Hold `size` connections, each having sent `greeting`."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(lab.connect()) for _ in range(size)]
        for client in clients:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(greeting)
        yield clients


def closed(client: socket.socket) -> bool:
    """Whether the server has closed, without waiting; what it sent is thrown away."""
    client.setblocking(False)
    try:
        return client.recv(1 << 20) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_slow_request_times_out_however_it_drips(tmp_path: Path, loop: str) -> None:
    """A byte now and then does not extend the time to a complete request, and the client is told."""
    with running(tmp_path, loop=loop, limits=Limits(request_timeout=0.3)) as lab, lab.connect() as sock:
        sock.settimeout(0.02)
        raw = b""
        deadline = time.monotonic() + 20
        while not raw and time.monotonic() < deadline:
            sock.sendall(b"X")
            with contextlib.suppress(TimeoutError):
                raw = sock.recv(4096)
        answer = Answer.parse(raw)
        assert (answer.status, answer.error_code) == (408, "timeout")


def test_silent_and_idle_connections_are_closed(tmp_path: Path, loop: str) -> None:
    """One that never asks is closed after the request timeout, one that asked before after the idle timeout."""
    with (
        running(tmp_path, loop=loop, limits=Limits(request_timeout=1, idle_timeout=1)) as lab,
        crowd(lab, 1) as [silent],
        crowd(lab, 1, GET) as [idle],
    ):
        assert read_all(silent) == b""
        assert read_all(idle).count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize("greeting", [b"", b"GET / HTT", GET], ids=["silent", "slow", "idle"])
def test_a_crowd_of_waiting_clients_does_not_keep_others_out(tmp_path: Path, loop: str, greeting: bytes) -> None:
    """Those who wait longest make room, so that `status` is answered among hundreds of them."""
    with running(tmp_path, loop=loop) as lab, crowd(lab, 300, greeting) as clients:
        for _ in range(5):
            assert lab.get().status == 200
        # What stays of the crowd is within the limit.
        eventually(lambda: sum(closed(client) for client in clients) >= 300 - 64)


def test_many_clients_at_once_are_all_answered(tmp_path: Path, loop: str) -> None:
    """Two hundred requests in flight, each with its own answer."""
    with running(tmp_path, loop=loop, limits=Limits(connections=256)) as lab, crowd(lab, 200) as clients:
        for number, client in enumerate(clients):
            client.sendall(b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % number)
        for number, client in enumerate(clients):
            assert b'"path": "/%d"' % number in read_all(client)


def test_clients_who_have_asked_are_not_cut_for_those_behind_them(tmp_path: Path, loop: str) -> None:
    """Room is made by those who had time to ask and did not; nobody loses a request that was only not yet read."""
    queued = threading.Event()

    async def handler(request: Request) -> Response:
        if request.path == "/block":
            queued.wait(20)  # the loop stands still, as on a host without a free processor
        return await echo(request)

    with (
        running(tmp_path, handler, loop=loop, limits=Limits(connections=8)) as lab,
        crowd(lab, 1, b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n"),
        crowd(lab, 7, b"GET / HTT"),
        crowd(lab, 100, GET_AND_CLOSE) as clients,
    ):
        queued.set()
        answers = [read_all(client)[:12] for client in clients]
        # On a slow host all eight may be busy at once: then the next is told so, and that is an answer too.
        assert set(answers) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}, answers
        assert answers.count(b"HTTP/1.1 200") >= 8


def test_where_all_are_busy_the_next_is_told_at_once(tmp_path: Path, loop: str) -> None:
    """Nobody who is being answered is cut for a newcomer; a newcomer gets 503 instead of silence."""
    gate: list[anyio.Event] = []

    async def handler(request: Request) -> Response:
        if request.path == "/wait":
            gate.append(anyio.Event())
            await gate[-1].wait()
        return await echo(request)

    limits = Limits(connections=3, drain_timeout=0.1)
    with (
        running(tmp_path, handler, loop=loop, limits=limits) as lab,
        crowd(lab, 3, b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n") as clients,
    ):
        eventually(lambda: len(gate) == 3)
        answer = lab.get()
        assert (answer.status, answer.error_code) == (503, "busy")
        assert not any(closed(client) for client in clients)


def test_stream_nobody_reads_holds_still(tmp_path: Path, loop: str) -> None:
    """The source is not asked for more than the buffers hold, and the stalled client makes room for another."""
    produced = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal produced
        while True:
            produced += 1
            yield b"x" * 65536

    with running(tmp_path, streaming(pieces), loop=loop, limits=Limits(connections=1)) as lab:
        with crowd(lab, 1, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n") as [client]:
            eventually(lambda: produced >= 2)
            assert lab.get().status == 200
            assert produced < 64
            eventually(lambda: closed(client))
        assert produced < 64


def test_stream_ends_when_its_client_goes_away(tmp_path: Path, loop: str) -> None:
    """A source that has nothing to say is closed too: nothing would be written that could fail."""
    ended = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal ended
        try:
            yield b"hello"
            await anyio.sleep_forever()
        finally:
            ended += 1

    with running(tmp_path, streaming(pieces), loop=loop) as lab:
        for count in range(1, 4):
            with lab.connect() as sock:
                sock.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
                read_until(sock, b"hello")
            eventually(lambda count=count: ended == count)  # type: ignore[misc]
        assert lab.failed == []


def test_answer_nobody_reads_is_given_up(tmp_path: Path, loop: str) -> None:
    """A large answer does not wait for ever in memory."""

    async def handler(request: Request) -> Response:
        return Response(200, b"x" * (8 << 20)) if request.path == "/large" else await echo(request)

    with running(tmp_path, handler, loop=loop, limits=Limits(write_timeout=0.2)) as lab:
        for version in (b"1.0", b"1.1"):
            with crowd(lab, 1, b"GET /large HTTP/%s\r\nHost: x\r\n\r\n" % version) as [client]:
                eventually(lambda: any(request.path == "/large" for request, _, _ in lab.answered))
                lab.answered.clear()
                assert len(read_all(client)) < 8 << 20
        assert lab.get().status == 200


def test_client_that_vanishes_lets_the_handler_finish(tmp_path: Path, loop: str) -> None:
    """What was asked for is not half done because the asker has gone."""
    arrived = 0
    finished = 0
    gate: list[anyio.Event] = []

    async def handler(request: Request) -> Response:
        nonlocal arrived, finished
        if request.path == "/slow":
            gate.append(anyio.Event())
            arrived += 1
            await gate[0].wait()
            finished += 1
        elif gate:
            gate[0].set()
        return await echo(request)

    with running(tmp_path, handler, loop=loop) as lab:
        with crowd(lab, 1, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"):
            eventually(lambda: arrived == 1)
        assert lab.get().status == 200
        eventually(lambda: finished == 1)


def test_the_end_closes_the_idle_finishes_the_busy_and_ends_streams(tmp_path: Path, loop: str) -> None:
    """The daemon's last act does not cut an answer short, nor wait for a client that has nothing to wait for."""
    waiting = 0

    async def handler(request: Request) -> Response:
        nonlocal waiting
        if request.path == "/slow":
            waiting += 1
            await aeventually(idle_is_closed)
        return await streaming(pieces)(request)

    async def idle_is_closed() -> bool:
        return closed(idle)

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal waiting
        yield b"hello"
        waiting += 1
        await anyio.sleep_forever()

    with running(tmp_path, handler, loop=loop, limits=Limits(drain_timeout=20)) as lab, contextlib.ExitStack() as stack:
        [idle] = stack.enter_context(crowd(lab, 1, GET))
        [half] = stack.enter_context(crowd(lab, 1, b"GET / HT"))
        read_until(idle, b"}")
        [stream] = stack.enter_context(crowd(lab, 1, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"))
        [busy] = stack.enter_context(crowd(lab, 1, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"))
        eventually(lambda: waiting == 2)
        began = time.monotonic()
        lab.stop()
        assert time.monotonic() - began < 10
        assert read_all(idle) == b""
        assert read_all(half) == b""
        assert read_all(stream).endswith(b"0\r\n\r\n")
        answer = Answer.parse(read_all(busy))
        assert (answer.status, answer.headers["connection"]) == (200, "close")


def test_the_end_cuts_what_does_not_finish(tmp_path: Path, loop: str) -> None:
    """A handler that hangs holds the end up for the grace and no longer."""
    cancelled = False
    arrived = False

    async def handler(_request: Request) -> Response:
        nonlocal cancelled, arrived
        try:
            arrived = True
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled = True
            raise
        raise AssertionError

    with running(tmp_path, handler, loop=loop, limits=Limits(drain_timeout=0.1)) as lab, crowd(lab, 1, GET) as [client]:
        eventually(lambda: arrived)
        lab.stop()
        assert cancelled
        assert read_all(client) == b""


SCARCE = """
import resource, sys
from pathlib import Path
from tests.adapters.http1_lab import running
with running(Path(sys.argv[1]), loop=sys.argv[2]) as lab:
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    print("up", flush=True)
    sys.stdin.read()
    print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), flush=True)
"""


def test_running_out_of_descriptors_is_survived(tmp_path: Path, loop: str) -> None:
    """Clients beyond what descriptors allow are answered or turned away, none hangs, and the loop does not spin."""
    command = [sys.executable, "-c", SCARCE, str(tmp_path), loop]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout
        assert child.stdin
        try:
            assert child.stdout.readline() == "up\n"
            lab = Lab(str(tmp_path / "s"))
            with crowd(lab, 100):
                assert {lab.get().status for _ in range(20)} <= {200, 503}
                eventually(lambda: lab.get().status == 200)
            eventually(lambda: lab.get().status == 200)
        finally:
            child.stdin.close()
        assert float(child.stdout.readline()) < 10
    assert child.returncode == 0


BEREFT = """
import asyncio, os, resource, sys, time
from pathlib import Path
from tests.adapters.http1_lab import running

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

def allow(count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))

def wait_failure(lab):
    told = len(lab.failed)
    print("ask", flush=True)
    while len(lab.failed) <= told:
        time.sleep(0.005)

with running(Path(sys.argv[1]), loop=sys.argv[2]) as lab:
    allow(3)
    wait_failure(lab)
    allow(200)
    others = [os.open(sys.executable, os.O_RDONLY) for _ in range(40)]
    allow(3)
    wait_failure(lab)
    allow(200)
    same = [os.fstat(fd).st_ino for fd in others if os.path.exists(f"/proc/self/fd/{fd}")]
    print(len(same), len(set(same)), flush=True)
    sys.stdin.read()
"""


def test_without_any_descriptor_nobody_elses_is_closed(tmp_path: Path, loop: str) -> None:
    """Where even the spare descriptor is lost, its number may be somebody else's next: that one stays open."""
    command = [sys.executable, "-c", BEREFT, str(tmp_path), loop]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout
        assert child.stdin
        lab = Lab(str(tmp_path / "s"))
        clients = []
        for _ in range(2):
            assert child.stdout.readline() == "ask\n"
            clients.append(lab.connect())
        assert child.stdout.readline() == "40 1\n"
        assert lab.get().status == 200
        for client in clients:
            client.close()
        child.stdin.close()
    assert child.returncode == 0
