"""Advice by a whole daemon: the command, the status and the metric say the same of the load there is."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.rig import Rig

Make = Callable[..., Rig]


@contextmanager
def streams(rig: Rig, count: int, key: str = "") -> Iterator[None]:
    """Keep so many requests in flight for as long as the block lasts."""
    body = json.dumps({"model": "demo/model", "prompt": "x" * 1200, "max_tokens": 1500, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with ExitStack() as clients:
        for _ in range(count):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", rig.port), 30))
            client.sendall(head.encode() + body)
        rig.until(lambda: rig.status()["load"]["running"] == count, 60, what=f"{count} requests that run")
        yield


@pytest.fixture
def rig(make_rig: Make) -> Rig:
    rig = make_rig(
        {
            "concurrency": 4,
            "liveness": {"interval": 1, "timeout": 30},
            "env": {"SIM_KV_TOKENS": "8000", "SIM_TOKENS_PER_SECOND": "20"},
        }
    )
    rig.start()
    rig.wait_state("ready")
    return rig


def test_the_command_the_status_and_the_metric_agree(rig: Rig) -> None:
    """Four of about 1000 tokens on a cache of 8000: bound by the client, and more would fit. Idle: no load."""
    idle = rig.cli("advise", "--window", "1", "--json")
    assert idle.returncode == 0, idle.stderr
    assert json.loads(idle.stdout)["verdict"] == "no_load"
    assert rig.metric("vllm_supervisor_recommended_concurrency") == 4
    with streams(rig, 4):
        done = rig.cli("advise", "--window", "2", "--concurrency", "4", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["verdict"] == "client_bound", found
        assert found["current_concurrency"] == 4
        assert 4 < found["target_concurrency"] <= 16, found
        assert "engine.vllm.concurrency is 4" in " ".join(found["clamps"])
        advice = rig.until(lambda: rig.status()["advice"], what="advice in the status")
        assert "headline" in advice
        rig.until(lambda: rig.metric("vllm_supervisor_recommended_concurrency") > 4, what="the metric follows")
        assert "\nadvice     client_bound: " in rig.cli("status").stdout


def test_after_a_restart_the_engine_before_is_not_judged(rig: Rig) -> None:
    """Four ran; killed under them, the new engine has no load, whatever the last minute showed."""
    with streams(rig, 4):
        rig.until(lambda: rig.metric("vllm_supervisor_recommended_concurrency") > 4, what="advice on the first engine")
        os.kill(rig.leader(), signal.SIGKILL)
        rig.until(lambda: rig.status()["generation"] == 2 and rig.status()["ready"], 60, what="the next engine")
    assert rig.metric("vllm_supervisor_recommended_concurrency") == 4
    done = rig.cli("advise", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["verdict"], found["target_concurrency"]) == ("no_load", None)
    advice = rig.until(lambda: rig.status()["advice"], what="advice in the status")
    assert advice["verdict"] == "no_load"
    assert rig.metric("vllm_supervisor_recommended_concurrency") == 4


def test_nothing_is_advised_of_an_engine_that_does_not_serve(rig: Rig) -> None:
    """Status 1 and one line; without a daemon 3."""
    rig.post("stop", drain=False)
    rig.wait_state("stopped")
    done = rig.cli("advise")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert rig.status()["advice"] is None
    rig.stop()
    assert rig.cli("advise").returncode == 3
