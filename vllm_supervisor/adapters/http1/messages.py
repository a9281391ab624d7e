"""What goes over the wire, and how much of it."""

import json
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

import h11

from vllm_supervisor.ports import Peer, Request, Response

_MAX_QUERY_FIELDS = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may cost. Sizes are bytes, times are seconds."""

    head: int = 16 * 1024
    body: int = 64 * 1024
    connections: int = 64
    request_timeout: float = 10.0
    """From the first byte (or from the connection, for its first request) to the complete request."""
    idle_timeout: float = 60.0
    write_timeout: float = 10.0
    """How long a client may take to read an answer that is complete. Streams wait for their reader instead."""
    drain_timeout: float = 2.0
    """How long answers in the making may take once the server is to end."""


DEFAULT_LIMITS = Limits()


def error_response(status: int, code: str, message: str) -> Response:
    """Return an error as clients know it: `{"error": {"code", "message"}}`."""
    return Response(status, json.dumps({"error": {"code": code, "message": message}}).encode())


def read_request(head: h11.Request, body: bytes, peer: Peer | None) -> Request | None:
    """Return the request as handlers see it, or None where its target is no path that can be read."""
    target = head.target
    if target.startswith((b"http://", b"https://")):
        target = b"/" + target.split(b"/", 3)[3] if target.count(b"/") > 2 else b"/"  # noqa: PLR2004 - scheme://host/
    raw_path, _, raw_query = target.partition(b"?")
    try:
        path = unquote_to_bytes(raw_path).decode()
        fields = parse_qsl(
            raw_query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_QUERY_FIELDS
        )
    except ValueError:
        return None
    if not path.startswith("/") or not path.isprintable():
        return None
    method = "GET" if head.method == b"HEAD" else head.method.decode("ascii")
    return Request(method, path, dict(fields), body, peer)
