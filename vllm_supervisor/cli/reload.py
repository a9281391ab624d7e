"""`reload`: have the daemon read its configuration anew, and say what came of it."""

import argparse
import json
import sys
import time

from vllm_supervisor.cli.client import Status, post
from vllm_supervisor.cli.control import add_arguments as add_control_arguments
from vllm_supervisor.cli.find import SET
from vllm_supervisor.cli.own import find_own
from vllm_supervisor.cli.progress import ProgressLine
from vllm_supervisor.cli.render import duration
from vllm_supervisor.cli.waiting import TimedOutError, failed, wait_until
from vllm_supervisor.errors import BadInputError, ExitCode, NoDaemonError, RefusedError

TIMEOUT = 90.0
"""Seconds. The daemon gives the reading of a file 60."""
_SHORTEST = 0.1
"""Seconds: a timeout of 0 still asks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `reload` has beside the common options."""
    add_control_arguments(parser)
    parser.add_argument(
        "--restart-engine", action="store_true", help="restart the engine, where a change needs a new one"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would change, and change nothing")


def run(args: argparse.Namespace) -> int:
    """Ask, and wait for a new engine where one comes. Raises as `start` does; RefusedError for a bad file."""
    _refuse_sets(args.set)
    began = time.monotonic()
    path, _ = find_own(args)
    body = {"reason": args.reason, "drain": args.drain}
    body |= {"restart_engine": args.restart_engine, "dry_run": args.dry_run}
    status = _asked(path, body, args.timeout)
    done = status.get("reload") or {}
    for warning in done.get("warnings") or ():
        print(f"vllm-supervisor: warning: {warning}", file=sys.stderr)
    if not args.json:
        print(told(done, status, restart=args.restart_engine))
    waited = args.wait and done.get("restarted")
    if waited:
        left = None if args.timeout is None else max(0.0, args.timeout - (time.monotonic() - began))
        with ProgressLine(sys.stderr) as line:
            status = {**wait_until(path, _serves, "ready", left, line.show), "reload": done}
    if args.json:
        print(json.dumps(status, indent=2))
    elif waited:
        print(f"ready after {duration(time.monotonic() - began)}")
    return ExitCode.OK


def dry_run(path: str, values: dict[str, str] | None) -> Status:
    """Ask the daemon what a reload would change: of its own file, or to these values. Raises as `post`."""
    body: dict[str, object] = {"dry_run": True}
    return post(path, "/v1/reload", body if values is None else body | {"values": values}, TIMEOUT)


def told(done: Status, status: Status, *, restart: bool) -> str:
    """Say what a reload changed, or would change, in a line for each kind."""
    would = "would " if done.get("dry_run") else ""
    if done.get("restarted") or (restart and would):
        engine = f"{would}take effect with the engine that is launched now"
    elif restart:
        engine = "take effect with the next start"
    else:
        engine = f"{would}need a new engine: reload --restart-engine"
    rows = [
        (done.get("live"), f"{would}take effect at once" if would else "took effect"),
        (done.get("engine"), engine),
        (done.get("daemon"), f"{would}need a new daemon: systemctl restart, or end it and run it again"),
    ]
    lines = [f"{effect}: {', '.join(keys)}" for keys, effect in rows if keys]
    path = (status.get("config") or {}).get("path")
    return "\n".join(lines) or f"{path}: nothing {'would change' if would else 'has changed'}"


def _refuse_sets(sets: list[str]) -> None:
    """Raise BadInputError for values that would have no effect."""
    for text in sets:
        if not text.startswith(SET):
            why = "the daemon reads its file with the options that it was started with, and takes none of a client's"
            remedy = "change the file; `check --against-running --set KEY=VALUE` tells what a value would change"
            raise BadInputError(f"reload --set {text.partition('=')[0]}", why, remedy)


def _asked(path: str, body: dict[str, object], timeout: float | None) -> Status:
    """Ask for the reload. Raises TimedOutError where `timeout` is over before the daemon has answered."""
    limit = TIMEOUT if timeout is None else min(TIMEOUT, max(timeout, _SHORTEST))
    began = time.monotonic()
    try:
        return post(path, "/v1/reload", body, limit)
    except NoDaemonError:
        if timeout is None or time.monotonic() - began < limit:
            raise
        why = f"the daemon has not answered after {timeout:g} s, and may still take the file"
        raise TimedOutError("timed out", why, "see `vllm-supervisor events`") from None


def _serves(status: Status) -> bool:
    """Say whether the new engine is ready. Raises once it will not be."""
    if status.get("state") == "failed":
        raise failed(status)
    if status.get("intent") != "up":
        raise RefusedError("reload", "somebody else asked for a stop meanwhile", "see `vllm-supervisor events`")
    waits = (status.get("config") or {}).get("pending")
    return status.get("state") == "ready" and not waits
