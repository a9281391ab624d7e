"""Which configuration file a command is about."""

import argparse
from pathlib import Path

from vllm_supervisor.cli.find import is_name
from vllm_supervisor.config.load import DEFAULT_PATH


def configuration(args: argparse.Namespace, instance: str | None = None) -> Path:
    """Return the file of -c; else that of --instance, or of `instance`, as its unit names it; else the default.

    Raises SupervisorError for an instance that is no name.
    """
    if args.config:
        return Path(args.config)
    name = args.instance or instance
    return DEFAULT_PATH.with_name(f"{is_name(name)}.yaml") if name else DEFAULT_PATH
