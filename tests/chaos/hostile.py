"""An engine that turns hostile: `python -m tests.chaos.hostile PORT MODE_FILE`.

It serves what vLLM serves, just enough to become ready, until MODE_FILE names one of `MODES`. Then `/health`, or
`/metrics`, is answered in that way.
"""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HEALTH = ("slow", "garbage", "huge", "redirect", "reset", "endless", "trickle", "header flood")
METRICS = ("malformed metrics", "huge metrics", "metrics of bytes")
MODES = HEALTH + METRICS

_MODELS = b'{"object": "list", "data": [{"id": "demo/model", "object": "model"}]}'
_COMPLETION = b'{"id": "1", "object": "text_completion", "choices": [{"text": "x"}], "usage": {"completion_tokens": 1}}'
_METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="demo/model"} 0
vllm:num_requests_waiting{model_name="demo/model"} 0
vllm:generation_tokens_total{model_name="demo/model"} %d
"""
_PATIENCE = 20.0


class Engine(BaseHTTPRequestHandler):
    """One connection."""

    mode_file = Path()
    tokens = 0

    def do_GET(self) -> None:
        mode = self._mode()
        if self.path == "/health":
            self._misbehave(mode) if mode in HEALTH else self._answer(b"")
        elif self.path == "/metrics":
            self._metrics(mode)
        elif self.path == "/v1/models":
            self._answer(_MODELS)
        else:
            self._answer(b'{"version": "0.32.0"}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        Engine.tokens += 1
        self._answer(_COMPLETION)

    def _mode(self) -> str:
        try:
            return self.mode_file.read_text()
        except OSError:
            return ""

    def _answer(self, body: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _misbehave(self, mode: str) -> None:
        match mode:
            case "slow":
                time.sleep(2)
                self._answer(b"")
            case "garbage":
                self.wfile.write(b"\x00\xff this is no HTTP\r\n\r\n" * 20)
            case "huge":
                self._answer(b"x" * 20_000_000)
            case "redirect":
                self._answer(b"", 307, Location=f"http://127.0.0.1:{self.server.server_port}/health")  # type: ignore[attr-defined]  # HTTPServer's
            case "reset":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            case "endless":
                self._pour(
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"y" * 4096 + b"\r\n", 0
                )
            case "trickle":
                self._pour(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"z", 0.1)
            case "header flood":
                self._pour(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n" * 100, 0)
        self.close_connection = True

    def _pour(self, head: bytes, more: bytes, pause: float) -> None:
        self.wfile.write(head)
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            self.wfile.write(more)
            time.sleep(pause)

    def _metrics(self, mode: str) -> None:
        match mode:
            case "malformed metrics":
                self._answer(
                    b'vllm:num_requests_running{model_name="x} NaN\n{}{}{} = ;\n\nvllm:generation_tokens_total -1e999\n'
                )
            case "huge metrics":
                line = b'vllm:num_requests_running{model_name="demo/model",engine="%d"} 1\n'
                self._answer(b"".join(line % number for number in range(50_000_000 // len(line))))
            case "metrics of bytes":
                self._answer(bytes(range(256)) * 4096)
            case _:
                self._answer(_METRICS % Engine.tokens)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- http.server's name
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that give up are the rule here."""


if __name__ == "__main__":
    Engine.mode_file = Path(sys.argv[2])
    print("hostile engine", flush=True)
    _Server(("127.0.0.1", int(sys.argv[1])), Engine).serve_forever()
