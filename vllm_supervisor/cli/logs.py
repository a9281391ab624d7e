"""`logs`: vLLM's own log."""

import argparse
import sys

from vllm_supervisor.cli.client import follow, get
from vllm_supervisor.cli.find import find_socket
from vllm_supervisor.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `logs` has beside the common options."""
    parser.add_argument("-n", "--lines", type=int, default=100, metavar="N", help="the last N lines (default: 100)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is appended")


def run(args: argparse.Namespace) -> int:
    """Print the log's bytes as they are: vLLM's output need not be UTF-8. Raises NoDaemonError, RefusedError."""
    path, target = find_socket(args), f"/v1/logs?tail={args.lines}"
    # Without -f the whole answer is taken before any is shown: the daemon gives a reader that pauses (`less`) up.
    for piece in follow(path, f"{target}&follow=1") if args.follow else [get(path, target)]:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return ExitCode.OK
