"""`check`: validates the configuration and shows what would be launched. Nothing is launched, made or changed."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_supervisor.config import launch, paths
from vllm_supervisor.config.launcher import LauncherMissing, find_launcher
from vllm_supervisor.config.load import DEFAULT_PATH, Loaded, load
from vllm_supervisor.domain.secret import MASK
from vllm_supervisor.errors import ConfigError, ExitCode, Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `check` has beside the global options `-c`, `--set` and `--json`."""
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=f"the configuration (default: -c FILE, or {DEFAULT_PATH})"
    )


def run(args: argparse.Namespace) -> int:
    """Print every problem and return 2, or print what would be launched and return 0."""
    path = Path(args.file or args.config or DEFAULT_PATH)
    try:
        loaded = load(path, sets=args.set or (), environ=os.environ)
        plan = _plan(loaded, os.environ)
    except ConfigError as error:
        for problem in error.problems:
            _print(f"vllm-supervisor: {problem}", error=True)
        if args.json:
            _print(json.dumps({"ok": False, "problems": [problem._asdict() for problem in error.problems]}))
        return ExitCode.BAD_CONFIG
    for warning in loaded.warnings:
        _print(f"vllm-supervisor: warning: {warning}", error=True)
    _print(json.dumps({"ok": True, **asdict(plan), "warnings": loaded.warnings}) if args.json else _text(path, plan))
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Plan:
    """What would be launched, fit to be shown. The names are those of `--json`."""

    argv: tuple[str, ...]
    launcher: str
    env: dict[str, str]
    base_url: str
    model: str
    concurrency: int
    log_file: str
    socket: str
    state_dir: str


def _plan(loaded: Loaded, environ: Mapping[str, str]) -> _Plan:
    """Raise ConfigError where the launcher is not there."""
    spec = launch.launch_spec(loaded.settings, environ)
    engine = launch.engine_spec(loaded.settings)
    program = find_launcher(spec)
    if isinstance(program, LauncherMissing):
        key = "engine.vllm.launcher"
        raise ConfigError((Problem(loaded.place(key), key, program.why, program.remedy),))
    return _Plan(
        argv=launch.masked_argv(spec, loaded.secrets),
        launcher=program,
        env=launch.added_env(spec, environ, loaded.secrets),
        base_url=engine.base_url,
        model=engine.model,
        concurrency=engine.concurrency,
        log_file=spec.log_file,
        socket=str(paths.control_socket(loaded.settings, environ)),
        state_dir=str(paths.state_dir(loaded.settings, environ)),
    )


def _text(path: Path, plan: _Plan) -> str:
    lines = [
        f"{path}: valid",
        f"command      {' '.join(_quoted(word) for word in plan.argv)}",
        f"launcher     {plan.launcher}",
        *(f"environment  {name}={_quoted(value)}" for name, value in plan.env.items()),
        f"base URL     {plan.base_url}",
        f"log file     {plan.log_file}",
        f"socket       {plan.socket}",
        f"state        {plan.state_dir}",
    ]
    return "\n".join(lines)


def _quoted(word: str) -> str:
    """Quote for a shell, but leave the mask of a secret as it is known."""
    plain = word.replace(MASK, "x")
    return word if shlex.quote(plain) == plain else shlex.quote(word)


def _print(text: str, *, error: bool = False) -> None:
    # A variable of the environment need not be UTF-8, and then it cannot be printed as it is.
    print(text.encode(errors="backslashreplace").decode(), file=sys.stderr if error else sys.stdout)
