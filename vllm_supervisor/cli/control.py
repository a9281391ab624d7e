"""`start`, `stop` and `restart`: ask the daemon, and wait until it is done."""

import argparse
import json
import sys
import time

from vllm_supervisor.cli.client import Status, post
from vllm_supervisor.cli.own import find_own
from vllm_supervisor.cli.progress import ProgressLine
from vllm_supervisor.cli.render import duration, status_text
from vllm_supervisor.cli.wait import seconds
from vllm_supervisor.cli.waiting import failed, wait_until
from vllm_supervisor.errors import ExitCode, RefusedError

_STALE_FOR = 1.0
"""Seconds for which `failed` may still be what was before, where nothing else shows that the daemon has begun."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the three have beside the common options."""
    parser.add_argument("--reason", metavar="TEXT", help="why, for the record")
    parser.add_argument("--no-drain", dest="drain", action="store_false", help="do not wait for running requests")
    parser.add_argument("--no-wait", dest="wait", action="store_false", help="return once the daemon has accepted")
    parser.add_argument("--timeout", type=seconds, metavar="S", help="stop waiting after S seconds, exit status 1")


def run(args: argparse.Namespace) -> int:
    """Ask and wait. Raises RefusedError, FailedMeanwhileError, TimedOutError, NoDaemonError."""
    began = time.monotonic()
    # Asked for before the request: its answer may come from before or after the new launch is numbered.
    path, before = find_own(args)
    generation = before.get("generation") or 0
    status = post(path, f"/v1/{args.command}", {"reason": args.reason, "drain": args.drain})
    if status.get("state") == "starting" and status.get("pid") is None:
        # Numbered but not launched yet (a port that is taken, say): there is nothing to stop, and it is the next one.
        generation = min(generation, status.get("generation", 0) - 1)
    if args.wait:
        goal = _Goal(args.command, generation)
        with ProgressLine(sys.stderr) as line:
            status = wait_until(path, goal, _Goal.WORDS[args.command], args.timeout, line.show)
    if args.json:
        print(json.dumps(status, indent=2))
    elif args.wait:
        print(f"{_Goal.WORDS[args.command]} after {duration(time.monotonic() - began)}")
    else:
        print(status_text(status, colour=False).splitlines()[0])
    return ExitCode.OK


class _Goal:
    """Says of a status whether it is what was asked for. Raises once it cannot become that any more."""

    WORDS = {"start": "ready", "stop": "stopped", "restart": "ready"}  # noqa: RUF012 - never changed

    def __init__(self, command: str, generation: int) -> None:
        self._command = command
        self._generation = generation
        self._began = time.monotonic()
        self._moved = False
        """Something other than `failed` was seen since, so that the next `failed` is news."""

    def __call__(self, status: Status) -> bool:
        state = status.get("state")
        launched = (status.get("generation") or 0) > self._generation
        if state == "failed":
            if self._moved or launched or time.monotonic() - self._began > _STALE_FOR:
                raise failed(status)
            return False
        self._moved = True
        if self._command == "stop":
            if status.get("intent") == "up":
                raise RefusedError("stop", "somebody else asked for a start meanwhile", "see `vllm-supervisor events`")
            return bool(state == "stopped")
        if status.get("intent") != "up":
            raise RefusedError(
                self._command, "somebody else asked for a stop meanwhile", "see `vllm-supervisor events`"
            )
        return bool(state == "ready") and (launched or self._command == "start")
