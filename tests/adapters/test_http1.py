"""The HTTP server: what it answers, and to whom."""

import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.adapters.http1_lab import LOOPS, Answer, Lab, echo, read_all, read_until, running, streaming
from tests.eventually import eventually
from vllm_supervisor.adapters import http1
from vllm_supervisor.ports import Peer, Request, Response


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    """Give both loops: users run uvloop, tests of other parts run asyncio."""
    return str(request.param)


@pytest.fixture
def lab(tmp_path: Path, loop: str) -> Iterator[Lab]:
    with running(tmp_path, loop=loop) as lab:
        yield lab


def _peer(sock: socket.socket) -> Peer:
    return Peer(*struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


def test_request_reaches_the_handler_decoded(lab: Lab) -> None:
    """Path and query arrive percent-decoded, a plus is a space, blank values stay, and the body is whole."""
    answer = Answer.parse(
        lab.exchange(
            b"POST /v1/a%20b%C3%A9?x=1%26&y=&z=a+b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
    )
    said = json.loads(answer.body)
    assert answer.status == 200
    assert (said["method"], said["path"], said["body"]) == ("POST", "/v1/a bé", "abcde")
    assert said["query"] == {"x": "1&", "y": "", "z": "a b"}
    assert [(request.path, status) for request, status, _ in lab.answered] == [("/v1/a bé", 200)]


def test_absolute_target_is_taken_by_its_path(lab: Lab) -> None:
    """A client may send the whole URL, as through a proxy."""
    assert json.loads(lab.get("http://localhost/v1/status?x=1").body)["path"] == "/v1/status"
    assert json.loads(lab.get("http://localhost").body)["path"] == "/"


def test_keep_alive_and_pipelining_keep_the_order(lab: Lab) -> None:
    """Requests sent at once on one connection are answered one by one, in order."""
    with lab.connect() as sock:
        sock.sendall(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(50)))
        sock.sendall(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        raw = read_all(sock).decode()
    assert raw.count("HTTP/1.1 200") == 51
    places = [raw.index(f'"path": "/{n}"') for n in [*range(50), "last"]]
    assert places == sorted(places)


def test_pipelining_more_than_the_buffers_hold(lab: Lab) -> None:
    """Reading pauses while a client sends faster than it is answered, and nothing is lost."""
    with lab.connect() as sock:
        sock.setblocking(True)
        many = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 1000)
        for _ in range(20):
            sock.sendall(many * 20)
            answers = 0
            while answers < 20:
                answers += sock.recv(1 << 20).count(b"HTTP/1.1 200")
    eventually(lambda: len(lab.answered) == 400)


def test_head_has_the_headers_of_get_and_no_body(lab: Lab) -> None:
    """HEAD reaches the handler as GET; its answer says how long the body would be."""
    with lab.connect() as sock:
        sock.sendall(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        first, _, rest = read_all(sock).partition(b"\r\n\r\n")
    assert int(Answer.parse(first).headers["content-length"]) > 10
    assert json.loads(Answer.parse(rest).body)["path"] == "/b"


def test_http10_is_answered_and_closed(lab: Lab) -> None:
    """A client of 1.0 sends no Host and reads until the end."""
    answer = Answer.parse(lab.exchange(b"GET /old HTTP/1.0\r\n\r\n"))
    assert json.loads(answer.body)["path"] == "/old"


def test_half_closed_client_is_answered(lab: Lab) -> None:
    """`printf … | nc -N` closes its half once it has asked, and still wants the answer."""
    raw = lab.exchange(b"GET /half HTTP/1.1\r\nHost: x\r\n\r\n", half_close=True)
    assert json.loads(Answer.parse(raw).body)["path"] == "/half"


def test_expect_continue_is_answered(lab: Lab) -> None:
    """Curl asks before it sends a larger body, and waits a second where nobody answers."""
    with lab.connect() as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        sock.sendall(b"hi")
        assert b'"body": "hi"' in read_until(sock, b"}")


def test_peer_is_the_process_at_the_other_end(tmp_path: Path, loop: str) -> None:
    """SO_PEERCRED, which decides who may change state, arrives with the request."""
    with running(tmp_path, loop=loop, peer_of=_peer) as lab:
        assert json.loads(lab.get().body)["peer"] == [os.getpid(), os.getuid(), os.getgid()]


def test_handler_that_raises_is_one_clients_500(tmp_path: Path, loop: str) -> None:
    """An exception is reported, does not show its text to the client, and the connection goes on."""

    async def handler(request: Request) -> Response:
        if request.path == "/bad":
            raise ValueError("secret")
        return await echo(request)

    with running(tmp_path, handler, loop=loop) as lab, lab.connect() as sock:
        sock.sendall(b"GET /bad HTTP/1.1\r\nHost: x\r\n\r\nGET /good HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        raw = read_all(sock)
        assert raw.startswith(b"HTTP/1.1 500")
        assert b'"code": "internal"' in raw
        assert b"secret" not in raw
        assert b'"path": "/good"' in raw
        [(request, error)] = lab.failed
        assert request is not None
        assert (request.path, str(error)) == ("/bad", "secret")
        assert [status for _, status, _ in lab.answered] == [500, 200]


def test_stream_is_chunked_and_the_connection_goes_on(tmp_path: Path, loop: str) -> None:
    """A body of unknown length ends by its last chunk; an empty piece does not end it early."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one\n", b"", b"two\n"):
            yield piece

    with running(tmp_path, streaming(pieces), loop=loop) as lab:
        with lab.connect() as sock:
            sock.sendall(
                b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            )
            raw = read_all(sock)
        assert b"\r\n\r\n4\r\none\n\r\n4\r\ntwo\n\r\n0\r\n\r\nHTTP/1.1 200" in raw
        old = Answer.parse(lab.exchange(b"GET /stream HTTP/1.0\r\n\r\n"))
        assert old.body == b"one\ntwo\n"
        assert "transfer-encoding" not in old.headers
        head = Answer.parse(lab.exchange(b"HEAD /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
        assert (head.status, head.body) == (200, b"")


def test_stream_that_breaks_is_seen_to_be_cut(tmp_path: Path, loop: str) -> None:
    """What was sent cannot become a 500: the last chunk is missing, and the error is reported."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise ValueError("broke")

    with running(tmp_path, streaming(pieces), loop=loop) as lab:
        raw = lab.exchange(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not raw.endswith(b"0\r\n\r\n")
        assert eventually(lambda: [str(error) for _, error in lab.failed]) == ["broke"]
        assert lab.get().status == 200


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"GET /?a=%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"GET /?" + b"a&" * 100 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 5000, 431, "too_large"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n", 413, "too_large"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n" + b"a" * 99999, 413, "too_large"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b"a" * 4096 + b"\r\n"
            + b"F001\r\n" + b"a" * 0xF001 + b"\r\n0\r\n\r\n",
            413,
            "too_large",
        ),
    ],
    ids=range(12),
)  # fmt: skip
def test_what_is_no_request_is_refused_with_a_reason(lab: Lab, sent: bytes, status: int, code: str) -> None:
    """Each refusal is an error object that the client gets to read; the server serves the next one."""
    answer = Answer.parse(lab.exchange(sent))
    assert (answer.status, answer.error_code) == (status, code)
    assert answer.headers["connection"] == "close"
    assert lab.get().status == 200


def test_tcp_has_no_peer_and_serves_the_same(tmp_path: Path) -> None:
    """The metrics address uses the same server."""
    with running(tmp_path) as lab:
        assert json.loads(lab.get().body)["peer"] is None
    assert http1.Limits().connections == 64
