"""Which Python a launcher runs, found by reading files: a launcher is never run."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vllm_supervisor.adapters.host import files
from vllm_supervisor.config.launcher import OWN_NAME, commands
from vllm_supervisor.domain.doctor.facts import Unknown

_MAKERS = frozenset({"uv", "uvx", "conda", "mamba", "micromamba", "pixi", "poetry"})
_MAX_SCRIPT = 16384
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_QUOTED_EXEC = re.compile(r"""^'''exec' ["']?([^"'\n]+?)["']? ["']\$0["']""", re.MULTILINE)
"""How pip writes the first line of a script whose interpreter has a space or a long path."""
_IN_SCRIPT = re.compile(r"""(?:^|[\s"'=;&|(])((?:[\w./~+@-]*/)?(?:vllm|python(?:\d(?:\.\d+)?)?))(?=[\s"';]|$)""")
_ASK = "point engine.vllm.launcher at the environment's own bin/vllm to have it looked at"

SIMULATOR = "the launcher is the built-in simulator"


def interpreter(launcher: Sequence[str], env: Mapping[str, str], cwd: Path) -> str | Unknown:
    """Return the Python that `launcher` ends up in: that of the `vllm` script it runs, or the one it names."""
    nested = list(commands(launcher))
    programs = [Path(command[0]).name for command in nested]
    if OWN_NAME in programs and "simulate" in nested[programs.index(OWN_NAME)]:
        return Unknown(SIMULATOR)
    folders = [*_environments(nested, programs, env, cwd), *env.get("PATH", os.defpath).split(os.pathsep)]
    if not nested:
        return Unknown(f"the launcher names no program: {_ASK}")
    found = _of_program(nested[-1][0], folders, cwd)
    if isinstance(found, Unknown) and found.absent and set(programs) & _MAKERS:
        return Unknown(f"{found.why} yet; {programs[0]} may make the environment when it runs")
    return found


def _environments(nested: list[list[str]], programs: list[str], env: Mapping[str, str], cwd: Path) -> Iterator[str]:
    """Yield the `bin` folders that wrappers put before PATH."""
    for name, command in zip(programs, nested, strict=True):
        if name == "uv":
            given = env.get("UV_PROJECT_ENVIRONMENT")
            base = Path(_option(command, "--project", "--directory") or cwd)
            roots = [given] if given else [str(folder / ".venv") for folder in (base, *base.absolute().parents)]
            roots += [env["VIRTUAL_ENV"]] if "VIRTUAL_ENV" in env else []
            yield from (f"{cwd / root}/bin" for root in roots if files.exists(cwd / root / "pyvenv.cfg"))
        elif name in {"conda", "mamba", "micromamba"}:
            prefix, called = _option(command, "-p", "--prefix"), _option(command, "-n", "--name")
            root = env.get("MAMBA_ROOT_PREFIX") or str(Path(env.get("CONDA_EXE", command[0])).parent.parent)
            if prefix or called:
                yield f"{prefix or f'{root}/envs/{called}'}/bin"


def _option(command: list[str], *names: str) -> str | None:
    return next((command[at + 1] for at, word in enumerate(command[:-1]) if word in names), None)


def _of_program(name: str, folders: Sequence[str], cwd: Path, depth: int = 0) -> str | Unknown:
    path = _find(name, folders, cwd)
    if path is None:
        return Unknown(f"{name} is not found", absent=True)
    if _PYTHON.fullmatch(path.name):
        return str(path)
    text = _script(path)
    if text is None:
        return Unknown(f"{path} is no script: {_ASK}")
    shebang = text.partition("\n")[0].removeprefix("#!").split()
    quoted = _QUOTED_EXEC.search(text)
    if quoted:
        return quoted[1]
    if shebang and _PYTHON.fullmatch(Path(shebang[0]).name):
        return shebang[0]
    if len(shebang) > 1 and Path(shebang[0]).name == "env" and _PYTHON.fullmatch(shebang[-1]):
        python = _find(shebang[-1], folders, cwd)
        return str(python) if python else Unknown(f"{shebang[-1]}, which runs {path}, is not found", absent=True)
    if depth < 2:  # noqa: PLR2004 - a script that runs a script that runs vLLM
        for word in _words(text):
            found = _of_program(word, folders, cwd, depth + 1)
            if isinstance(found, str):
                return found
    return Unknown(f"{path} is a script that cannot be seen through: {_ASK}")


def _words(script: str) -> Iterator[str]:
    """Yield what looks like vLLM or a Python in a shell script, vLLM first."""
    code = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("#"))
    found = _IN_SCRIPT.findall(code)
    yield from sorted(dict.fromkeys(found), key=lambda word: not word.endswith("vllm"))


def _find(name: str, folders: Sequence[str], cwd: Path) -> Path | None:
    candidates = [cwd / name] if "/" in name else [cwd / folder / name for folder in folders]
    return next((path for path in candidates if files.is_program(path)), None)


def _script(path: Path) -> str | None:
    """Return the text of a script; None for a binary, and for what cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_SCRIPT)
    except OSError:
        return None
    return data.decode(errors="replace") if data.startswith(b"#!") else None
