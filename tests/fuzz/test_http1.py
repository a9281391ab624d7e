"""The HTTP server against arbitrary bytes, in arbitrary pieces."""

import contextlib
import socket
from collections.abc import Iterator

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.adapters.http1_lab import Lab, read_all, running
from tests.fuzz.logs import SOME
from vllm_supervisor.adapters.http1 import Limits

PIECES = (
    b"GET / HTTP/1.1\r\n", b"POST /v1/stop HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n", b"CONNECT a:1 HTTP/1.1\r\n",
    b"HEAD / HTTP/1.1\r\n", b"Host: x\r\n", b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Content-Length: 3\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999\r\n", b"Expect: 100-continue\r\n",
    b"Transfer-Encoding: chunked\r\n", b"\r\n", b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"\0",
    b"\n", b"GET /a?b=%ff&%00 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"Content-Length: " + b"9" * 5000 + b"\r\n", b"X: " + b"y" * 17000 + b"\r\n",
    b"GET /good HTTP/1.1\r\nHost: x\r\n\r\n",
)  # fmt: skip
REQUESTS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=12).map(b"".join)
BYTES = st.binary(max_size=300) | REQUESTS


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    limits = Limits(request_timeout=20, idle_timeout=20)
    with running(tmp_path_factory.mktemp("fuzz"), limits=limits) as lab:
        yield lab


def exchange(lab: Lab, parts: list[bytes]) -> bytes:
    """Send `parts`, and no more; return all that comes back, once the server has closed."""
    with lab.connect() as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                sock.sendall(part)
            sock.shutdown(socket.SHUT_WR)
        return read_all(sock)


def answers(raw: bytes) -> list[int]:
    """Take apart all that came back: whole answers and nothing else."""
    found = []
    while raw:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=b"GET", target=b"/", headers=[("Host", "x")]))
        client.receive_data(raw)
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            assert not isinstance(event, h11.ConnectionClosed | type), f"no whole answer: {raw!r}"
            if isinstance(event, h11.Response):
                found.append(event.status_code)
        raw = client.trailing_data[0]
    return found


@SOME
@given(parts=st.lists(BYTES, min_size=1, max_size=4), half_close=st.booleans())
def test_whatever_is_sent_the_next_client_is_served(lab: Lab, parts: list[bytes], half_close: bool) -> None:
    """No bytes, however cut into packets, break the server or reach a handler as something that raises."""
    with lab.connect() as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                sock.sendall(part)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        assert lab.get("/good").status == 200
    assert lab.failed == []


@SOME
@given(data=BYTES, places=st.lists(st.integers(0, 400), max_size=4))
@example(data=b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 17000 + b"\r\n\r\n", places=[10, 300])
def test_every_client_gets_whole_answers_and_an_end(lab: Lab, data: bytes, places: list[int]) -> None:
    """A client that has said all it wanted gets answers that can be read, the same however its bytes were cut."""
    data = data.replace(b"HEAD", b"GET")  # an answer to HEAD has no body, which its bytes alone do not tell
    whole = answers(exchange(lab, [data]))
    cuts = sorted({min(place, len(data)) for place in places})
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert answers(exchange(lab, pieces)) == whole
    assert lab.failed == []
