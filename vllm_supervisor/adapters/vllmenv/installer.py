"""Who makes environments and installs into them: uv from the PATH, else uv's Python package, else venv and pip."""

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.domain.torchchoice import Build


@dataclass(frozen=True, slots=True)
class Installer:
    """`uv` is the command prefix of uv; empty where there is none and pip does it."""

    uv: tuple[str, ...]
    python: str
    """The interpreter for the environment; empty where uv's own variable UV_PYTHON names it."""

    def __str__(self) -> str:
        return " ".join(self.uv) if self.uv else f"{self.python} -m venv, and pip"

    @property
    def knows_torch(self) -> bool:
        """Say whether it knows where torch's builds for each CUDA are. Only uv does."""
        return bool(self.uv)

    def make(self, where: Path) -> tuple[str, ...]:
        """Return the command that makes an empty environment."""
        if not self.uv:
            return (self.python, "-m", "venv", str(where))
        return (*self.uv, "venv", "--quiet", *(("--python", self.python) if self.python else ()), str(where))

    def install(self, where: Path, build: Build, pip_args: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that installs vLLM into it."""
        python = str(where / "bin/python")
        if not self.uv:
            return (python, "-m", "pip", "install", "--no-input", *pip_args, build.requirement)
        backend = ("--torch-backend", build.backend) if build.backend else ()
        return (*self.uv, "pip", "install", "--python", python, *backend, *pip_args, build.requirement)


def find_installer(environ: Mapping[str, str]) -> Installer:
    """Look for uv on the PATH, then in our own interpreter."""
    found = shutil.which("uv", path=environ.get("PATH", ""))
    python = "" if environ.get("UV_PYTHON") else sys.executable
    if found:
        return Installer((found,), python)
    if importlib.util.find_spec("uv") is not None:
        return Installer((sys.executable, "-m", "uv"), python)
    return Installer((), sys.executable)
