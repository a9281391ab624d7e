"""`check`: validates the configuration and shows what would be launched. Nothing is launched, made or changed."""

import argparse
import json
import os
import pwd
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_supervisor.cli.client import Status, get_json
from vllm_supervisor.cli.find import find_socket
from vllm_supervisor.cli.own import find_own
from vllm_supervisor.cli.place import configuration
from vllm_supervisor.cli.reload import dry_run, told
from vllm_supervisor.config import launch, paths
from vllm_supervisor.config.digests import digests
from vllm_supervisor.config.launcher import LauncherMissing, find_launcher
from vllm_supervisor.config.load import DEFAULT_PATH, Loaded, load
from vllm_supervisor.domain.secret import MASK
from vllm_supervisor.errors import ConfigError, ExitCode, Problem, SupervisorError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `check` has beside the global options `-c`, `--set` and `--json`."""
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=f"the configuration (default: -c FILE, or {DEFAULT_PATH})"
    )
    parser.add_argument(
        "--against-running", action="store_true", help="also say what a reload of the running daemon would change"
    )


def run(args: argparse.Namespace) -> int:
    """Print every problem and return 2, or print what would be launched and return 0.

    Against a running daemon, raises as `reload` does.
    """
    path = Path(args.file) if args.file else configuration(args)
    own = _own_daemon(args, path) if args.against_running else None
    try:
        loaded = load(path, sets=args.set or (), environ=os.environ)
        plan, unwritable = _plan(loaded, os.environ)
    except ConfigError as error:
        if own is not None:
            return _left_to(own, path, error, as_json=args.json)
        for problem in error.problems:
            _print(f"vllm-supervisor: {problem}", error=True)
        if args.json:
            _print(json.dumps({"ok": False, "problems": [problem._asdict() for problem in error.problems]}))
        return ExitCode.BAD_CONFIG
    warnings = (*loaded.warnings, *unwritable)
    for warning in warnings:
        _print(f"vllm-supervisor: warning: {warning}", error=True)
    if not args.json:
        _print(_text(path, plan))
    # Last: where no daemon answers, or its file is refused, that is an error of its own.
    answer = _compared(args, own, loaded) if args.against_running else {}
    reload = answer.get("reload") or {}
    if args.json:
        shown = {"ok": True, **asdict(plan), "warnings": warnings}
        _print(json.dumps(shown | ({"reload": reload} if args.against_running else {})))
    elif args.against_running:
        if own is None:
            _print(f"compared with the daemon that runs on {(answer.get('config') or {}).get('path')}:")
        _print(told(reload, answer, restart=False))
    return ExitCode.OK


def _own_daemon(args: argparse.Namespace, path: Path) -> str | None:
    """Return the socket of the daemon that runs on `path` as it stands; None where none does."""
    if args.set:
        return None
    wanted = argparse.Namespace(socket=args.socket, instance=args.instance, set=[], config=str(path))
    try:
        return find_own(wanted)[0]
    except SupervisorError:
        return None


def _left_to(socket: str, path: Path, error: ConfigError, *, as_json: bool) -> int:
    """Say what the daemon says of its own file, which this environment is not enough for: it has its credentials.

    Raises ConfigRefusedError where the daemon would refuse it as well.
    """
    answer = dry_run(socket, None)
    reload = answer.get("reload") or {}
    here = [f"not valid in this environment, but in the daemon's: {problem}" for problem in error.problems]
    for warning in (*here, *(reload.get("warnings") or ())):
        _print(f"vllm-supervisor: warning: {warning}", error=True)
    _print(json.dumps({"ok": True, "warnings": here, "reload": reload}) if as_json else f"{path}: valid")
    if not as_json:
        _print(told(reload, answer, restart=False))
    return ExitCode.OK


def _compared(args: argparse.Namespace, own: str | None, loaded: Loaded) -> Status:
    """Ask the running daemon what a reload would change.

    Its own file it reads itself, because variables and credentials are those of its environment. Of another file it is
    told digests, with the variables of this environment filled in.
    """
    if own is not None:
        return dry_run(own, None)
    socket = args.socket or str(paths.control_socket(loaded.settings, os.environ))
    socket = find_socket(args) if args.instance or not Path(socket).exists() else socket
    # A daemon that does not answer shows here, in seconds: a reload may take more.
    get_json(socket, "/v1/status")
    return dry_run(socket, digests(loaded.settings))


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


def _plan(loaded: Loaded, environ: Mapping[str, str]) -> tuple[_Plan, list[str]]:
    """Return it, with warnings of what this user cannot make and another could: the service need not be ours to run.

    Raises ConfigError where the launcher is not there, and for what nobody but root could make.
    """
    spec = launch.launch_spec(loaded.settings, environ)
    engine = launch.engine_spec(loaded.settings)
    program = find_launcher(spec)
    socket, state_dir = paths.control_socket(loaded.settings, environ), paths.state_dir(loaded.settings, environ)
    fatal, warnings = _unmakable(loaded, socket, state_dir)
    if isinstance(program, LauncherMissing):
        problem = Problem(loaded.place(program.key), program.key, program.why, program.remedy)
        raise ConfigError((problem, *fatal))
    if fatal:
        raise ConfigError(tuple(fatal))
    plan = _Plan(
        argv=launch.masked_argv(spec, loaded.secrets),
        launcher=program,
        env=launch.added_env(spec, environ, loaded.secrets),
        base_url=engine.base_url,
        model=engine.model,
        concurrency=engine.concurrency,
        log_file=spec.log_file,
        socket=str(socket),
        state_dir=str(state_dir),
    )
    return plan, warnings


def _unmakable(loaded: Loaded, socket: Path, state_dir: Path) -> tuple[list[Problem], list[str]]:
    """Return what nobody could make in these places, and warnings of what another user could."""
    warnings: list[str] = []
    fatal: list[Problem] = []
    if (kind := paths.no_socket(socket)) is not None:
        key = "control.socket"
        remedy = "give a path in it" if kind == paths.FOLDER else "remove it, or set control.socket elsewhere"
        fatal.append(Problem(loaded.place(key), key, f"{socket} is there, and is {kind}", remedy))
    for key, folder in (("state_dir", state_dir), ("control.socket", socket.parent)):
        why = paths.why_not_writable(folder / "new")
        if why is None:
            continue
        what, owner = f"{_user()} cannot write to {folder}: {why}", paths.owner(folder)
        if owner not in (0, os.geteuid()):
            warnings.append(str(Problem(loaded.place(key), key, what, f"run the daemon as its owner, uid {owner}")))
        else:
            fatal.append(Problem(loaded.place(key), key, what, f"make it writable, or set {key} elsewhere"))
    return fatal, warnings


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


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
