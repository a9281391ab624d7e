"""The commands that only talk to a daemon: what they ask, print and exit with."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.fake_daemon import READY, FakeDaemon, fake_daemon, state
from vllm_supervisor.adapters.http1 import error_response
from vllm_supervisor.cli import client, wait
from vllm_supervisor.cli.main import main
from vllm_supervisor.domain.model import PublicState
from vllm_supervisor.errors import NoDaemonError, RefusedError, SupervisorError
from vllm_supervisor.ports import Response


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    with fake_daemon(tmp_path) as daemon:
        monkeypatch.setenv("VLLM_SUPERVISOR__CONTROL__SOCKET", daemon.path)
        yield daemon


def test_status_in_words(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """A few aligned lines, without colours where nobody looks."""
    assert main(["status"]) == 0
    assert capsys.readouterr().out == (
        "state      ready, generation 3, pid 1234, up 2 h 5 min\n"
        "model      openai/gpt-oss-20b\n"
        "base url   http://127.0.0.1:8000\n"
        "load       3 running, 0 waiting, KV cache 12%\n"
        "restarts   3 (2 crash, 1 requested), 0 failures in a row\n"
        "last exit  signal 9 (crash) at 2026-01-01T00:00:00Z: out of memory (oom); lower it\n"
    )


def test_status_while_starting_and_blocked(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """What keeps the engine from coming up is said with its remedy; nothing is advertised."""
    phase = {"name": "loading_weights", "progress": 0.4, "detail": "2 of 5 shards", "eta_s": 30.0}
    blocker = {"kind": "port", "why": "port 8000 is taken by pid 7", "remedy": "stop it"}
    daemon.statuses = [
        state("starting", phase=phase, blocker=blocker, pid=None, uptime_s=None, next_start_in_s=4.2, last_exit=None)
    ]
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "state      starting, generation 3, next start in 4.2 s\n" in out
    assert "phase      loading_weights, 40%, 2 of 5 shards, about 30 s left\n" in out
    assert "blocked    port 8000 is taken by pid 7; stop it\n" in out
    assert "base url" not in out


@pytest.mark.parametrize(("verdict", "shown"), [("busy", False), ("suspect", True), ("blind", True), (None, False)])
def test_status_tells_what_is_wrong_with_the_stepping(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], verdict: str | None, shown: bool
) -> None:
    """With its evidence; what is right is no news."""
    daemon.statuses = [state("ready", liveness={"verdict": verdict, "evidence": "canaries are refused (HTTP 401)"})]
    assert main(["status"]) == 0
    row = f"liveness   {verdict}: canaries are refused (HTTP 401)\n"
    assert (row in capsys.readouterr().out) is shown


def test_status_tells_of_an_end_what_is_known(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """Why we ended it; that no cause is known, and where to look; that its evidence was lost. Once, if it failed."""
    last = {"code": 0, "at": "2026-01-01T00:00:00Z", "reason": "unhealthy", "detail": "3 probes failed"}
    last |= {"diagnosis": None, "where_to_look": "no known cause; read the log", "bundle_lost": "no space"}
    daemon.statuses = [state("backoff", last_exit=last)]
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert (
        "last exit  code 0 (unhealthy: 3 probes failed) at 2026-01-01T00:00:00Z: no known cause; read the log\n"
        in shown
    )
    assert "evidence   not kept: no space\n" in shown
    daemon.statuses = [state("failed", last_exit=last, fail_why="never ready: no known cause; read the log")]
    assert main(["status"]) == 0
    assert capsys.readouterr().out.count("no known cause") == 1


def test_status_of_a_daemon_of_another_version(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys that are not there are not missed."""
    daemon.statuses = [{"state": "ready", "ready": True}]
    assert main(["status", "--check"]) == 0
    assert capsys.readouterr().out.startswith("state      ready")


def test_status_as_json(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """The object is the daemon's, whole; the option may stand before the command."""
    assert main(["--json", "status"]) == 0
    assert json.loads(capsys.readouterr().out) == READY


@pytest.mark.parametrize("name", ["stopped", "starting", "unhealthy", "stopping", "backoff", "failed"])
def test_status_check_is_0_only_when_ready(daemon: FakeDaemon, name: str) -> None:
    """Scripts and health checks ask this way."""
    assert main(["status", "--check"]) == 0
    daemon.statuses = [state(name)]
    assert main(["status", "--check"]) == 1
    assert main(["status"]) == 0


def test_wait_returns_when_ready(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """It asks until the state is there."""
    daemon.statuses = [state("starting"), state("backoff"), READY]
    assert main(["wait"]) == 0
    assert capsys.readouterr().out.startswith("ready after ")
    assert len(daemon.requests) == 3


def test_wait_for_any_public_state(daemon: FakeDaemon) -> None:
    """The names are those of the contract, and `failed` can be waited for."""
    assert tuple(PublicState) == wait.STATES
    for name in wait.STATES:
        daemon.statuses = [state(name)]
        assert main(["wait", "--for", name]) == 0


def test_wait_that_is_in_vain(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """Failed meanwhile is 5, with the cause and what to do; too late is 1; both are one line."""
    daemon.statuses = [state("starting"), state("failed")]
    assert main(["wait"]) == 5
    line = capsys.readouterr().err
    assert line == "vllm-supervisor: the engine failed: out of memory; lower it\n"
    daemon.statuses = [state("failed", fail_why="out of memory (oom); lower it")]
    assert main(["wait"]) == 5
    assert capsys.readouterr().err.count("lower it") == 1
    daemon.statuses = [state("starting")]
    assert main(["wait", "--timeout", "0.2"]) == 1
    assert capsys.readouterr().err == (
        "vllm-supervisor: timed out: not ready after 0.2 s, but starting; see `vllm-supervisor status`\n"
    )


def test_wait_without_a_daemon_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A daemon that is not there is no reason to hang in a boot script."""
    assert main(["wait", "--socket", str(tmp_path / "none")]) == 3
    line = capsys.readouterr().err
    assert line.startswith(f"vllm-supervisor: no daemon answers: {tmp_path}/none: no such file or directory; start it")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        ("start", [state("stopped", intent="down")], [state("starting", generation=4), state("ready", generation=4)]),
        ("start", [READY], [READY]),
        ("start", [state("failed")], [state("failed"), state("starting", generation=4), state("ready", generation=4)]),
        ("stop", [READY], [state("stopping", intent="down"), state("stopped", intent="down")]),
        ("stop", [state("failed")], [state("failed", intent="down"), state("stopped", intent="down")]),
        ("restart", [READY], [READY, READY, state("stopping"), state("ready", generation=4)]),
        ("restart", [state("starting", pid=None)], [state("starting", pid=None), state("starting"), READY]),
    ],
)
def test_changes_are_waited_for(
    daemon: FakeDaemon, command: str, before: list[dict[str, object]], after: list[dict[str, object]]
) -> None:
    """They return once it is done: a restart's `ready` is the next generation's, and an old `failed` is no news.

    What has a number but was not launched when it was asked for is the next one.
    """
    daemon.statuses = [*before, *after]
    assert main([command, "--reason", "why not", "--no-drain"]) == 0
    assert daemon.bodies == [{"reason": "why not", "drain": False}]
    assert ("POST", f"/v1/{command}", {}) in daemon.requests
    assert daemon.statuses == after[-1:]


def test_changes_need_not_be_waited_for(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """`--no-wait` returns with what the daemon said."""
    daemon.statuses = [READY, state("stopping", intent="down")]
    assert main(["stop", "--no-wait"]) == 0
    assert capsys.readouterr().out.startswith("state      stopping")
    assert daemon.bodies == [{"reason": None, "drain": True}]


@pytest.mark.parametrize(
    ("command", "statuses", "status"),
    [
        ("start", [state("stopped"), state("starting", generation=4), state("failed", generation=4)], 5),
        ("restart", [READY, state("stopping"), state("failed")], 5),
        ("stop", [READY, state("stopping", intent="down"), state("failed", intent="down")], 5),
        ("start", [state("failed"), state("failed")], 5),
        ("start", [state("stopped"), state("starting"), state("stopping", intent="down")], 1),
        ("stop", [READY, state("stopping", intent="down"), state("starting", intent="up")], 1),
    ],
)
def test_changes_that_come_to_nothing(
    daemon: FakeDaemon, command: str, statuses: list[dict[str, object]], status: int
) -> None:
    """Failed meanwhile is 5; overtaken by somebody else's wish is 1. Neither waits for ever."""
    daemon.statuses = statuses
    assert main([command]) == status


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        (
            error_response(403, "forbidden", "uid 7 may not change the state"),
            "refused (forbidden): uid 7 may not change the state; run it as root",
        ),
        (
            error_response(409, "conflict", "the daemon is ending; wait"),
            "refused (conflict): the daemon is ending; wait\n",
        ),
        (error_response(409, "conflict", "no"), "refused (conflict): no; see `vllm-supervisor status`"),
    ],
)
def test_refused_is_1_with_the_daemons_reason(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], refusal: Response, line: str
) -> None:
    """One line, with the remedy that the daemon gave or that the code suggests."""
    daemon.refusal = refusal
    assert main(["stop"]) == 1
    assert capsys.readouterr().err.startswith(f"vllm-supervisor: {line}")


def test_logs_are_bytes_as_they_are(daemon: FakeDaemon, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """vLLM's output need not be UTF-8; `-f` follows, and the daemon's end is no end of the log."""
    daemon.pieces = (b"caf\xe9\n", b"next\n")
    assert main(["logs", "-n", "7"]) == 0
    assert main(["logs", "-f"]) == 3
    told = capfdbinary.readouterr()
    assert told.out == b"caf\xe9\nnext\n" * 2
    assert told.err.startswith(b"vllm-supervisor: the daemon closed the connection: ")
    assert told.err.count(b"\n") == 1
    assert daemon.requests == [
        ("GET", "/v1/logs", {"tail": "7"}),
        ("GET", "/v1/logs", {"tail": "100", "follow": "1"}),
    ]


def test_events_are_json_lines(daemon: FakeDaemon, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """They pass through untouched."""
    daemon.pieces = (b'{"seq": 1}\n', b'{"seq": 2}\n')
    assert main(["events"]) == 0
    assert main(["events", "--follow"]) == 3
    assert capfdbinary.readouterr().out == b"".join(daemon.pieces) * 2
    assert [query for _, _, query in daemon.requests] == [{}, {"follow": "1"}]


# --- the client by itself


def _answering(path: Path, answer: bytes) -> threading.Thread:
    """Run something that takes one connection, answers with these bytes, and closes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def work() -> None:
        with listener, listener.accept()[0] as sock:
            sock.recv(65536)
            sock.sendall(answer)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (b"", NoDaemonError, "without an answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", NoDaemonError, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", NoDaemonError, "in the middle"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", SupervisorError, "no JSON object"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", SupervisorError, "no JSON object"),
        (b"HTTP/1.1 503 \r\nContent-Length: 3\r\n\r\nbad", RefusedError, "bad"),
    ],
)
def test_what_answers_may_be_something_else(tmp_path: Path, answer: bytes, error: type[Exception], why: str) -> None:
    """Whatever listens there, the user gets a reason in words."""
    thread = _answering(tmp_path / "s", answer)
    with pytest.raises(error, match=why):
        client.get_json(str(tmp_path / "s"), "/v1/status")
    thread.join(20)


def test_daemon_that_hangs_is_given_up(tmp_path: Path) -> None:
    """A listener that never accepts, or whose backlog is full, costs the timeout and no more."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        with pytest.raises(NoDaemonError, match="no answer in time"):
            client.get(path, "/v1/status", timeout=0.2)
        # The connection above was never accepted: it fills the backlog.
        with pytest.raises(NoDaemonError, match="temporarily unavailable"):
            client.get(path, "/v1/status", timeout=0.2)


def test_stale_socket_and_absurd_path(tmp_path: Path) -> None:
    """A file left by a killed daemon is nobody; a path that no socket can have is an error in words."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
    with pytest.raises(NoDaemonError, match="connection refused"):
        client.get(path, "/")
    with pytest.raises(NoDaemonError, match="too long"):
        client.get("/" + "x" * 200, "/")


def test_socket_that_this_user_may_not_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the group that may; the exit status is not that of a missing daemon."""
    if os.getuid() == 0:
        pytest.skip("root may connect to everything")
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0)
        assert main(["status", "--socket", str(path)]) == 1
    assert "may not connect; run it as root, or as a member of the group" in capsys.readouterr().err
