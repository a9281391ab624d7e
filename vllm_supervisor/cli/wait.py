"""`wait`: returns when the engine is in a state."""

import argparse
import json
import sys
import time

from vllm_supervisor.cli.client import Status
from vllm_supervisor.cli.find import find_socket
from vllm_supervisor.cli.progress import ProgressLine
from vllm_supervisor.cli.render import duration
from vllm_supervisor.cli.waiting import failed, wait_until
from vllm_supervisor.errors import ExitCode

STATES = ("stopped", "starting", "ready", "unhealthy", "stopping", "backoff", "failed")
"""`domain.model.PublicState`, which a client has no time to import."""


def seconds(text: str) -> float:
    """Read a length of time from the command line. Raises ValueError, which argparse reports."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `wait` has beside the common options."""
    parser.add_argument("--for", dest="state", choices=STATES, default="ready", help="the state (default: ready)")
    parser.add_argument("--timeout", type=seconds, metavar="S", help="give up after S seconds with exit status 1")


def run(args: argparse.Namespace) -> int:
    """Wait. Raises TimedOutError, FailedMeanwhileError, NoDaemonError."""

    def fits(status: Status) -> bool:
        if status.get("state") == "failed" != args.state:
            raise failed(status)
        return bool(status.get("state") == args.state)

    began = time.monotonic()
    with ProgressLine(sys.stderr) as line:
        status = wait_until(find_socket(args), fits, args.state, args.timeout, line.show)
    waited = duration(time.monotonic() - began)
    print(json.dumps(status, indent=2) if args.json else f"{args.state} after {waited}")
    return ExitCode.OK
