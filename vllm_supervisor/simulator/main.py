"""The entry: read the flags, go through the phases before there is an engine, then hand over to the API server."""

import os
import signal
import socket
import time

from vllm_supervisor import simulator
from vllm_supervisor.simulator import lines
from vllm_supervisor.simulator.args import ServeArgs, UsageError, parse
from vllm_supervisor.simulator.engine import Settings
from vllm_supervisor.simulator.knobs import KnobError, Knobs, count_start, knobs_from
from vllm_supervisor.simulator.lines import Log, plain, put
from vllm_supervisor.simulator.processes import end_by, guard, note
from vllm_supervisor.simulator.server import ApiServer
from vllm_supervisor.simulator.titles import rename

_USAGE_ERROR = 2
_SECRET = frozenset({"api_key", "hf_token"})
"""Shown as stars since about 0.32."""


def main(argv: list[str]) -> int:
    """Run `serve MODEL …` and return vLLM's exit status; ends by a signal where vLLM does."""
    if not argv or argv[0] != "serve" or "--help" in argv or "-h" in argv:
        print(simulator.__doc__)  # noqa: T201 - what --help is for
        return 0 if "--help" in argv or "-h" in argv else _USAGE_ERROR
    environ = dict(os.environ)
    try:
        args, sim = parse(argv[1:], environ)
        knobs = count_start(knobs_from(environ, sim))
    except (UsageError, KnobError) as error:
        usage = error if isinstance(error, UsageError) else UsageError(str(error))
        plain(f"usage: {usage.usage}\n{usage.prog}: error: {usage}")
        return _USAGE_ERROR
    return _serve(Settings(args, knobs, environ))


def _serve(settings: Settings) -> int:
    args, knobs, _ = settings
    rename("vllm")
    note(knobs, "APIServer", os.getpid())
    guard(knobs)
    if knobs.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # What vLLM spends on imports: nothing is printed, and SIGTERM kills at once (measured, 0.32).
    time.sleep(knobs.import_seconds)
    if knobs.replay is not None:
        return _replay(knobs, knobs.replay)
    if knobs.exit_phase == "import" and (knobs.exit_code is not None or knobs.exit_signal is not None):
        time.sleep(knobs.exit_after)
        if knobs.exit_signal is not None:
            end_by(knobs.exit_signal)
        return knobs.exit_code or 0
    vllm_log = Log("APIServer")
    for line in lines.LOGO:
        vllm_log.info("api_utils.py:347", line.format(version="0.32.0", model=args.model))
    shown = {name: "***" if name in _SECRET else value for name, value in args.given.items()}
    vllm_log.info("api_utils.py:286", f"non-default args: {shown}")
    try:
        # Bound before the engine exists and listening only when it is ready: refused until then (measured, 0.32).
        listener = _bind(args)
    except OSError as error:
        plain(lines.PORT_TAKEN.format(error=f"OSError: {error}"))
        return 1
    with listener:
        return ApiServer(settings, listener).run()


def _bind(args: ServeArgs) -> socket.socket:
    host = args.host or ""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, args.port))
    except OSError:
        listener.close()
        raise
    return listener


def _replay(knobs: Knobs, path: str) -> int:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 5 ms of each start
            put(file.read())
    except OSError as error:
        plain(f"vllm-supervisor: simulate: replay: {error}; give a readable file", lines.ERR)
        return _USAGE_ERROR
    time.sleep(knobs.exit_after)
    if knobs.exit_signal is not None:
        end_by(knobs.exit_signal)
    return 1 if knobs.exit_code is None else knobs.exit_code
