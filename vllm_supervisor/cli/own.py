"""Finds the daemon that is to be changed: with -c FILE the one that runs on that file, and no other.

A socket alone does not tell whose it is: a file that names none, that is broken or gone, or whose `control.socket` was
changed since the start leads to the usual places, where another daemon may listen.
"""

import argparse
import os
from collections.abc import Mapping, Sequence

from vllm_supervisor.cli.client import Status, get_json, no_daemon
from vllm_supervisor.cli.find import (
    LINK,
    NAME,
    SYSTEM,
    find_socket,
    is_there,
    link_beside,
    named_socket,
    socket_of_file,
    usual_places,
)
from vllm_supervisor.errors import (
    BadInputError,
    ConfigError,
    NoDaemonError,
    Problem,
    RefusedError,
    SupervisorError,
)


def find_own(
    args: argparse.Namespace, environ: Mapping[str, str] | None = None, *, system: str = SYSTEM
) -> tuple[str, Status]:
    """Return the socket and the status of the daemon to change.

    Raises NoDaemonError and RefusedError as `get_json`; with -c FILE also BadInputError where only daemons on other
    files answer, and ConfigError where FILE is broken as well.
    """
    environ = os.environ if environ is None else environ
    if not args.config:
        path = find_socket(args, environ, system=system)
        return path, get_json(path, "/v1/status")
    expected, others, broken = _places(args, environ, system)
    failure: SupervisorError | None = None
    for place in dict.fromkeys([*expected, *others]):
        try:
            status = get_json(place, "/v1/status")
        except (NoDaemonError, RefusedError) as error:
            failure = failure or error
            continue
        if runs_on(status, args.config):
            return place, status
        if place in expected:
            failure = failure or _stranger(args.config, place, status)
    if broken is not None:
        why = "no daemon that runs on it answers at the usual places, nor at a socket that the file still shows"
        remedy = "name the daemon's socket with --socket, without -c"
        raise ConfigError((*broken.problems, Problem(args.config, "", why, remedy)))
    raise failure or no_daemon(", ".join(usual_places(environ, system)), "no such socket")


def runs_on(status: Status, config: str | os.PathLike[str]) -> bool:
    """Say whether the daemon of this status runs on the file `config`, as far as it tells."""
    own = _file(status)
    return not own or os.path.realpath(own) == os.path.realpath(config)


def _file(status: Status) -> str:
    return str((status.get("config") or {}).get("path") or "")


def _places(
    args: argparse.Namespace, environ: Mapping[str, str], system: str
) -> tuple[list[str], list[str], ConfigError | None]:
    """Return the sockets where the daemon is expected, others that it may have, and what is wrong with the file."""
    if named := named_socket(args, environ, system=system):
        return [named], [], None
    usual = [place for place in usual_places(environ, system) if is_there(place)]
    links = [link_beside(place) for place in usual_places(environ, system)]
    others = [place for place in (*links, *usual, *_instances(system)) if is_there(place)]
    try:
        found = socket_of_file(args.config, args.set, environ)
    except ConfigError as error:
        from pathlib import Path  # noqa: PLC0415 - slow to import, and only this failure needs it

        from vllm_supervisor.config.socketfile import mentioned_sockets  # noqa: PLC0415 - as above

        return [], _once([*mentioned_sockets(Path(args.config), environ), *others]), error
    expected = [found] if found else usual[:1]
    return expected, _once(others, expected), None


def _once(places: list[str], known: Sequence[str] = ()) -> list[str]:
    """Drop what leads to the same socket as one before: a daemon that does not answer costs seconds each time."""
    seen = {os.path.realpath(place) for place in known}
    kept = []
    for place in places:
        real = os.path.realpath(place)
        if real not in seen:
            kept.append(place)
        seen.add(real)
    return kept


def _instances(system: str) -> list[str]:
    try:
        names = sorted(os.listdir(system))  # noqa: PTH208 - pathlib is slow to import
    except OSError:
        return []
    return [f"{system}/{name}/{socket}" for name in names for socket in (NAME, LINK)]


def _stranger(config: str, place: str, status: Status) -> BadInputError:
    why = f"the daemon at {place} runs on another file, {_file(status)}"
    remedy = "name that file, or name the daemon alone, with --socket or --instance"
    return BadInputError(f"-c {config}", why, remedy)
