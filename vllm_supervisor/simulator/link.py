"""Messages between the API server and the EngineCore: JSON, one a line, over a socket pair."""

import json
import socket
import threading
from typing import Any

_CHUNK = 1 << 16

Message = dict[str, Any]


class Link:
    """One end. Sending is safe from several threads; receiving is for one."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._rest = b""

    def send(self, message: Message) -> bool:
        """Send; False when the other end is gone. Waits while the other end does not read: so does a frozen engine."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                self.sock.sendall(data)
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """Return the complete messages of one read; None at the end of file."""
        try:
            data = self.sock.recv(_CHUNK)
        except ConnectionError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
