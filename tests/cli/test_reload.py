"""`reload` and `check --against-running`: what they ask, what they say, how they end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.fake_daemon import READY, FakeDaemon, fake_daemon, state
from vllm_supervisor.cli.main import main
from vllm_supervisor.ports import Response

CONFIG = {"path": "/etc/c.yaml", "pending": [], "pending_daemon": [], "refused": []}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fake_daemon(tmp_path) as daemon:
        yield daemon


def answered(**done: Any) -> dict[str, Any]:
    """Return a status with what a reload came to."""
    reload = {"live": [], "engine": [], "daemon": [], "dry_run": False, "restarted": False, "warnings": []} | done
    return {**READY, "config": CONFIG, "reload": reload}


def refusal(code: str, message: str) -> Response:
    return Response(409, json.dumps({"error": {"code": code, "message": message}}).encode())


@pytest.mark.parametrize(
    ("options", "done", "said"),
    [
        ([], {}, "/etc/c.yaml: nothing has changed"),
        (["--dry-run"], {"dry_run": True}, "/etc/c.yaml: nothing would change"),
        ([], {"live": ["a", "b"]}, "took effect: a, b"),
        ([], {"engine": ["p"]}, "need a new engine: reload --restart-engine: p"),
        (["--dry-run"], {"dry_run": True, "engine": ["p"]}, "would need a new engine: reload --restart-engine: p"),
        (
            ["--dry-run", "--restart-engine"],
            {"dry_run": True, "engine": ["p"]},
            "would take effect with the engine that is launched now: p",
        ),
        (["--restart-engine"], {"engine": ["p"]}, "take effect with the next start: p"),
        ([], {"daemon": ["m"]}, "need a new daemon: systemctl restart, or end it and run it again: m"),
    ],
)
def test_each_key_is_named_with_what_it_needs(
    daemon: FakeDaemon, options: list[str], done: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each kind; what was asked for reaches the daemon."""
    daemon.statuses = [answered(**done)]
    assert main(["reload", "--socket", daemon.path, "--reason", "r", *options]) == 0
    assert capsys.readouterr().out == f"{said}\n"
    (body,) = daemon.bodies
    wanted = {"dry_run": "--dry-run" in options, "restart_engine": "--restart-engine" in options}
    assert body == {"reason": "r", "drain": True, **wanted}


def test_a_restart_is_waited_for(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """Until an engine of the new configuration is ready: the old one, still draining, is not it."""
    pending = {**CONFIG, "pending": ["p"]}
    started = answered(engine=["p"], restarted=True) | {"state": "stopping", "ready": False, "config": pending}
    ready = {**READY, "config": CONFIG}
    daemon.statuses = [started, {**READY, "config": pending}, state("starting", config=CONFIG), ready]
    assert main(["reload", "--restart-engine", "--socket", daemon.path]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "take effect with the engine that is launched now: p"
    assert second.startswith("ready after ")
    assert daemon.statuses == [ready]
    daemon.statuses = [started, state("starting", config=CONFIG), state("failed", fail_why="no memory")]
    assert main(["reload", "--restart-engine", "--socket", daemon.path]) == 5
    assert "no memory" in capsys.readouterr().err
    daemon.statuses = [started, state("stopping", intent="down", config=CONFIG)]
    assert main(["reload", "--restart-engine", "--socket", daemon.path]) == 1


def test_a_bad_file_is_told_as_check_tells_it(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """Each problem on a line of its own, status 1; any other refusal as it always is; no daemon is 3."""
    daemon.refusal = refusal("bad_configuration", "f:1: a: is bad; mend it\nf:2: b: is too; and it")
    assert main(["reload", "--socket", daemon.path]) == 1
    told = capsys.readouterr()
    assert told.err == "vllm-supervisor: f:1: a: is bad; mend it\nvllm-supervisor: f:2: b: is too; and it\n"
    assert told.out == ""
    daemon.refusal = refusal("conflict", "the daemon is ending")
    assert main(["reload", "--socket", daemon.path]) == 1
    assert capsys.readouterr().err.startswith("vllm-supervisor: refused (conflict): the daemon is ending; ")
    assert main(["reload", "--socket", f"{daemon.path}.not"]) == 3


def test_a_file_that_cannot_be_read_is_left_to_the_daemon(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-c FILE` leads to the socket; where it is broken the usual places do, so that the daemon hears of it."""
    broken = tmp_path / "broken.yaml"
    broken.write_text("engine: [\n")
    Path(daemon.path).rename(tmp_path / "control.sock")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    daemon.statuses = [answered()]
    assert main(["reload", "-c", str(broken)]) == 0
    assert len(daemon.bodies) == 1


def test_check_compares_the_daemons_own_file_there_and_another_here(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of its own file the daemon is asked as it stands; of another it is sent digests, and never a value."""
    program = tmp_path / "serve.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    own, other = tmp_path / "own.yaml", tmp_path / "other.yaml"
    for path in (own, other):
        path.write_text(
            f"engine: {{vllm: {{launcher: [{program}], model: m, log_file: {tmp_path}/l, api_key: sk-1}}}}\n"
            f"control: {{socket: {daemon.path}}}\nstate_dir: {tmp_path}\n"
        )
    daemon.statuses = [{**answered(live=["k"], dry_run=True), "config": {**CONFIG, "path": str(own)}}]
    for path in (own, other):
        assert main(["check", str(path), "--against-running"]) == 0
        assert capsys.readouterr().out.endswith("would take effect at once: k\n")
    assert daemon.bodies[0] == {"dry_run": True}
    assert set(daemon.bodies[1]) == {"dry_run", "values"}
    assert "engine.vllm.api_key" in daemon.bodies[1]["values"]
    assert "sk-1" not in json.dumps(daemon.bodies)
