"""`run`: the daemon, in the foreground."""

import argparse
import os
from pathlib import Path

from vllm_supervisor.config.reading import Source
from vllm_supervisor.errors import BadInputError

DEFAULT_CONFIG = Path("/etc/vllm-supervisor/config.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`run` has no arguments beside the global ones."""
    del parser


def run(args: argparse.Namespace) -> int:
    """Run the daemon until it is told to end; return its exit status. Raises SupervisorError where it cannot begin."""
    if args.instance:
        remedy = f"`systemctl start vllm-supervisor@{args.instance}`, or `run -c FILE` with its own control.socket"
        raise BadInputError(f"run --instance {args.instance}", "it is systemd that starts an instance", remedy)
    path = Path(args.config) if args.config else DEFAULT_CONFIG
    source = Source(path.absolute(), tuple(args.set), os.environ)
    reading = source.begin()
    from vllm_supervisor import app  # noqa: PLC0415 -- a quarter of a second, in which the configuration is read

    return app.main(reading.result(), source)
