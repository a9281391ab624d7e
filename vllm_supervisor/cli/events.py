"""`events`: the flight recorder, a JSON object a line."""

import argparse
import sys

from vllm_supervisor.cli.client import follow, stream
from vllm_supervisor.cli.find import find_socket
from vllm_supervisor.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `events` has beside the common options."""
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what happens")


def run(args: argparse.Namespace) -> int:
    """Print the events. Raises NoDaemonError, RefusedError."""
    path = find_socket(args)
    for piece in follow(path, "/v1/events?follow=1") if args.follow else stream(path, "/v1/events"):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return ExitCode.OK
