"""The same on a real vLLM: each kind of hang found in time, and nothing restarted that works.

Each engine's start takes up to a minute, so that one daemon serves several checks in sequence. The times to find each
hang are printed (`-s`). SATURATION is the seconds of load, 60 unless set.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.daemon.conftest import Kit, real_vllm
from tests.daemon.test_liveness import frozen, restarted, still_there, verdicts
from tests.daemon.test_promises import streaming
from tests.rig import Rig

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

Make = Callable[..., Rig]

INTERVAL, TIMEOUT = 3.0, 8.0
EVIDENCE = 10.0
"""For what is collected before the end, which py-spy may make long on two busy cores."""
SATURATION = float(os.environ.get("SATURATION", "60"))
CLIENTS = 64


@pytest.fixture
def rig(make_rig: Make) -> tuple[Rig, Kit]:
    kit = real_vllm()
    section = kit.section | {
        "extra_args": [*kit.section["extra_args"], "--max-num-seqs", "32"],
        "liveness": {"interval": INTERVAL, "timeout": TIMEOUT},
        "stop": {"drain_timeout": 60, "grace": 2},
    }
    rig = make_rig(section)
    rig.start()
    rig.wait_state("ready", kit.ready_within)
    return rig, kit


def test_every_hang_is_found_and_no_short_one(rig: tuple[Rig, Kit]) -> None:
    """SIGSTOP of the core and of the worker, idle and under load: within timeout plus one interval, not before."""
    daemon, kit = rig
    found: dict[tuple[str, str], float] = {}
    for title in ("VLLM::EngineCor", "VLLM::Worker"):
        for loaded in (False, True):
            before = daemon.status()
            with ExitStack() as load:
                if loaded:
                    load.enter_context(streaming_on(daemon, kit))
                with frozen(daemon.member(title)):
                    still_there(daemon, before, TIMEOUT * 0.6)
                stepped_since(daemon, time.time())
                assert verdicts(daemon).count("stuck") == len(found)
                daemon.member(title).suspend()
                began = time.monotonic()
                daemon.until(lambda: verdicts(daemon).count("stuck") > len(found), 60, what="found")
                found[title, "loaded" if loaded else "idle"] = time.monotonic() - began
                daemon.until(lambda: daemon.status()["state"] != "ready", EVIDENCE, what="ended")
            daemon.wait_state("ready", kit.ready_within, after=before["generation"])
            restarted(daemon, before)
    for (title, when), seconds in found.items():
        print(f"{title} stopped {when}: found after {seconds:.1f} s")
    assert max(found.values()) <= TIMEOUT + INTERVAL + 0.5, found
    assert min(found.values()) >= TIMEOUT - 0.5, found


def stepped_since(daemon: Rig, resumed: float) -> None:
    """Wait until the engine was seen to step after it went on."""
    name = "vllm_supervisor_last_progress_timestamp_seconds"
    daemon.until(lambda: daemon.metric(name) > resumed + 0.01, what="a step after the freeze")


def test_saturation_is_not_a_hang(rig: tuple[Rig, Kit]) -> None:
    """64 long requests at once, on as many cores as there are, the short timeouts above: no restart, no unhealthy."""
    daemon, kit = rig
    first = daemon.status()
    done = threading.Event()
    served = [0] * CLIENTS
    clients = [
        threading.Thread(target=request_after_request, args=(daemon, kit, done, served, i)) for i in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    try:
        deadline = time.monotonic() + SATURATION
        while time.monotonic() < deadline:
            status = daemon.status()
            assert (status["state"], status["generation"]) == ("ready", first["generation"]), daemon.daemon_log()[
                -4000:
            ]
            time.sleep(0.2)
    finally:
        done.set()
        for client in clients:
            client.join()
    assert sum(served) > 0
    assert daemon.status()["restarts"]["total"] == 0
    assert "unhealthy" not in [event["after"] for event in daemon.events("phase_changed")]
    busy = daemon.metric('vllm_supervisor_probe_results_total{probe="health",result="busy"}')
    print(
        f"{sum(served)} requests served in {SATURATION:.0f} s; verdicts told: {verdicts(daemon)}; busy probes: {busy}"
    )


def request_after_request(daemon: Rig, kit: Kit, done: threading.Event, served: list[int], index: int) -> None:
    """Be a client that always has a long request in flight."""
    body = {"model": kit.model, "prompt": f"{index} " * 100, "max_tokens": 700, "ignore_eos": True}
    while not done.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", daemon.port), 5) as client:
            data = json.dumps(body).encode()
            head = "POST /v1/completions HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            client.settimeout(0.5)
            while not done.is_set():
                with suppress(TimeoutError):
                    if not client.recv(65536):
                        served[index] += 1
                        break


@contextmanager
def streaming_on(daemon: Rig, kit: Kit) -> Iterator[None]:
    """Keep a stream open, a new one whenever it ends: a tiny model finishes one within a second or two."""
    done = threading.Event()

    def stream() -> None:
        while not done.is_set():
            with suppress(OSError, AssertionError), streaming(daemon, kit) as client:
                client.settimeout(0.2)
                while not done.is_set():
                    with suppress(TimeoutError):
                        if not client.recv(65536):
                            break

    streams = [threading.Thread(target=stream) for _ in range(4)]
    for each in streams:
        each.start()
    try:
        daemon.until(lambda: daemon.status()["load"]["running"], what="requests that run")
        yield
    finally:
        done.set()
        for each in streams:
            each.join(70)
