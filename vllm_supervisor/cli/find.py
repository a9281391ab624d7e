"""Finds the daemon's control socket."""

import argparse
import os
from collections.abc import Mapping

from vllm_supervisor.cli.client import no_daemon
from vllm_supervisor.errors import SupervisorError

NAME = "control.sock"
SYSTEM = "/run/vllm-supervisor"
VARIABLE = "VLLM_SUPERVISOR__CONTROL__SOCKET"
_KEY = "control.socket="


def find_socket(args: argparse.Namespace, environ: Mapping[str, str] | None = None, *, system: str = SYSTEM) -> str:
    """Return the path of the control socket.

    The first of: --socket, --instance, --set control.socket=, the variable, the file of -c; else the first that exists
    of the usual places. Raises NoDaemonError, which names the places looked at, ConfigError for the file.
    """
    environ = os.environ if environ is None else environ
    if args.socket:
        return os.path.expanduser(str(args.socket))  # noqa: PTH111 - pathlib is slow to import
    if args.instance:
        return _of_instance(args.instance, system)
    given = [text.removeprefix(_KEY) for text in args.set if text.startswith(_KEY)]
    named = given[-1] if given else environ.get(VARIABLE)
    if named and "$" not in named:
        return os.path.expanduser(named)  # noqa: PTH111 - as above
    if args.config and (found := _of_file(args.config, args.set, environ)):
        return found
    tried = _usual(environ, system)
    for path in tried:
        if _exists(path):
            return path
    raise no_daemon(", ".join(tried), "no such socket")


def _usual(environ: Mapping[str, str], system: str) -> list[str]:
    directories = [environ.get("RUNTIME_DIRECTORY", "").split(":")[0], system]
    if session := environ.get("XDG_RUNTIME_DIR"):
        directories.append(f"{session}/vllm-supervisor")
    return [f"{directory}/{NAME}" for directory in dict.fromkeys(directories) if directory]


def _exists(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116 - as above
    except PermissionError:
        # It may well be there: connecting says the same, with what to do about it.
        return True
    except OSError:
        return False
    return True


def _of_instance(name: str, system: str) -> str:
    if "/" in name or name in {".", ".."}:
        raise SupervisorError(f"--instance {name}", "is not a name", "use --socket for a path")
    return f"{system}/{name}/{NAME}"


def _of_file(path: str, sets: list[str], environ: Mapping[str, str]) -> str | None:
    """Return the socket that a configuration names; None where it leaves that to the usual places."""
    # YAML costs milliseconds and pydantic a quarter of a second, and only this way needs them.
    from pathlib import Path  # noqa: PLC0415 - see above

    from vllm_supervisor.config.socketfile import UNCLEAR, configured_socket  # noqa: PLC0415 - see above

    quick = configured_socket(Path(path), environ)
    if quick != UNCLEAR:
        return quick
    from vllm_supervisor.config.load import load  # noqa: PLC0415 - see above
    from vllm_supervisor.config.paths import control_socket  # noqa: PLC0415 - see above

    return str(control_socket(load(Path(path), sets=sets, environ=environ).settings, environ))
