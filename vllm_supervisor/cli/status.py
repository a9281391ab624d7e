"""`status`: what the daemon knows, in a few lines or as JSON."""

import argparse
import json

from vllm_supervisor.cli.client import get_json
from vllm_supervisor.cli.find import find_socket
from vllm_supervisor.cli.render import colourful, status_text
from vllm_supervisor.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `status` has beside the common options."""
    parser.add_argument("--check", action="store_true", help="exit 1 unless the engine is ready")


def run(args: argparse.Namespace) -> int:
    """Print the status; 1 with --check unless ready. Raises NoDaemonError."""
    status = get_json(find_socket(args), "/v1/status")
    print(json.dumps(status, indent=2) if args.json else status_text(status, colour=colourful()))
    return ExitCode.NOT_READY if args.check and not status.get("ready") else ExitCode.OK
