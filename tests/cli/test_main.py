"""The command line as a whole: usage, errors in one line, exit statuses."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.fake_daemon import fake_daemon, state
from tests.eventually import eventually
from vllm_supervisor import __version__
from vllm_supervisor.cli.main import COMMANDS, main

COMMAND = [sys.executable, "-m", "vllm_supervisor"]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` is 0 and on standard output, for the whole and for each command."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert name in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """It says the name as well."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vllm-supervisor {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "no command given; see vllm-supervisor --help"),
        (["stats"], "there is no command 'stats', perhaps 'status'; see vllm-supervisor --help"),
        (["--no-such", "status"], "unrecognized arguments: --no-such; see vllm-supervisor status --help"),
        (["--no-such"], "unrecognized arguments: --no-such; see vllm-supervisor --help"),
        (["status", "--chec"], "unrecognized arguments: --chec; see vllm-supervisor status --help"),
        (["wait", "--timeout", "-1"], "argument --timeout: invalid seconds value: '-1'"),
        (["wait", "--timeout", "nan"], "argument --timeout: invalid seconds value: 'nan'"),
        (["wait", "--for", "exited"], "argument --for: invalid choice: 'exited'"),
        (["--json", "simulate", "serve"], "simulate takes no options before the command"),
        (["-c"], "argument -c/--config: expected one argument"),
    ],
)
def test_wrong_usage_is_2_in_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a usage block nor a traceback; where to read more."""
    assert main(argv) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"vllm-supervisor: {said}")
    assert line.count("\n") == 1


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", [["explain"], ["explain", "--json"], ["--help"]], ids=" ".join)
def test_a_full_output_is_74_in_one_line(words: list[str], buffered: str) -> None:
    """No traceback, no second complaint of the interpreter, and no status that a command answers with."""
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert ended.stderr.decode().startswith("vllm-supervisor: standard output: no space left on device; write to")
    assert ended.stderr.count(b"\n") == 1
    assert ended.returncode == 74


def test_options_stand_before_or_after_the_command(tmp_path: Path) -> None:
    """Both at once too; values of options are not taken for the command."""
    with fake_daemon(tmp_path) as daemon:
        assert main(["--socket", daemon.path, "status"]) == 0
        assert main(["status", "--socket", daemon.path]) == 0
        assert main(["--set", "status", "status", "--socket", daemon.path]) == 0
        assert main(["--socket=/nonexistent", "status", "--socket", daemon.path]) == 0


def test_each_problem_of_a_configuration_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All at once, each with the program's name, status 2."""
    config = tmp_path / "c.yaml"
    config.write_text("engine: {vllm: {port: 99999, prot: 1}}\n")
    assert main(["check", str(config)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert all(line.startswith(f"vllm-supervisor: {config}:1: ") for line in lines)


def test_unexpected_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug says how to get its traceback, which shows only then."""
    with fake_daemon(tmp_path) as daemon:
        daemon.statuses = [{"state": "ready", "load": "not an object"}]
        assert main(["status", "--socket", daemon.path]) == 70
        line = capsys.readouterr().err
        assert line.startswith("vllm-supervisor: unexpected error: AttributeError: ")
        assert "VLLM_SUPERVISOR_DEBUG=1" in line
        assert line.count("\n") == 1
        monkeypatch.setenv("VLLM_SUPERVISOR_DEBUG", "1")
        with pytest.raises(AttributeError):
            main(["status", "--socket", daemon.path])


def test_interrupt_is_quiet(tmp_path: Path) -> None:
    """^C while waiting is 130, as shells expect."""
    with fake_daemon(tmp_path) as daemon:
        daemon.statuses = [state("starting")]
        # A test run in the background of a script ignores ^C, and so would its children.
        heeding = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-c", heeding, *COMMAND, "wait", "--socket", daemon.path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            eventually(lambda: daemon.requests)
            child.send_signal(signal.SIGINT)
            assert child.communicate(timeout=20) == (b"", b"")
        assert child.returncode == 130


def test_reader_that_stops_reading_is_no_error(tmp_path: Path) -> None:
    """`logs | head -1` ends quietly, also when the pipe is found broken only at the end."""
    with fake_daemon(tmp_path) as daemon:
        for pieces in ((b"x" * 1_000_000,), (b"short\n",)):
            daemon.pieces = pieces
            reading, writing = os.pipe()
            os.close(reading)
            command = [*COMMAND, "logs", "--socket", daemon.path]
            done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=20, check=False)
            os.close(writing)
            assert (done.returncode, done.stderr) == (141, b"")


def test_simulate_gets_its_arguments_untouched(capsys: pytest.CaptureFixture[str]) -> None:
    """They are vLLM's, names that are ours included."""
    assert main(["simulate", "--help"]) == 0
    assert "serve MODEL" in capsys.readouterr().out
