"""Finds the daemon's control socket."""

import argparse
import os
from collections.abc import Mapping

from vllm_supervisor.cli.client import no_daemon
from vllm_supervisor.errors import SupervisorError

NAME = "control.sock"
LINK = "current.sock"
"""In the run-time directory that systemd gave a daemon: a link to its socket, wherever that is."""
SYSTEM = "/run/vllm-supervisor"
VARIABLE = "VLLM_SUPERVISOR__CONTROL__SOCKET"
SET = "control.socket="


def find_socket(args: argparse.Namespace, environ: Mapping[str, str] | None = None, *, system: str = SYSTEM) -> str:
    """Return the path of the control socket.

    The first of: --socket, --instance, --set control.socket=, the variable, the file of -c; else the first that exists
    of the usual places. Raises NoDaemonError, which names the places looked at, ConfigError for the file.
    """
    environ = os.environ if environ is None else environ
    if named := named_socket(args, environ, system=system):
        return named
    if args.config and (found := socket_of_file(args.config, args.set, environ)):
        return found
    tried = usual_places(environ, system)
    for path in tried:
        for place in (path, link_beside(path)):
            if is_there(place):
                return place
    raise no_daemon(", ".join(tried), "no such socket")


def named_socket(args: argparse.Namespace, environ: Mapping[str, str], *, system: str = SYSTEM) -> str | None:
    """Return the socket that the user names apart from any file; None where none is named."""
    if args.socket:
        return os.path.expanduser(str(args.socket))  # noqa: PTH111 - pathlib is slow to import
    if args.instance:
        return _of_instance(args.instance, system)
    given = [text.removeprefix(SET) for text in args.set if text.startswith(SET)]
    named = given[-1] if given else environ.get(VARIABLE)
    return os.path.expanduser(named) if named and "$" not in named else None  # noqa: PTH111 - as above


def usual_places(environ: Mapping[str, str], system: str = SYSTEM) -> list[str]:
    """Return where a daemon has its socket that was told no place."""
    directories = [environ.get("RUNTIME_DIRECTORY", "").split(":")[0], system]
    if session := environ.get("XDG_RUNTIME_DIR"):
        directories.append(f"{session}/vllm-supervisor")
    return [f"{directory}/{NAME}" for directory in dict.fromkeys(directories) if directory]


def link_beside(place: str) -> str:
    """Return where a daemon that has its socket elsewhere than at the usual `place` leaves a link to it."""
    return f"{place.removesuffix(NAME)}{LINK}"


def is_there(path: str) -> bool:
    """Say whether there is something at `path`, or may be."""
    try:
        os.stat(path)  # noqa: PTH116 - as above
    except PermissionError:
        # It may well be there: connecting says the same, with what to do about it.
        return True
    except OSError:
        return False
    return True


def _of_instance(name: str, system: str) -> str:
    place = f"{system}/{is_name(name)}/{NAME}"
    link = link_beside(place)
    return link if is_there(link) and not is_there(place) else place


def is_name(instance: str) -> str:
    """Return the name of an instance. Raises SupervisorError for what is none."""
    if "/" in instance or instance in {".", ".."}:
        raise SupervisorError(f"--instance {instance}", "is not a name", "use --socket for a path")
    return instance


def socket_of_file(path: str, sets: list[str], environ: Mapping[str, str]) -> str | None:
    """Return the socket that a configuration names; None where it leaves that to the usual places.

    Raises ConfigError where it cannot be used.
    """
    # YAML costs milliseconds and pydantic a quarter of a second, and only this way needs them.
    from pathlib import Path  # noqa: PLC0415 - see above

    from vllm_supervisor.config.socketfile import UNCLEAR, configured_socket  # noqa: PLC0415 - see above

    quick = configured_socket(Path(path), environ)
    if quick != UNCLEAR:
        return quick
    from vllm_supervisor.config.load import load  # noqa: PLC0415 - see above
    from vllm_supervisor.config.paths import control_socket  # noqa: PLC0415 - see above

    return str(control_socket(load(Path(path), sets=sets, environ=environ).settings, environ))
