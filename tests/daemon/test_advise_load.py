"""`advise --load` on whole daemons: what it measures, when it refuses, how it ends."""

import csv
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.daemon.conftest import Kit, real_vllm
from tests.daemon.test_advice import streams
from tests.rig import COMMAND, Rig

Make = Callable[..., Rig]
KEY = "sk-of-the-engine-4711"
QUICK = ("--step-seconds", "1", "--prompt-tokens", "40", "--output-tokens", "20")


def started(make_rig: Make, **more: object) -> Rig:
    rig = make_rig({"env": {"SIM_KV_TOKENS": "256", "SIM_TOKENS_PER_SECOND": "100"}, **more})
    rig.start()
    rig.wait_state("ready")
    return rig


def test_it_doubles_until_the_engine_is_full(make_rig: Make, tmp_path: Path) -> None:
    """Requests of 60 tokens on a cache of 256: 1, 2, 4 at once, and 8 do not run; table, plot, CSV and verdict."""
    rig = started(make_rig)
    table = tmp_path / "steps.csv"
    done = rig.cli("advise", "--load", *QUICK, "--csv", str(table))
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(table.read_text().splitlines()))
    tried = [int(row["concurrency"]) for row in rows]
    assert tried in ([1, 2, 4], [1, 2, 4, 8])
    assert all(float(row["tokens_per_s"]) > 0 and float(row["ttft_p50_s"]) > 0 for row in rows)
    assert done.stdout.count("###") >= 2
    assert "\nverdict     " in done.stdout
    target = int(done.stdout.partition("keep ")[2].split()[0])
    assert 2 <= target <= 5, done.stdout
    rig.until(lambda: rig.status()["load"]["running"] == 0, what="nothing of it is left")


def test_it_refuses_and_keeps_within_bounds(make_rig: Make, tmp_path: Path) -> None:
    """A wrong key, too long requests, a file that cannot be written, others' traffic: one line each, no load.

    With what is right it stops at the concurrency, and at the number of requests, that it is given.
    """
    rig = started(make_rig, api_key=KEY, env={"SIM_TOKENS_PER_SECOND": "100"})
    configured = ("-c", str(rig.folder / "config.yaml"))

    def refused(*options: str) -> tuple[int, str]:
        done = rig.cli("advise", "--load", *QUICK, *options)
        assert (done.stdout, done.stderr.count("\n")) == ("", 1), done
        assert KEY not in done.stderr
        return done.returncode, done.stderr

    status, said = refused()
    assert (status, "refuses the key" in said) == (1, True), said
    status, said = refused("--csv", str(tmp_path / "none" / "steps.csv"))
    assert (status, "No such file" in said) == (2, True), said
    status, said = refused("--output-tokens", "1000000", *configured)
    assert (status, "more than the engine's" in said) == (1, True), said

    done = rig.cli("advise", "--load", *QUICK, "--max-concurrency", "1", "--json", *configured)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"verdict", "current_concurrency", "target_concurrency", "evidence"} <= found.keys()
    assert found["ended"] == "1 at once were tried (--max-concurrency)"
    assert [step["concurrency"] for step in found["steps"]] == [1]

    with streams(rig, 1, key=KEY):
        status, said = refused(*configured)
        assert (status, "the engine works for others: 1 requests" in said) == (1, True), said
        done = rig.cli("advise", "--load", *QUICK, "--max-requests", "3", "--with-traffic", "--csv", "-", *configured)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("concurrency,running,waiting,")
        assert sum(int(line.split(",")[9]) for line in done.stdout.splitlines()[1:]) <= 3


def test_an_interrupt_shows_what_there_is(make_rig: Make) -> None:
    """Ctrl-C after the first step: its row, status 130, no verdict from it alone, and no request of ours stays."""
    rig = started(make_rig, env={"SIM_KV_TOKENS": "65536"})
    command = [str(COMMAND), "advise", "--load", *QUICK, "--socket", str(rig.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(3)]
        assert lines[-1].split()[0] == "1"
        running.send_signal(2)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, "")
    assert out.endswith("\nno verdict  there is nothing to compare a single step with\nended       interrupted\n"), out
    assert "verdict     " not in out
    rig.until(lambda: rig.ask_engine("/metrics")[1].count(b"num_requests_running{") and running_now(rig) == 0)


def test_an_engine_that_goes_away_gets_no_verdict(make_rig: Make) -> None:
    """Killed within the first step, and started again by the daemon: what was measured, one line, and status 1."""
    rig = started(make_rig, env={"SIM_KV_TOKENS": "65536", "SIM_TOKENS_PER_SECOND": "100"})
    command = [str(COMMAND), "advise", "--load", *QUICK, "--socket", str(rig.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.stdout.readline()
        os.kill(rig.leader(), signal.SIGKILL)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert err.startswith("vllm-supervisor: advise --load: the engine w"), err
    assert err.count("\n") == 1
    assert "\nno verdict  the engine w" in out
    assert "does not count" in out
    assert "keep " not in out


def test_a_step_with_others_requests_does_not_count(make_rig: Make) -> None:
    """Six clients come after the first step: it is shown, the run ends, and the plot has only what counts."""
    rig = started(make_rig, env={"SIM_KV_TOKENS": "65536", "SIM_TOKENS_PER_SECOND": "100"})
    command = [str(COMMAND), "advise", "--load", *QUICK, "--socket", str(rig.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(3)]
        with crowd(rig, 6):
            out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, "")
    table, _, rest = ("".join(lines[2:]) + out).partition("\n\n")
    *counted, last = table.splitlines()
    assert last.endswith("others' requests too, does not count")
    assert not any("others'" in row for row in counted)
    bars = [line for line in rest.splitlines() if "#" in line]
    assert [bar.split()[0] for bar in bars] == [row.split()[0] for row in counted]
    assert "\nended       others' requests came in between" in rest


@contextmanager
def crowd(rig: Rig, count: int) -> Iterator[None]:
    """Keep more requests in flight, whatever else is."""
    body = json.dumps({"model": "demo/model", "prompt": "x", "max_tokens": 3000, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with ExitStack() as clients:
        for _ in range(count):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", rig.port), 30))
            client.sendall(head.encode() + body)
        yield


def running_now(rig: Rig) -> float:
    _, text = rig.ask_engine("/metrics")
    (value,) = [line for line in text.decode().splitlines() if line.startswith("vllm:num_requests_running{")]
    return float(value.rpartition(" ")[2])


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_on_a_real_engine(make_rig: Make) -> None:
    """The same on a real vLLM: steps with tokens and times, and a place to settle."""
    kit: Kit = real_vllm()
    rig = make_rig(kit.section)
    rig.start()
    rig.wait_state("ready", kit.ready_within)
    done = rig.cli("advise", "--load", "--step-seconds", "4", "--max-concurrency", "4", "--json", timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(done.stdout)
    assert found["steps"]
    assert all(step["tokens_per_s"] > 0 and step["itl_p50_s"] > 0 and not step["failed"] for step in found["steps"])
    assert 1 <= found["target_concurrency"] <= 4
