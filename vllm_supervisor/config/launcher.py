"""The command that launches vLLM: whether it keeps the engine in our process tree, and where it is."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.domain.spec import LaunchSpec

OWN_NAME = "vllm-supervisor"
"""As a launcher it means this very installation, so that the simulator runs without an activated environment."""

_OUTSIDE = frozenset({"docker", "podman", "srun", "ssh", "systemd-run", "kubectl"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_MAX_WRAPPERS = 10
_ABSENT = "does not exist"


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A program that runs the command in its arguments.

    `valued` are the options that take the next word; `skip` words stand between the options and the command.
    """

    valued: frozenset[str] = frozenset()
    skip: int = 0
    word: str | None = None
    """The subcommand without which it is no wrapper: `uv run`."""


def _wrapper(valued: str = "", skip: int = 0, word: str | None = None) -> _Wrapper:
    return _Wrapper(frozenset(valued.split()), skip, word)


_UV = (
    "--with --with-editable --with-requirements --python -p --project --directory --extra --group --only-group "
    "--no-group --env-file --index --default-index --index-url --extra-index-url --find-links -f --package "
    "--config-file --cache-dir --from --link-mode --refresh-package --reinstall-package --upgrade-package -P --color"
)
_CONDA = "-n --name -p --prefix --cwd"
_WRAPPERS = {
    "chrt": _wrapper(skip=1),
    "conda": _wrapper(_CONDA, word="run"),
    "dumb-init": _wrapper("-r --rewrite"),
    "env": _wrapper("-u --unset -C --chdir -S --split-string"),
    "exec": _wrapper("-a"),
    "ionice": _wrapper("-c --class -n --classdata"),
    "mamba": _wrapper(_CONDA, word="run"),
    "micromamba": _wrapper(_CONDA, word="run"),
    "nice": _wrapper("-n --adjustment"),
    "nohup": _wrapper(),
    "numactl": _wrapper("-i --interleave -N --cpunodebind -C --physcpubind -m --membind -p --preferred -P"),
    "pixi": _wrapper("-e --environment --manifest-path", word="run"),
    "poetry": _wrapper("-C --directory -P --project", word="run"),
    "prlimit": _wrapper(),
    "setpriv": _wrapper("--reuid --regid --groups"),
    "setsid": _wrapper(),
    "stdbuf": _wrapper("-i --input -o --output -e --error"),
    "sudo": _wrapper("-u --user -g --group -h --host -p --prompt -C --close-from -D --chdir -R --chroot -T -U -r -t"),
    "taskset": _wrapper(skip=1),
    "time": _wrapper("-f --format -o --output"),
    "timeout": _wrapper("-k --kill-after -s --signal", skip=1),
    "tini": _wrapper("-p -e"),
    "uv": _wrapper(_UV, word="run"),
    "uvx": _wrapper(_UV),
}


@dataclass(frozen=True, slots=True)
class LauncherMissing:
    """Why the launcher cannot be executed now; a mount or an upgrade may bring it back."""

    why: str
    remedy: str
    key: str = "engine.vllm.launcher"
    """What is to be corrected."""


def outside(launcher: Sequence[str]) -> str | None:
    """Return the program that would put the engine outside our process tree, if the launcher runs one.

    Only what stands where a command stands counts: `[uv, run, --with, docker, vllm, serve]` runs vllm.
    """
    for command in commands(launcher):
        program = os.path.basename(command[0])  # noqa: PTH119 - a word of a command line, not a path of ours
        if program in _OUTSIDE:
            return program
    return None


def commands(launcher: Sequence[str]) -> Iterator[list[str]]:
    """Yield the command, and those that its wrappers run, from the outside in: the last one is vLLM's own."""
    words = list(launcher)
    for _ in range(_MAX_WRAPPERS):
        while words and _is_assignment(words[0]):
            words.pop(0)
        if not words:
            return
        yield words
        program = os.path.basename(words[0])  # noqa: PTH119 - as above
        inner = _shell_command(words[1:]) if program in _SHELLS else _wrapped(program, words[1:])
        if inner is None:
            return
        words = inner


def _is_assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _wrapped(program: str, words: list[str]) -> list[str] | None:
    """Return the command that a wrapper runs; None for a program that is none."""
    wrapper = _WRAPPERS.get(program)
    if wrapper is None:
        return None
    words = _after_options(words, wrapper)
    if wrapper.word is not None:
        if not words or words[0] != wrapper.word:
            return None
        words = _after_options(words[1:], wrapper)
    while words and _is_assignment(words[0]):
        words = words[1:]
    return words[wrapper.skip :]


def _after_options(words: list[str], wrapper: _Wrapper) -> list[str]:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--":
            break
        if word in wrapper.valued:
            at += 1
    return words[at:]


def _shell_command(words: list[str]) -> list[str] | None:
    """Return the first command of `sh -c STRING`; None for a script file, which cannot be looked through."""
    for index, word in enumerate(words[:-1]):
        if not word.startswith("-"):
            return None
        if not word.startswith("--") and word.endswith("c"):
            try:
                return shlex.split(words[index + 1])
            except ValueError:
                return None
    return None


def find_launcher(spec: LaunchSpec) -> str | LauncherMissing:
    """Return the absolute path of the program to execute, looked up on the PATH of the launch's own environment."""
    name, cwd = spec.argv[0], Path(spec.cwd or ".").absolute()
    if not cwd.is_dir():
        key = "engine.vllm.cwd"
        return LauncherMissing(f"{key} {cwd} is not a folder", f"create it, or set {key}", key)
    if "/" in name:
        path = cwd / name
        why = _why_not_executable(path)
        if why is None:
            return str(path)
        return LauncherMissing(f"the launcher {path} {why}", "correct engine.vllm.launcher")
    search = spec.env.get("PATH", os.defpath)
    refused: list[str] = []
    for folder in search.split(os.pathsep):
        path = cwd / folder / name
        why = _why_not_executable(path)
        if why is None:
            return str(path)
        if why != _ABSENT:
            refused.append(f"{path} {why}")
    own = _own_program(name)
    if own is not None:
        return own
    found = f" ({'; '.join(refused)})" if refused else ""
    remedy = "install it, or give engine.vllm.launcher a full path, or engine.vllm.env a PATH"
    return LauncherMissing(f"the launcher {name!r} is not on the PATH searched: {search}{found}", remedy)


def _why_not_executable(path: Path) -> str | None:
    try:
        if not path.exists():
            return _ABSENT
        if not path.is_file():
            return "is not a file"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    return None if os.access(path, os.X_OK) else "is not executable"


def _own_program(name: str) -> str | None:
    own = Path(sys.executable).parent / OWN_NAME
    return str(own) if name == OWN_NAME and _why_not_executable(own) is None else None
