"""Where the launcher's first word leads."""

import os
from pathlib import Path

from vllm_supervisor.domain.model import Blocker, BlockerKind
from vllm_supervisor.domain.spec import LaunchSpec

_REMEDY = "install it, or set engine.vllm.launcher or the PATH in engine.vllm.env"


def find_executable(spec: LaunchSpec) -> str | Blocker:
    """Return the path of `argv[0]`, looked up on the PATH of the engine's environment, or what is wrong with it.

    Relative names, in the launcher or on the PATH, start at the engine's working directory, as they do for exec.
    """
    name = spec.argv[0]
    base = Path(spec.cwd or Path.cwd())
    if "/" in name:
        return _judged(name, base / name)
    path = spec.env.get("PATH", os.defpath)
    unfit = None
    for folder in path.split(os.pathsep):
        candidate = base / folder / name
        verdict = _judged(name, candidate)
        if isinstance(verdict, str):
            return verdict
        unfit = unfit or (verdict if candidate.exists() else None)
    return unfit or Blocker(BlockerKind.LAUNCHER, f"{name} is not found; PATH searched: {path}", _REMEDY)


def _judged(name: str, path: Path) -> str | Blocker:
    if not path.exists():
        return Blocker(BlockerKind.LAUNCHER, f"{name} does not exist (looked at {path})", _REMEDY)
    if not path.is_file():
        return Blocker(BlockerKind.LAUNCHER, f"{path} is not a file", _REMEDY)
    if not os.access(path, os.X_OK):
        return Blocker(BlockerKind.LAUNCHER, f"{path} is not executable", f"chmod +x {path}, or another launcher")
    return str(path)
