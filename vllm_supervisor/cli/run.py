"""`run`: the daemon, in the foreground."""

import argparse
import os
from pathlib import Path

from vllm_supervisor import app
from vllm_supervisor.config.load import load

DEFAULT_CONFIG = Path("/etc/vllm-supervisor/config.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`run` has no arguments beside the global ones."""
    parser.set_defaults(needs_config=True)


def run(args: argparse.Namespace) -> int:
    """Run the daemon until it is told to end; return its exit status. Raises SupervisorError where it cannot begin."""
    path = Path(args.config) if args.config else DEFAULT_CONFIG
    loaded = load(path, sets=args.set or (), environ=os.environ)
    return app.main(loaded)
