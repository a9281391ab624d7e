"""Talks to the daemon's control socket, with nothing but `socket` and `json`.

HTTP/1.0, a connection a request: an answer then ends where the connection does. `http.client` would take longer to
import than everything else together.
"""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

from vllm_supervisor.errors import ConfigRefusedError, NoDaemonError, RefusedError, SupervisorError

Status = dict[str, Any]
"""The object of `GET /v1/status`. Its keys are the daemon's; nothing here relies on one being there."""

TIMEOUT = 5.0
"""Seconds for a step of the exchange. The daemon answers within 0.1 s in any state, but for a reload."""
_CHUNK = 65536
_MAX_HEAD = 65536
_OK = range(200, 300)


def get(path: str, target: str, timeout: float = TIMEOUT) -> bytes:
    """Return the body of `GET target` from the daemon at `path`. Raises NoDaemonError, RefusedError."""
    return b"".join(_exchange(path, f"GET {target} HTTP/1.0\r\n\r\n".encode(), timeout, timeout))


def get_json(path: str, target: str, timeout: float = TIMEOUT) -> Status:
    """Return the object that `GET target` answers with. Raises as `get`, and SupervisorError for what is no object."""
    return _object(path, get(path, target, timeout))


def post(path: str, target: str, body: dict[str, object], timeout: float = TIMEOUT) -> Status:
    """Ask for a change, and return the status that the daemon answers with, within `timeout`. Raises as `get_json`."""
    data = json.dumps(body).encode()
    head = f"POST {target} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return _object(path, b"".join(_exchange(path, head.encode() + data, timeout, timeout)))


def stream(path: str, target: str) -> Iterator[bytes]:
    """Yield the body of `GET target` as it comes. Raises as `get`."""
    return _exchange(path, f"GET {target} HTTP/1.0\r\n\r\n".encode(), TIMEOUT, None)


def follow(path: str, target: str) -> Iterator[bytes]:
    """Yield the body of `GET target`, which has no end of its own. Raises as `get`, and NoDaemonError at its end.

    A script that follows must not take the end of the daemon for the end of what there is to tell.
    """
    yield from stream(path, target)
    why = "it ended, or did not wait for a reader that had paused"
    raise NoDaemonError("the daemon closed the connection", f"{path}: {why}", "see `vllm-supervisor status`")


def connect(path: str, timeout: float) -> socket.socket:
    """Return a connection to the daemon. Raises NoDaemonError, or RefusedError where this user may not connect."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout)
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                sock.connect(path)
            except BlockingIOError:
                # The backlog is full. With a timeout set the kernel does not wait for room in it.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return sock
    except PermissionError:
        sock.close()
        raise RefusedError(
            f"control socket {path}", "this user may not connect", f"run it as root, or as a member of {_group(path)}"
        ) from None
    except (OSError, ValueError) as error:
        sock.close()
        raise no_daemon(path, _words(error)) from None


def no_daemon(where: str, why: str) -> NoDaemonError:
    """Return the error for a daemon that does not answer at `where`."""
    remedy = "start it (`vllm-supervisor run` or `systemctl start vllm-supervisor`), or name its socket with --socket"
    return NoDaemonError("no daemon answers", f"{where}: {why}", remedy)


def _exchange(path: str, request: bytes, timeout: float, patience: float | None) -> Iterator[bytes]:
    """Yield the body in pieces. `patience` is how long the next piece may take; None for ever."""
    with connect(path, min(timeout, TIMEOUT)) as sock:
        sock.settimeout(timeout)
        try:
            _send(sock, request)
            status, length, piece = _head(sock)
            if status not in _OK:
                raise _refusal(status, piece + b"".join(_body(sock, length, len(piece))))
            sock.settimeout(patience)
            yield piece
            yield from _body(sock, length, len(piece))
        except (OSError, EOFError) as error:
            raise no_daemon(path, _words(error)) from None


def _send(sock: socket.socket, request: bytes) -> None:
    try:
        sock.sendall(request)
    except (BrokenPipeError, ConnectionResetError):
        # A daemon with too many clients answers before it is asked; the answer is still there to read.
        return


def _head(sock: socket.socket) -> tuple[int, int | None, bytes]:
    """Return the status, the length of the body where it is known, and the beginning of the body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(_CHUNK)
        if not piece or len(data) > _MAX_HEAD:
            raise EOFError("it closed the connection without an answer")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if not first.startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():  # noqa: PLR2004 - version, status
        raise EOFError("what answers does not speak HTTP")
    length = None
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            length = int(value)
    return int(words[1]), length, rest


def _body(sock: socket.socket, length: int | None, received: int) -> Iterator[bytes]:
    while (length is None or received < length) and (piece := sock.recv(_CHUNK)):
        received += len(piece)
        yield piece
    if length is not None and received < length:
        raise EOFError("it closed the connection in the middle of its answer")


def _object(path: str, body: bytes) -> Status:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SupervisorError(f"control socket {path}", "the answer is no JSON object", "is it vllm-supervisor's?")
    return found


def _refusal(status: int, body: bytes) -> SupervisorError:
    """Return the error that the daemon answered with. Its message may bring its own remedy, after a semicolon."""
    try:
        error = json.loads(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, LookupError, TypeError):
        code, message = f"HTTP {status}", body[:200].decode("utf-8", "replace") or "no reason given"
    if code == "bad_configuration":
        return ConfigRefusedError(message)
    why, _, remedy = message.partition("; ")
    remedies = {
        "forbidden": "run it as root or as the daemon's user, or add this user to control.admins",
        "busy": "try again",
        "not_found": "the daemon is of another version; restart it",
    }
    return RefusedError(f"refused ({code})", why, remedy or remedies.get(code, "see `vllm-supervisor status`"))


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    said = getattr(error, "strerror", None)
    return said.lower() if isinstance(said, str) else str(error)


def _group(path: str) -> str:
    import grp  # noqa: PLC0415 - only this failure needs it
    import os  # noqa: PLC0415 - as above

    try:
        return f"the group {grp.getgrgid(os.stat(path).st_gid).gr_name}"  # noqa: PTH116 - pathlib is slow to import
    except (OSError, KeyError):
        return "the socket's group"
