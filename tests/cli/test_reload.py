"""`reload` and `check --against-running`: what they ask, what they say, how they end."""

import json
import socket
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
    daemon.statuses = [READY, started, {**READY, "config": pending}, state("starting", config=CONFIG), ready]
    assert main(["reload", "--restart-engine", "--socket", daemon.path]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "take effect with the engine that is launched now: p"
    assert second.startswith("ready after ")
    assert daemon.statuses == [ready]
    daemon.statuses = [READY, started, state("starting", config=CONFIG), state("failed", fail_why="no memory")]
    assert main(["reload", "--restart-engine", "--socket", daemon.path]) == 5
    assert "no memory" in capsys.readouterr().err
    daemon.statuses = [READY, started, state("stopping", intent="down", config=CONFIG)]
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


BROKEN = [
    "engine: [\n",
    "- a list\n",
    "control: {socket: SOCKET}\nengine: [\n",
    "control:\n  socket: 'SOCKET'\n\t",
    None,
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_told_to_its_own_daemon_and_to_no_other(
    daemon: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
) -> None:
    """`-c FILE` leads to the daemon that runs on FILE, also where FILE is broken or gone; never to another one."""
    broken = tmp_path / "broken.yaml"
    usual = tmp_path / "run"
    usual.mkdir()
    if text is not None:
        broken.write_text(text.replace("SOCKET", daemon.path))
    if "SOCKET" not in (text or ""):
        (usual / "current.sock").symlink_to(daemon.path)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(usual))
    daemon.statuses = [{**answered(), "config": {**CONFIG, "path": str(broken)}}]
    daemon.refusal = refusal("bad_configuration", "f:1: a: is bad; mend it")
    assert main(["reload", "-c", str(broken)]) == 1
    assert capsys.readouterr().err == "vllm-supervisor: f:1: a: is bad; mend it\n"
    daemon.statuses, daemon.refusal, daemon.requests = [answered()], None, []
    for command in ("reload", "restart", "stop"):
        assert main([command, "-c", str(broken)]) == 2
        first, last = capsys.readouterr().err.splitlines()
        assert first.startswith(f"vllm-supervisor: {broken}")
        assert last.startswith(f"vllm-supervisor: {broken}: no daemon that runs on it answers at ")
    assert {method for method, _, _ in daemon.requests} == {"GET"}


@pytest.mark.parametrize("command", ["reload", "restart", "stop", "start"])
@pytest.mark.parametrize("how", ["of the file", "usual", "named"])
def test_the_daemon_of_another_file_is_left_alone(
    daemon: FakeDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    how: str,
) -> None:
    """A good FILE, and a daemon on another one at its socket: refused, in one line that names both."""
    file = tmp_path / "mine.yaml"
    named = f"control: {{socket: {daemon.path}}}\n" if how == "of the file" else ""
    file.write_text(f"engine: {{vllm: {{model: m}}}}\n{named}")
    if how == "usual":
        (tmp_path / "control.sock").symlink_to(daemon.path)
        monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    daemon.statuses = [answered()]
    options = ["--socket", daemon.path] if how == "named" else []
    assert main([command, "-c", str(file), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line
    assert "/etc/c.yaml" in line
    assert [method for method, _, _ in daemon.requests] == ["GET"]


def test_a_socket_that_the_file_names_since_it_was_edited_is_no_hindrance(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`control.socket` takes effect with a new daemon: until then the old socket is found, through a link to it too."""
    file = tmp_path / "c.yaml"
    file.write_text(f"engine: {{vllm: {{model: m}}}}\ncontrol: {{socket: {tmp_path}/new.sock}}\n")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    daemon.statuses = [{**answered(), "config": {**CONFIG, "path": str(file)}}]
    assert main(["reload", "-c", str(file)]) == 3
    (tmp_path / "current.sock").symlink_to(daemon.path)
    assert main(["reload", "-c", str(file)]) == 0
    assert len(daemon.bodies) == 1


def test_values_of_the_client_are_refused(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """`--set` would have no effect; the socket it may name."""
    assert main(["reload", "--socket", daemon.path, "--set", "engine.vllm.concurrency=3"]) == 2
    assert capsys.readouterr().err.startswith("vllm-supervisor: reload --set engine.vllm.concurrency: the daemon reads")
    daemon.statuses = [answered()]
    assert main(["reload", "--set", f"control.socket={daemon.path}"]) == 0


def test_a_daemon_that_does_not_answer_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it accepts and says nothing, a reload ends as everything else does: after the time for a status, with 3."""
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        assert main(["reload", "--socket", str(path)]) == 3
        assert "no answer in time" in capsys.readouterr().err


def test_the_timeout_holds_for_the_reading_too(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """A daemon that is long in reading its file is left to it after --timeout, with 1."""
    daemon.delay = 30
    assert main(["reload", "--socket", daemon.path, "--timeout", "0.2"]) == 1
    assert "timed out: the daemon has not answered after 0.2 s" in capsys.readouterr().err


def test_check_leaves_what_it_cannot_know_to_the_daemon(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A credential that only the service has: the daemon's word on its own file counts, also where that is no."""
    program = tmp_path / "serve.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / "own.yaml"
    file.write_text(
        f"engine: {{vllm: {{launcher: [{program}], model: m, log_file: {tmp_path}/l, "
        "api_key: '${credential:k}'}}\n"
        f"control: {{socket: {daemon.path}}}\nstate_dir: {tmp_path}\n"
    )
    check = ["check", str(file), "--against-running"]
    daemon.statuses = [{**answered(live=["k"], dry_run=True), "config": {**CONFIG, "path": str(file)}}]
    assert main(check) == 0
    out, err = capsys.readouterr()
    assert out == f"{file}: valid\nwould take effect at once: k\n"
    assert "warning: not valid in this environment, but in the daemon's: " in err
    assert main([*check, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reload"]["live"] == ["k"]
    daemon.refusal = refusal("bad_configuration", "f:1: a: is bad; mend it")
    assert main(check) == 1
    assert capsys.readouterr().err.endswith("vllm-supervisor: f:1: a: is bad; mend it\n")
    # Of another daemon's file nobody but this environment can say anything.
    daemon.statuses = [answered()]
    assert main(check) == 2
    assert "`systemctl restart`" in capsys.readouterr().err


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
        out = capsys.readouterr().out
        assert out.endswith("would take effect at once: k\n")
        assert (f"compared with the daemon that runs on {own}:\n" in out) is (path == other)
    assert daemon.bodies[0] == {"dry_run": True}
    assert set(daemon.bodies[1]) == {"dry_run", "values"}
    assert "engine.vllm.api_key" in daemon.bodies[1]["values"]
    assert "sk-1" not in json.dumps(daemon.bodies)
