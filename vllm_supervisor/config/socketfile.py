"""The control socket that a configuration names, read without the rest of it.

A client needs nothing else of the file, and should neither take a second for it nor fail because a variable is unset
that only the daemon has.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

from vllm_supervisor.config.interpolate import expand

UNCLEAR = ""


def configured_socket(path: Path, environ: Mapping[str, str]) -> str | None:
    """Return what `control.socket` says; None where the file leaves it to the default.

    UNCLEAR where the file, or that value, cannot be read: the full reader has the words for it.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506 -- a safe loader, in C where there is one
        control = data.get("control") or {}
        named = control.get("socket")
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError):
        return UNCLEAR
    if named is None:
        return None
    if not isinstance(named, str):
        return UNCLEAR
    expansion = expand(named, environ, _no_credential)
    if expansion.problems or not expansion.text:
        return UNCLEAR
    return str(Path(expansion.text).expanduser().absolute())


def _no_credential(name: str) -> str:
    raise LookupError(f"a client has no credential {name}")
