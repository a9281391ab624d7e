"""The API server: the leader of the tree. One thread waits for the engine, signals, timers and new connections."""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable

from vllm_supervisor.simulator import lines
from vllm_supervisor.simulator.api import Api
from vllm_supervisor.simulator.client import EngineClient
from vllm_supervisor.simulator.engine import BLOCK_SIZE, Settings
from vllm_supervisor.simulator.engine_process import EngineProcess
from vllm_supervisor.simulator.lines import Log, plain
from vllm_supervisor.simulator.metrics import Metrics
from vllm_supervisor.simulator.noise import StatsLine, start_flood
from vllm_supervisor.simulator.processes import end_by
from vllm_supervisor.simulator.web import Exchange, serve_connection

_BACKLOG = 2048
_GOODBYE = 1.0
"""Seconds for answers on their way to be written, when the server goes because its engine did."""
_KEEP_ALIVE = 5.0
_STATS_INTERVAL = 10.0
_WAKE = 0
"""Written to the wake-up pipe by threads; signals write their number."""


class ApiServer:
    """From the launch of the engine to the exit status."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._log = Log("APIServer")
        args, knobs, environ = settings
        self._metrics = Metrics(
            args.name,
            block_size=BLOCK_SIZE,
            kv_tokens=knobs.kv_tokens,
            max_model_len=args.max_model_len,
            engine=args.log_stats,
        )
        self._keep_alive = float(environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE") or _KEEP_ALIVE)
        self._stats = StatsLine(self._log, self._metrics)
        self._stats_interval = float(environ.get("VLLM_LOG_STATS_INTERVAL") or _STATS_INTERVAL)
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._poller = select.poll()
        self._wake_read, self._wake_write = os.pipe()
        self._ready = False
        self._stopping = False
        self._terms = 0
        self._busy = 0
        self._busy_lock = threading.Lock()
        self._engine_error = False
        self._end: Callable[[], int] | None = None

    def run(self) -> int:
        """Serve until something ends it. Returns the exit status, or ends by a signal."""
        self._catch_signals()
        self._engine = EngineProcess(self._settings, self._listener)
        self._client = EngineClient(self._engine.link, self._metrics)
        self._poller.register(self._engine.link.sock, select.POLLIN)
        knobs = self._settings.knobs
        start_flood(knobs)
        if knobs.exit_phase == "load":
            self._exit_later()
        while self._end is None:
            self._wait()
        return self._end()

    def _catch_signals(self) -> None:
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _to_pipe)
        self._poller.register(self._wake_read, select.POLLIN)

    def _wait(self) -> None:
        now = time.monotonic()
        timeout = None
        if self._timers:
            timeout = max(0.0, min(at for at, _ in self._timers) - now) * 1000 + 1
        ready = {fd for fd, _ in self._poller.poll(timeout)}
        # Signals first: an engine that ended by the signal that is also ours is no engine that died by itself.
        if self._wake_read in ready:
            for number in os.read(self._wake_read, 512):
                self._woken(number)
        now = time.monotonic()
        due = [action for at, action in self._timers if at <= now]
        self._timers = [(at, action) for at, action in self._timers if at > now]
        for action in due:
            if self._end is None:
                action()
        if self._end is None and self._engine.link.sock.fileno() in ready:
            self._hear()
        if self._end is None and self._ready and self._listener.fileno() in ready:
            self._accept()

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, action))

    def _woken(self, number: int) -> None:
        if number == _WAKE:
            if self._engine_error and not self._stopping and not self._keeps_on():
                # A request that meets a dead engine ends the server at once, else a watchdog does (measured, 0.32).
                self._leave()
        elif not self._stopping and self._end is None:
            self._terms += 1
            if self._ready:
                self._shut_down()
            elif self._terms > 1 or not self._settings.knobs.lose_first_sigterm:
                self._end = self._interrupted

    # --- the engine's life

    def _hear(self) -> None:
        messages = self._engine.link.receive()
        if messages is None:
            self._poller.unregister(self._engine.link.sock)
            if not self._stopping:
                self._engine_died()
            return
        for message in messages:
            if "workers" in message:
                self._engine.workers = message["workers"]
            elif "ready" in message:
                self._serve()
            else:
                self._client.hear(message)

    def _serve(self) -> None:
        args, knobs, _ = self._settings
        self._log.info("entry.py:136", f"Supported tasks: {['embed'] if args.pooling else ['generate']}")
        scheme = "https" if args.ssl_certfile else "http"
        host = args.host or "0.0.0.0"  # noqa: S104 - vLLM's own default
        shown = f"[{host}]" if ":" in host else host
        self._log.info("entry.py:140", f"Starting vLLM server on {scheme}://{shown}:{args.port}")
        self._log.info("launcher.py:186", "Available routes are:")
        for path, method in lines.ROUTES + (lines.POOLING_ROUTES if args.pooling else lines.GENERATE_ROUTES):
            self._log.info("launcher.py:195", f"Route: {path}, Methods: {method}")
        plain(f"INFO:     Started server process [{os.getpid()}]")
        plain("INFO:     Waiting for application startup.")
        self._api = Api(self._settings, self._client, self._metrics, self._met_dead_engine)
        self._tls = _tls_context(args.ssl_certfile, args.ssl_keyfile)
        try:
            self._listener.listen(_BACKLOG)
        except OSError as error:
            # Another one bound the same address with SO_REUSEADDR and listened first.
            plain(lines.PORT_TAKEN.format(error=f"OSError: {error}"))
            self._end = lambda: self._exit(1)
            return
        plain("INFO:     Application startup complete.")
        self._ready = True
        self._poller.register(self._listener, select.POLLIN)
        if args.log_stats:
            self._after(self._stats_interval, self._log_stats)
        if knobs.exit_phase == "ready":
            self._exit_later()
        if knobs.leader_sigkill_after is not None:
            self._after(knobs.leader_sigkill_after, lambda: end_by(signal.SIGKILL))

    def _engine_died(self) -> None:
        code = self._engine.reap()
        if not self._ready:
            plain(lines.ENGINE_NEVER_STARTED.format(failed={"EngineCore": code}))
            self._end = lambda: 1
            return
        self._log.warning(
            "core_client.py:817", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
        )
        self._log.error("async_llm.py:906", lines.OUTPUT_HANDLER_FAILED)
        self._client.died()
        if not self._keeps_on():
            self._after(self._settings.knobs.engine_exit_delay, self._leave)

    def _keeps_on(self) -> bool:
        return self._settings.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") not in {"", "0"}

    def _leave(self) -> None:
        """End with status 0, as vLLM does whose engine died, once answers on their way are written."""
        if not self._stopping:
            self._stopping = True
            plain("INFO:     Shutting down")
            self._close_listener()
            self._after(_GOODBYE, self._left)
        if self._busy == 0:
            self._left()
        else:
            self._after(0.01, self._leave)

    def _left(self) -> None:
        plain("INFO:     Waiting for application shutdown.")
        plain("INFO:     Application shutdown complete.")
        plain(f"INFO:     Finished server process [{os.getpid()}]")
        self._end = lambda: self._exit(0)

    # --- connections

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:
            return
        threading.Thread(target=self._connection, args=(sock, f"{address[0]}:{address[1]}"), daemon=True).start()

    def _connection(self, sock: socket.socket, peer: str) -> None:
        sock.settimeout(None)
        if self._tls is not None:
            try:
                sock = self._tls(sock)
            except OSError:
                sock.close()
                return
        access_log = self._settings.args.access_log
        serve_connection(sock, peer, self._handle, keep_alive=self._keep_alive, access_log=access_log)

    def _handle(self, exchange: Exchange) -> None:
        with self._busy_lock:
            self._busy += 1
        try:
            self._api.handle(exchange)
        finally:
            with self._busy_lock:
                self._busy -= 1

    def _met_dead_engine(self) -> None:
        self._engine_error = True
        os.write(self._wake_write, bytes([_WAKE]))

    def _close_listener(self) -> None:
        self._poller.unregister(self._listener)
        self._ready = False
        self._listener.close()

    def _log_stats(self) -> None:
        self._stats.tick(self._stats_interval)
        self._after(self._stats_interval, self._log_stats)

    # --- ends

    def _exit_later(self) -> None:
        knobs = self._settings.knobs
        if knobs.exit_signal is not None:
            number = knobs.exit_signal
            self._after(knobs.exit_after, lambda: end_by(number))
        elif knobs.exit_code is not None:
            code = knobs.exit_code
            self._after(knobs.exit_after, lambda: self._exit_now(code))

    def _exit_now(self, code: int) -> None:
        plain(f"Traceback (most recent call last):\nSystemExit: {code} (simulated)")
        self._end = lambda: self._exit(code)

    def _interrupted(self) -> int:
        plain(lines.TERMINATED)
        self._exit(0)
        end_by(signal.SIGINT)
        return 1

    def _shut_down(self) -> None:
        self._stopping = True
        seconds = self._settings.args.shutdown_timeout
        mode = "drain" if seconds else "abort"
        self._log.info("launcher.py:254", "[shutdown] API server: shutdown triggered")
        self._log.info(
            "launcher.py:270", f"[shutdown] API server: stopping engine client mode={mode} timeout={seconds}s"
        )
        self._api.draining = True
        self._drain(time.monotonic() + seconds)

    def _drain(self, deadline: float) -> None:
        if self._engine.alive and self._client.in_flight and time.monotonic() < deadline:
            self._after(0.01, lambda: self._drain(deadline))
            return
        self._engine.stop(self._log)
        self._log.info("launcher.py:279", "[shutdown] API server: engine client stopped")
        self._log.info("launcher.py:282", "[shutdown] API server: signalling HTTP server shutdown")
        self._log.info("launcher.py:304", "[shutdown] API server: shutting down FastAPI HTTP server")
        plain("INFO:     Shutting down")
        self._close_listener()
        if self._settings.knobs.wait_for_streams and self._busy:
            plain("INFO:     Waiting for connections to close. (CTRL+C to force quit)")
            self._wait_for_streams()
        else:
            self._closed()

    def _wait_for_streams(self) -> None:
        if self._busy:
            self._after(0.01, self._wait_for_streams)
        else:
            self._closed()

    def _closed(self) -> None:
        plain("INFO:     Waiting for application shutdown.")
        plain("INFO:     Application shutdown complete.")
        self._end = lambda: self._exit(0)

    def _exit(self, code: int) -> int:
        self._engine.stop(self._log)
        return code


def _to_pipe(number: int, frame: object) -> None:
    """Have a handler, so that the signal's number reaches the wake-up pipe."""


def _tls_context(certfile: str | None, keyfile: str | None) -> Callable[[socket.socket], socket.socket] | None:
    if certfile is None:
        return None
    import ssl  # noqa: PLC0415 - 20 ms of each start, for the few that want it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certfile, keyfile)
    return lambda sock: context.wrap_socket(sock, server_side=True)
