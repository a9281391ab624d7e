"""`advise` on logs and with a daemon: statuses, both outputs, one line for what is wrong."""

import gzip
import io
import json
import os
import pty
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.cli.fake_daemon import FakeDaemon, fake_daemon
from tests.eventually import eventually
from vllm_supervisor.cli.advise.live import Question
from vllm_supervisor.cli.advise.text import advice_text
from vllm_supervisor.cli.advise.watch import watch
from vllm_supervisor.cli.main import main

KEYS = {"verdict", "current_concurrency", "target_concurrency", "evidence"}
ADVICE = {
    "verdict": "client_bound",
    "confidence": "high",
    "reason": "32 run, nothing waits: the client sends no more, and the engine could take more",
    "current_concurrency": 32,
    "target_concurrency": 64,
    "target_trusted": True,
    "evidence": ["12 looks over 60 s, 12 of them count"],
    "next": {"change": "engine.vllm.concurrency", "why": "have clients keep 64 requests in flight"},
    "headline": "client_bound: keep 64 in flight",
}


def stats(count: int, running: int, waiting: int = 0, kv: float = 40.0, *, minute: int = 0) -> str:
    return "".join(
        f"(APIServer pid=1) INFO 09-02 08:{minute + tick // 6:02d}:{tick % 6}0 [loggers.py:271] Engine 000: Avg prompt "
        f"throughput: 200.0 tokens/s, Avg generation throughput: {12.5 * running} tokens/s, Running: {running} reqs, "
        f"Waiting: {waiting} reqs, GPU KV cache usage: {kv}%, Prefix cache hit rate: 3.3%\n"
        for tick in range(count)
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the log of the worked example: 32 running at 40 %."""
    path = tmp_path / "vllm.log"
    path.write_text("INFO:     Application startup complete.\n" + stats(12, 32))
    return path


def test_the_worked_example(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """32 running at 40 % gives 64, as words and as JSON with the agreed keys."""
    assert main(["advise", "--log", str(log)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("verdict     client_bound (high confidence)\n")
    assert "\nin flight   32 now, keep 64\n" in out
    assert "\nnext        engine.vllm.concurrency: have clients keep 64 requests in flight, 32 run now" in out
    assert main(["--json", "advise", "--log", str(log)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= KEYS
    assert (found["verdict"], found["current_concurrency"], found["target_concurrency"]) == ("client_bound", 32, 64)


def test_five_at_one_percent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is starved, and the figure is marked as not to be trusted."""
    path = tmp_path / "vllm.log"
    path.write_text(stats(12, 5, kv=1.0))
    assert main(["advise", "--log", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("verdict     starved (")
    assert "keep 20 (not to be trusted); " in out
    assert main(["advise", "--log", str(path), "--concurrency", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "client_bound"


def test_the_window_is_the_end_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue of an hour ago is history; one within the window counts."""
    path = tmp_path / "vllm.log"
    path.write_text(stats(18, 50, 20, 95.0) + stats(6, 32, minute=40))
    assert main(["advise", "--log", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "client_bound"
    assert main(["advise", "--log", str(path), "--window", "3600", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "memory_bound"


def test_the_configuration_names_the_caps(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -c the figures of the configuration count, and what would clamp the advice is named."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "engine: {vllm: {model: m, concurrency: 40, extra_args: [--max-num-seqs=48], log_file: journal}}\n"
        "resources: {max_concurrent_jobs: 32}\n"
    )
    assert main(["advise", "--log", str(log), "-c", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target_concurrency"] == 48
    said = " ".join(found["clamps"])
    assert "max_concurrent_jobs is 32" in said
    assert "engine.vllm.concurrency is 40" in said
    assert "--max-num-seqs is 48" in said


@pytest.mark.parametrize("text", ["", "INFO:     Application startup complete.\n", stats(1, 32)])
def test_no_data(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log without stats lines, or with a single one, gives status 1 and one line."""
    path = tmp_path / "vllm.log"
    path.write_text(text)
    assert main(["advise", "--log", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "stats line" in err


BANNER = "(APIServer pid=9) INFO 09-02 08:20:00 [utils.py:299] vLLM API server version 0.11.0\n"


def test_a_log_of_several_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last one is judged, and the evidence says so; one without stats lines is no data, whatever was before."""
    path = tmp_path / "vllm.log"
    path.write_text(stats(12, 50, 20, 95.0) + BANNER + stats(12, 32, minute=21))
    assert main(["advise", "--log", str(path), "--window", "3600", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["target_concurrency"]) == ("client_bound", 64)
    assert found["evidence"][0] == "the log has several starts: the last one counts"
    path.write_text(stats(12, 50, 20, 95.0) + BANNER)
    assert main(["advise", "--log", str(path)]) == 1
    assert "no stats lines since the last start in this log" in capsys.readouterr().err


def test_a_prompt_that_quotes_a_stats_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What users ask is echoed with `--enable-log-requests`, and up to 0.10 always: it judges nothing."""
    quoted = stats(1, 999, 999, 99.0).strip()
    with log.open("a") as stream:
        stream.write(
            f"INFO 09-02 08:02:00 [logger.py:41] Received request cmpl-1: prompt: '{quoted}', params: x\n" * 40
        )
    assert main(["advise", "--log", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target_concurrency"] == 64


def test_unreadable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, a folder and a compressed log give status 2 and one line each."""
    packed = tmp_path / "vllm.log.gz"
    packed.write_bytes(gzip.compress(stats(12, 32).encode()))
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (packed, "it is compressed")):
        assert main(["advise", "--log", str(path)]) == 2
        err = capsys.readouterr().err
        assert why in err
        assert err.count("\n") == 1


def test_standard_input_and_endless_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash reads standard input; a megabyte without a newline, and bytes that are no text, hurt nobody."""

    class Input:
        buffer = io.BytesIO(b"x" * 1_000_000 + b"\xff max_num_seqs\n" + stats(12, 32).encode())

    monkeypatch.setattr(sys, "stdin", Input())
    assert main(["advise", "--log", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target_concurrency"] == 64


@pytest.mark.parametrize(
    "option",
    [["--window", "0"], ["--window", "nan"], ["--window", "4000"], ["--concurrency", "0"], ["--concurrency", "x"]],
)
def test_nonsense(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and one line."""
    assert main(["advise", *option]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("text", ["100000000", "0", "-1", "1e3", "9" * 5000])
@pytest.mark.parametrize("option", ["--prompt-tokens", "--output-tokens"])
def test_nonsense_of_tokens(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line speaks of tokens, and of how many there may be."""
    assert main(["advise", "--load", option, text]) == 2
    err = capsys.readouterr().err
    assert f"argument {option}: not a number of tokens from 1 to 1000000: " in err
    assert err.count("\n") == 1


def ask(daemon: FakeDaemon, *options: str) -> int:
    return main(["advise", *options, "--socket", daemon.path])


def test_from_the_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the daemon says is shown; the options reach it."""
    with fake_daemon(tmp_path) as daemon:
        daemon.advice = {"advice": ADVICE, "why": None, "now": None}
        assert ask(daemon, "--window", "5.5", "--concurrency", "32") == 0
        assert daemon.requests[-1] == ("GET", "/v1/advice", {"window": "5.5", "concurrency": "32"})
        assert "32 now, keep 64" in capsys.readouterr().out
        assert ask(daemon, "--json") == 0
        assert json.loads(capsys.readouterr().out) == ADVICE
        assert daemon.requests[-1] == ("GET", "/v1/advice", {})


def test_no_data_and_no_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that is not ready is status 1, no daemon 3; one line each."""
    with fake_daemon(tmp_path) as daemon:
        daemon.advice = {"advice": None, "why": "the engine is not ready but starting", "now": None}
        assert ask(daemon) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert "not ready but starting" in err
    assert main(["advise", "--socket", str(tmp_path / "none")]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_watch_prints_rows_until_interrupted(tmp_path: Path) -> None:
    """Without a terminal: a head, then a plain line each time, also while there is no advice; Ctrl-C ends with 130."""
    with fake_daemon(tmp_path) as daemon:
        now = {"running": 32, "waiting": 0, "kv_cache_usage": 0.4, "generation_tokens_per_s": 400.0}
        daemon.advice = {"advice": ADVICE, "why": None, "now": now}
        out = tmp_path / "out"
        with out.open("wb") as stream:
            command = [sys.executable, "-m", "vllm_supervisor", "advise", "--watch", "--socket", daemon.path]
            watching = subprocess.Popen(command, stdout=stream, stderr=subprocess.PIPE)
            try:
                eventually(lambda: out.read_text().count("\n") >= 2, within=30, what="two lines")
                watching.send_signal(2)
                assert watching.wait(30) == 130
            finally:
                watching.kill()
                _, err = watching.communicate()
        assert err == b""
        head, row = out.read_text().splitlines()[:2]
        assert head.split() == ["time", "running", "waiting", "KV", "tokens/s", "keep", "verdict"]
        assert row.split()[1:] == ["32", "0", "40.0%", "400", "64", "client_bound"]


def test_watch_draws_a_table_in_place(tmp_path: Path) -> None:
    """On a terminal: head, rows, and below them the headline and what to change, drawn over what was there before."""
    ours, theirs = pty.openpty()
    with fake_daemon(tmp_path) as daemon:
        now = {"running": 32, "waiting": 0, "kv_cache_usage": None, "generation_tokens_per_s": None}
        daemon.advice = {"advice": {**ADVICE, "target_trusted": False}, "why": None, "now": now}
        command = [sys.executable, "-m", "vllm_supervisor", "advise", "--watch", "--socket", daemon.path]
        watching = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE)
        os.close(theirs)
        shown = b""
        try:
            while shown.count(b"\033[J") < 2:
                shown += os.read(ours, 4096)
            watching.send_signal(2)
            assert watching.wait(30) == 130
        finally:
            watching.kill()
            watching.communicate()
            os.close(ours)
    first, second = shown.decode().replace("\r\n", "\n").split("\033[J")[:2]
    head, row, _, headline, change = first.replace("\r\033[K", "").splitlines()
    assert head.split()[0] == "time"
    assert row.split()[1:] == ["32", "0", "-", "-", "64?", "client_bound"]
    assert headline == "client_bound: keep 64 in flight"
    assert change == "next: engine.vllm.concurrency: have clients keep 64 requests in flight"[:79]
    assert second.startswith("\033[5A")
    assert second.count("client_bound") == 3


def test_watch_as_json(tmp_path: Path) -> None:
    """An object a line, whatever the daemon has to say."""
    with fake_daemon(tmp_path) as daemon:
        question = Question(daemon.path, None, None)
        looks: list[float] = []

        def pause(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 2:
                raise KeyboardInterrupt

        out = io.StringIO()
        with redirect_stdout(out), pytest.raises(KeyboardInterrupt):
            watch(question, as_json=True, pause=pause)
    assert [json.loads(line)["why"] for line in out.getvalue().splitlines()] == ["not yet", "not yet"]


def test_advice_in_words() -> None:
    """Where to settle, what caps it, what comes later; and why there is no figure, where there is none."""
    knee = {"why": "1700 tokens/s at 64, no more above", "flat": True, "settle": 64}
    later = [{"change": "--max-num-seqs", "why": "raise it"}, {"change": "a second replica", "why": "then"}]
    whole = {**ADVICE, "knee": knee, "clamps": ["--max-num-seqs is 48"], "later": later, "target_cut": "128 by KV"}
    lines = advice_text(whole).splitlines()
    assert "settle at   64" in lines
    assert "in flight   32 now, keep 64; 128 by KV" in lines
    assert "capped by   --max-num-seqs is 48" in lines
    assert lines[-2:] == ["then        --max-num-seqs: raise it", "            a second replica: then"]
    nothing = {**ADVICE, "target_concurrency": None, "target_doubt": "nothing runs"}
    assert "in flight   no advice: nothing runs" in advice_text(nothing).splitlines()
