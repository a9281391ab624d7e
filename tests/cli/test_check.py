"""`check`: what it prints and how it ends."""

import argparse
import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_supervisor.cli import check

CONFIG = """\
engine:
  vllm:
    launcher: [./serve.sh]
    model: m
    cwd: {tmp}
    log_file: {tmp}/logs/vllm.log
    extra_args: [--hf-token, hf_very_secret, --max-model-len, 100000]
    env: {{CUDA_HOME: "/opt/c u d a"}}
    api_key: sk-very-secret
control: {{socket: {tmp}/s}}
state_dir: {tmp}/state
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A valid configuration whose launcher exists."""
    script = tmp_path / "serve.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(tmp=tmp_path))
    path.chmod(0o640)
    return path


def run(*words: str) -> int:
    """Run `check` as the command line does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", dest="config")
    parser.add_argument("--set", action="append")
    parser.add_argument("--json", action="store_true")
    check.add_arguments(parser)
    return check.run(parser.parse_args(words))


def test_a_valid_configuration_is_shown(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Command, environment that is added, address and places; secrets as ***; nothing is made."""
    monkeypatch.delenv("SPT_NOENV", raising=False)
    assert run(str(config)) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{config}: valid",
        "command      ./serve.sh m --host 127.0.0.1 --port 8000 --hf-token *** --max-model-len 100000",
        f"launcher     {tmp_path}/serve.sh",
        "environment  CUDA_HOME='/opt/c u d a'",
        "environment  SPT_NOENV=1",
        "environment  VLLM_API_KEY=***",
        "environment  VLLM_ENGINE_READY_TIMEOUT_S=86400",
        "base URL     http://127.0.0.1:8000",
        f"log file     {tmp_path}/logs/vllm.log",
        f"socket       {tmp_path}/s",
        f"state        {tmp_path}/state",
    ]
    assert err == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "serve.sh"]


def test_the_file_may_also_be_given_by_the_global_option(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-c FILE check` is `check FILE`, and `--set` goes over it."""
    assert run("-c", str(config), "--set", "engine.vllm.port=8123") == 0
    assert "http://127.0.0.1:8123" in capsys.readouterr().out


def test_json(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the same facts, and no secret either."""
    assert run("--json", str(config), "--set", "resources.max_concurrent_jobs=2") == 0
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert facts["ok"] is True
    assert facts["argv"][:2] == ["./serve.sh", "m"]
    assert facts["env"]["VLLM_API_KEY"] == "***"
    assert facts["concurrency"] == 2
    assert len(facts["warnings"]) == 1
    assert err.startswith("vllm-supervisor: warning: --set: resources.max_concurrent_jobs: lowers")
    assert "secret" not in out


def test_problems_are_lines_on_stderr(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, all at once, status 2; with `--json` also as an object."""
    words = (str(config), "--set", "engine.vllm.port=0", "--set", "engine.vllm.prot=1")
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "vllm-supervisor: --set: engine.vllm.prot: is not a known key; did you mean `port`?",
        "vllm-supervisor: --set: engine.vllm.port: '0' is below 1; give a port from 1 to 65535",
    ]
    assert run("--json", *words) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["key"] for problem in problems] == ["engine.vllm.prot", "engine.vllm.port"]


def test_a_missing_launcher_is_a_problem(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The PATH of the merged environment, which was searched, is shown, and the line that names the launcher."""
    assert run(str(config), "--set", "engine.vllm.env.PATH=/nowhere:/else", "--set", "engine.vllm.launcher=nope") == 2
    assert capsys.readouterr().err == (
        "vllm-supervisor: --set: engine.vllm.launcher: the launcher 'nope' is not on the PATH searched: "
        "/nowhere:/else; install it, or give engine.vllm.launcher a full path, or engine.vllm.env a PATH\n"
    )
    assert run(str(config), "--set", "engine.vllm.cwd=/nowhere") == 2
    assert capsys.readouterr().err == (
        "vllm-supervisor: --set: engine.vllm.cwd: engine.vllm.cwd /nowhere is not a folder; "
        "create it, or set engine.vllm.cwd\n"
    )
    (config.parent / "serve.sh").chmod(0o644)
    assert run(str(config)) == 2
    assert f"{config}:3: engine.vllm.launcher: the launcher" in capsys.readouterr().err


def test_a_variable_that_is_not_utf8_can_be_shown(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that no terminal shows do not end in a traceback."""
    monkeypatch.setenv("ODD", "\udcff")
    assert run(str(config), "--set", "engine.vllm.log_file=/dev/null/${ODD}") == 2
    assert "engine.vllm.log_file" in capsys.readouterr().err


def run_without_rights(config: Path) -> subprocess.CompletedProcess[str]:
    """Run `check` as whoever we are, but as root without the right to write everywhere."""
    plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    command = [*plain, sys.executable, "-m", "vllm_supervisor", "check", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_places_that_cannot_be_written_to(config: Path, tmp_path: Path) -> None:
    """The daemon would end at once: each place is named, with its key."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    config.write_text(config.read_text().replace(f"{tmp_path}/s}}", f"{closed}/s}}").replace("/state", "/closed/state"))
    done = run_without_rights(config)
    assert done.returncode == 2
    state, socket = done.stderr.splitlines()
    assert state.startswith(f"vllm-supervisor: {config}:")
    assert f"state_dir: {getpass.getuser()} cannot write to {closed}/state: {closed} is not writable; make it" in state
    assert f"control.socket: {getpass.getuser()} cannot write to {closed}:" in socket


def test_what_is_in_the_way_is_told_at_once(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A launcher that is not there, a socket that is a folder, a state directory in a file: a line each."""
    (tmp_path / "s").mkdir()
    (tmp_path / "state").touch()
    assert run(str(config), "--set", "engine.vllm.launcher=nope", "--set", "engine.vllm.env.PATH=/nowhere") == 2
    launcher, socket, state = capsys.readouterr().err.splitlines()
    assert "engine.vllm.launcher: the launcher 'nope' is not on the PATH" in launcher
    assert f"control.socket: {tmp_path}/s is there, and is a folder; give a path in it" in socket
    assert f"state_dir: {getpass.getuser()} cannot write to {tmp_path}/state: " in state
    (tmp_path / "s").rmdir()
    (tmp_path / "s").touch()
    assert run(str(config)) == 2
    assert f"control.socket: {tmp_path}/s is there, and is no socket; remove it, or set" in capsys.readouterr().err


def test_places_of_another_user(config: Path, tmp_path: Path) -> None:
    """Who checks the service's configuration need not be the service: then it is a warning, with the owner."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 12345, -1)
    done = run_without_rights(config)
    assert done.returncode == 0
    [warning] = done.stderr.splitlines()
    assert warning.startswith("vllm-supervisor: warning: ")
    assert warning.endswith("; run the daemon as its owner, uid 12345")
    assert run(str(config)) == 0, "root can write there"
