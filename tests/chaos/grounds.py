"""What a run may do on this host: another user for the daemon, small file systems of its own, an own process table."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_FIRST_USER = 200_000
"""Beyond whoever has a name: limits of a user's processes count all of the user's processes on the host."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """`user` is None where the daemon has to run as whoever we are."""

    user: int | None
    mounts: bool


def inspect(folder: Path, *, namespaces: bool) -> Grounds:
    """Say what can be done. In namespaces of our own the interpreter and the checkout are opened to other users."""
    if os.geteuid() != 0:
        return Grounds(None, mounts=False)
    user = _FIRST_USER + folder.stat().st_ino % 10_000
    if namespaces:
        _mount("-t", "tmpfs", "-o", "mode=1777,size=64m", "chaos", "/dev/shm")
        _open_to_all(folder / "stash", [Path(sys.base_prefix), Path(sys.prefix), Path.cwd()])
    return Grounds(user if _can_run(user) else None, namespaces)


def as_user(user: int) -> list[str]:
    """Return what runs a command as this user."""
    return ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]


def _can_run(user: int) -> bool:
    """Say whether this user could run what we run, and its children too."""
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import vllm_supervisor'], check=True)"
    argv = [*as_user(user), sys.executable, "-c", again]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _open_to_all(stash: Path, needed: list[Path]) -> None:
    """Have these folders seen by everybody, though one above them is closed: only in this mount namespace."""
    closed: dict[Path, list[Path]] = {}
    for path in {path.resolve() for path in needed}:
        above = next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)
        if above is not None:
            closed.setdefault(above, []).append(path)
    for above, paths in closed.items():
        kept = {path: stash / str(number) for number, path in enumerate(paths)}
        for path, aside in kept.items():
            aside.mkdir(parents=True)
            _mount("--bind", str(path), str(aside))
        _mount("-t", "tmpfs", "-o", "mode=755,size=1m", "chaos", str(above))
        for path, aside in kept.items():
            path.mkdir(parents=True, exist_ok=True)
            _mount("--bind", str(aside), str(path))


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)
