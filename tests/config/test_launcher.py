"""Launchers: inside or outside our tree, and where they are."""

import shlex
import sys
from pathlib import Path

import pytest

from vllm_supervisor.config.launcher import LauncherMissing, find_launcher, outside
from vllm_supervisor.domain.spec import LaunchSpec


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("docker run vllm/vllm-openai", "docker"),
        ("/usr/bin/podman run x", "podman"),
        ("sudo docker run x", "docker"),
        ("sudo -u bob -E docker run x", "docker"),
        ("sudo X=1 docker run x", "docker"),
        ("env X=1 srun vllm serve", "srun"),
        ("env -u Y X=1 srun vllm serve", "srun"),
        ("X=1 srun vllm serve", "srun"),
        ("nice -n 5 ssh host vllm serve", "ssh"),
        ("timeout -s KILL 5 kubectl exec x", "kubectl"),
        ("taskset 0x3 systemd-run vllm", "systemd-run"),
        ("uv run --with httpx docker run x", "docker"),
        ("conda run -n env --no-capture-output docker run", "docker"),
        ("numactl -N 0 env X=1 nice docker run", "docker"),
        ("sh -c 'exec docker run x'", "docker"),
        ("bash -lc 'X=1 ssh host vllm'", "ssh"),
        ("vllm serve", None),
        ("uv run vllm serve", None),
        ("uv run --with docker vllm serve", None),
        ("conda run -n docker vllm serve", None),
        ("conda activate docker", None),
        ("./docker-less.sh docker", None),
        ("bash run.sh docker", None),
        ("python -m vllm.entrypoints.openai.api_server docker", None),
        ("env X=docker vllm serve", None),
        ('sh -c "unbalanced \'"', None),
        ("sudo", None),
    ],
)
def test_only_the_command_position_counts(text: str, program: str | None) -> None:
    """Wrappers are looked through; arguments, environments and options that merely say `docker` are not it."""
    assert outside(shlex.split(text)) == program


def spec(*argv: str, cwd: Path | None = None, **env: str) -> LaunchSpec:
    return LaunchSpec(argv, env, str(cwd) if cwd else None, "/dev/null", "127.0.0.1", 8000)


def script(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_the_launcher_is_looked_up_on_the_path_of_the_launch(tmp_path: Path) -> None:
    """The PATH of the merged environment counts, in order, and what is not executable is passed over."""
    script(tmp_path / "a" / "vllm", 0o644)
    found = script(tmp_path / "b" / "vllm")
    assert find_launcher(spec("vllm", PATH=f"{tmp_path}/a:{tmp_path}/b")) == str(found)


def test_a_missing_launcher_shows_the_path_searched(tmp_path: Path) -> None:
    """The reason holds the PATH, and names what was there and could not be executed."""
    plain = script(tmp_path / "a" / "vllm", 0o644)
    missing = find_launcher(spec("vllm", PATH=f"{tmp_path}/a:/nowhere"))
    assert missing == LauncherMissing(
        f"the launcher 'vllm' is not on the PATH searched: {tmp_path}/a:/nowhere ({plain} is not executable)",
        "install it, or give engine.vllm.launcher a full path, or engine.vllm.env a PATH",
    )


def test_a_relative_launcher_is_relative_to_the_working_directory(tmp_path: Path) -> None:
    """`./run.sh` is looked for where it will be executed."""
    found = script(tmp_path / "run.sh")
    assert find_launcher(spec("./run.sh", cwd=tmp_path)) == str(found)


@pytest.mark.parametrize(
    ("argv", "why"),
    [("./plain", "is not executable"), ("./sub", "is not a file"), ("./gone", "does not exist")],
)
def test_a_launcher_that_cannot_be_executed_says_why(tmp_path: Path, argv: str, why: str) -> None:
    """Each reason has its own words."""
    script(tmp_path / "plain", 0o644)
    (tmp_path / "sub").mkdir()
    missing = find_launcher(spec(argv, cwd=tmp_path))
    assert isinstance(missing, LauncherMissing)
    assert missing.why.endswith(why)


def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    """It would otherwise look as if the launcher were missing."""
    missing = find_launcher(spec("vllm", cwd=tmp_path / "gone"))
    assert missing == LauncherMissing(
        f"engine.vllm.cwd {tmp_path}/gone is not a folder", "create it, or set engine.vllm.cwd", "engine.vllm.cwd"
    )


def test_our_own_name_means_this_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator is launched without an activated environment; what is on PATH still comes first."""
    own = script(tmp_path / "venv" / "vllm-supervisor")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    assert find_launcher(spec("vllm-supervisor", PATH="/nowhere")) == str(own)
    other = script(tmp_path / "bin" / "vllm-supervisor")
    assert find_launcher(spec("vllm-supervisor", PATH=f"{tmp_path}/bin")) == str(other)
