"""The HTTP server against arbitrary bytes."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.http1_lab import Lab, running
from vllm_supervisor.adapters.http1 import Limits

PIECES = (
    b"GET / HTTP/1.1\r\n", b"POST /v1/stop HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n", b"CONNECT a:1 HTTP/1.1\r\n",
    b"HEAD / HTTP/1.1\r\n", b"Host: x\r\n", b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Content-Length: 3\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999\r\n", b"Expect: 100-continue\r\n",
    b"Transfer-Encoding: chunked\r\n", b"\r\n", b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"\0",
    b"\n",
)  # fmt: skip
GRAMMAR = st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=12).map(b"".join)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    limits = Limits(request_timeout=0.5, idle_timeout=0.5)
    with running(tmp_path_factory.mktemp("fuzz"), limits=limits) as lab:
        yield lab


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(parts=st.lists(st.binary(max_size=300) | GRAMMAR, min_size=1, max_size=4), half_close=st.booleans())
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
