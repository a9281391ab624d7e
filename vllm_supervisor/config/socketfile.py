"""The control socket that a configuration names, read without the rest of it.

A client needs nothing else of the file, and should neither take a second for it nor fail because a variable is unset
that only the daemon has.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from vllm_supervisor.config.interpolate import expand
from vllm_supervisor.config.regular import read_regular

UNCLEAR = ""
_MAX_BYTES = 1 << 20
_MOST_MENTIONS = 5
_MENTION = re.compile(r"""\bsocket["']?\s*:\s*["']?((?:\$\{[^}\n]*\}|[^\s"',}#])+)""")


def configured_socket(path: Path, environ: Mapping[str, str]) -> str | None:
    """Return what `control.socket` says; None where the file leaves it to the default.

    UNCLEAR where the file, or that value, cannot be read: the full reader has the words for it.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = yaml.load(read_regular(path, _MAX_BYTES), Loader=loader)  # noqa: S506 -- a safe loader, in C where there is one
        control = data.get("control") or {}
        named = control.get("socket")
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError):
        return UNCLEAR
    if named is None:
        return None
    if not isinstance(named, str):
        return UNCLEAR
    return _place(named, environ)


def mentioned_sockets(path: Path, environ: Mapping[str, str]) -> list[str]:
    """Return what a file that is no YAML seems to name as a socket: guesses, each to be asked whose it is."""
    try:
        text = read_regular(path, _MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return []
    places = (_place(named, environ) for named in dict.fromkeys(_MENTION.findall(text)))
    return [place for place in places if place != UNCLEAR][:_MOST_MENTIONS]


def _place(named: str, environ: Mapping[str, str]) -> str:
    expansion = expand(named, environ, _no_credential)
    if expansion.problems or not expansion.text:
        return UNCLEAR
    try:
        return str(Path(expansion.text).expanduser().absolute())
    except RuntimeError:  # no such home
        return UNCLEAR


def _no_credential(name: str) -> str:
    raise LookupError(f"a client has no credential {name}")
