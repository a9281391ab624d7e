"""Runs a load, and shows each step when it is done."""

import argparse
import json
import sys
from pathlib import Path
from typing import Literal

from vllm_supervisor.cli.advise import loadtext
from vllm_supervisor.cli.advise.load import Run, load
from vllm_supervisor.errors import ExitCode, SupervisorError

_INTERRUPTED = 130
_OUT = "-"


class NotWrittenError(SupervisorError):
    """Raised when the CSV cannot be written."""

    exit_code = ExitCode.BAD_CONFIG


def run_load(args: argparse.Namespace, socket: str) -> int:
    """Run it; 0, 1 where nothing counts, 130 where it was interrupted; all show what there is.

    Raises as `load`, NotWrittenError (2), SupervisorError (1) where the engine went away.
    """
    if args.csv and args.csv != _OUT:
        # Before the load: it takes minutes, and others have a part in it.
        _write(args.csv, "", mode="a")
    quiet = args.json or args.csv == _OUT
    return _told(load(args, socket, _ignore if quiet else _show), args)


def _told(run: Run, args: argparse.Namespace) -> int:
    """Show what came out, and return the status."""
    if args.csv == _OUT:
        print(loadtext.as_csv(run), end="")
    elif args.json:
        print(json.dumps(loadtext.as_json(run), ensure_ascii=False))
    else:
        print(loadtext.foot(run))
    sys.stdout.flush()
    if args.csv and args.csv != _OUT:
        _write(args.csv, loadtext.as_csv(run), mode="w")
    if run.interrupted:
        return _INTERRUPTED
    if run.lost:
        raise SupervisorError("advise --load", run.lost, "see `vllm-supervisor status`, and run it again")
    return ExitCode.OK if run.conclusion else ExitCode.NOT_READY


def _write(name: str, text: str, *, mode: Literal["a", "w"]) -> None:
    try:
        with Path(name).open(mode) as file:
            file.write(text)
    except OSError as error:
        why = error.strerror or str(error)
        raise NotWrittenError(name, why, "name a file that can be written, or - for standard output") from None


def _show(run: Run) -> None:
    print(loadtext.row(run, len(run.steps) - 1) if run.steps else loadtext.head(run), flush=True)


def _ignore(_run: Run) -> None:
    pass
