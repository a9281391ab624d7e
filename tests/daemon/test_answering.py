"""The control socket answers in any state, and lets only those change the state who may."""

import contextlib
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from tests.daemon.conftest import SIMULATED
from tests.daemon.test_promises import streaming
from tests.rig import Rig

Make = Callable[..., Rig]

NOBODY = 65534
PROMISED = 0.1
"""Seconds for an answer, in any state."""


class Sampler:
    """Asks for the status again and again, from a thread, and remembers how long each answer took, by state."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._done = threading.Event()
        self.took: dict[str, list[float]] = {}
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(0.002):
            began = time.monotonic()
            try:
                status = self._rig.status()
            except (OSError, ValueError, IndexError, AssertionError) as error:
                self.failures.append(repr(error))
                continue
            name = status["phase"]["name"]
            self.took.setdefault(name, []).append(time.monotonic() - began)

    def judge(self, record: Callable[[str, object], None], *phases: str) -> None:
        """Hold every phase to the promise, with allowance for a machine on which others are busy too.

        `phases` have to be met; the rest last a few milliseconds.
        """
        assert self.failures == []
        assert set(phases) <= self.took.keys()
        for phase, times in self.took.items():
            record(f"max_{phase}_s", round(max(times), 4))
            assert statistics.median(times) < PROMISED, phase
            assert max(times) < 10 * PROMISED, phase


def test_the_socket_answers_throughout(
    pliable: Make, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Starting, ready, draining, ending a stubborn tree, waiting and failing: an answer comes within a moment."""
    rig = pliable({"stop": {"drain_timeout": 0.7, "grace": 0.7}, "restart": {"min_backoff": 0.3, "max_backoff": 0.3,
                                                                             "never_ready_limit": 1}})  # fmt: skip
    rig.simulate(ignore_sigterm=1, worker_setsid=1, tokens_per_second=5, import_seconds=1)
    rig.start()
    with Sampler(rig) as sampler:
        rig.wait_state("ready")
        rig.until(lambda: "ready" in sampler.took, what="an answer while ready")
        with streaming(rig, SIMULATED):
            rig.post("restart")
            rig.wait_state("ready", after=1)

        def killed() -> bool:
            # It lasts some ten milliseconds, which one sampler may sleep through.
            if "killing" not in sampler.took:
                before = rig.status()["generation"]
                rig.post("restart", drain=False)
                rig.wait_state("ready", after=before)
            return "killing" in sampler.took

        rig.until(killed, what="an answer while killing")
        rig.simulate(exit_code=1, log_flood=20)
        rig.post("restart", drain=False)
        rig.wait_state("failed")
        rig.until(lambda: "failed" in sampler.took, what="an answer while failed")
    sampler.judge(record_property, "launching", "ready", "draining", "stopping", "killing", "failed")
    with capsys.disabled():
        worst = {phase: round(1000 * max(times), 1) for phase, times in sampler.took.items()}
        print(f"\n  slowest status, ms: {worst}")
    verbs = {route: rig.request("GET", route)[0] for route in ("/v1/status", "/v1/models", "/v1/events", "/metrics")}
    assert set(verbs.values()) == {200}
    assert rig.metric('vllm_supervisor_control_requests_total{code="200",route="/v1/status"}') > 10


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Connect as another user, of no group of root's: the kernel notes the effective one."""
    group, groups = os.getegid(), os.getgroups()
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="to act as another user takes root")
def test_who_may_change_the_state(pliable: Make, open_folder: Path) -> None:
    """Anyone whom the socket's mode lets in may look; root, the daemon's user and control.admins may change."""
    rig = pliable(control={"socket": str(open_folder / "s"), "mode": "0666", "admins": [NOBODY - 1]})
    rig.socket = open_folder / "s"
    rig.start()
    before = rig.wait_state("ready")
    with as_user(NOBODY):
        assert rig.status()["state"] == "ready"
        for verb in ("start", "stop", "restart"):
            status, body = rig.request("POST", f"/v1/{verb}", {"reason": "for fun"})
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (403, "forbidden")
            assert str(NOBODY) in error["message"]
            assert "control.admins" in error["message"]
    assert rig.status()["generation"] == before["generation"]
    assert rig.events("control_request") == []
    with as_user(NOBODY - 1):
        rig.post("stop", reason="an admin's reason")
    rig.wait_state("stopped")
    (event,) = rig.events("control_request")
    assert (event["verb"], event["uid"], event["reason"]) == ("stop", NOBODY - 1, "an admin's reason")
    assert event["pid"] == os.getpid()
    assert rig.stop() == 0

    rig.config["control"] = {"socket": str(rig.socket)}
    rig.start()
    assert rig.socket.stat().st_mode & 0o777 == 0o660
    with as_user(NOBODY), pytest.raises(PermissionError):
        rig.request("GET", "/v1/status")


def test_what_is_not_understood_changes_nothing(pliable: Make) -> None:
    """Wrong methods, routes and bodies are answered in one shape, and the metrics address takes no orders."""
    rig = pliable()
    rig.start()
    before = rig.wait_state("ready")
    asked = [
        ("GET", "/v1/stop", None, 405),
        ("POST", "/v1/status", {}, 405),
        ("POST", "/v1/nothing", {}, 404),
        ("POST", "/v1/stop", ["drain"], 400),
        ("POST", "/v1/stop", {"drain": "no"}, 400),
        ("POST", "/v1/stop", {"grace": 1}, 400),
        ("GET", "/v1/logs?tail=-1", None, 400),
        ("GET", "/v1/logs?tail=10000000000", None, 400),
    ]
    for method, path, body, expected in asked:
        status, answer = rig.request(method, path, body)
        assert (path, status) == (path, expected)
        assert json.loads(answer)["error"].keys() == {"code", "message"}
    rig.port = rig.metrics_port
    for method, path, expected in [("GET", "/v1/status", 404), ("POST", "/v1/stop", 404), ("GET", "/readyz", 200)]:
        body = {} if method == "POST" else None
        assert (path, rig.ask_engine(path, body)[0]) == (path, expected)
    assert rig.status()["generation"] == before["generation"]
    assert rig.status()["state"] == "ready"


def test_followers_do_not_lock_anyone_out(pliable: Make) -> None:
    """As many followers as there are places: `status`, and a stop, are answered all the same."""
    rig = pliable()
    rig.start()
    rig.wait_state("ready")
    with contextlib.ExitStack() as stack:
        for _ in range(70):
            follower = stack.enter_context(socket.socket(socket.AF_UNIX))
            follower.connect(str(rig.socket))
            follower.sendall(b"GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert follower.recv(12) == b"HTTP/1.1 200"
            assert rig.status()["state"] == "ready"
        assert rig.cli("status").returncode == 0
        rig.post("stop")
        rig.wait_state("stopped")
