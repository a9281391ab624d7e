"""Faults of clients of the control socket: slow, silent, many, senseless, contradictory."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from random import Random

from tests.chaos.fault import Faults, pause
from tests.chaos.world import World

FAULTS = Faults()
_PATIENCE = 5.0


def _connect(world: World, stack: ExitStack) -> socket.socket | None:
    client = stack.enter_context(socket.socket(socket.AF_UNIX))
    client.settimeout(0.2)
    try:
        client.connect(str(world.rig.socket))
    except OSError:
        return None
    return client


def _at_once(work: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@FAULTS("clients that are slow")
def _slow(world: World, random: Random) -> Iterator[None]:
    with ExitStack() as stack:
        clients = [client for _ in range(20) if (client := _connect(world, stack))]
        for byte in b"GET /v1/status HT":
            for client in clients:
                with suppress(OSError):
                    client.send(bytes([byte]))
            pause(0.03)
        yield


@FAULTS("clients that are half-open")
def _half_open(world: World, random: Random) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(random.choice([5, 63, 64, 65, 120])):
            client = _connect(world, stack)
            if client and random.random() < 0.5:
                with suppress(OSError):
                    client.send(b"POST /v1/restart HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        pause(random.uniform(0.1, 1.0))
        yield


@FAULTS("a thousand clients")
def _thousand(world: World, random: Random) -> Iterator[None]:
    def crowd() -> None:
        with ExitStack() as stack:
            for _ in range(250):
                client = _connect(world, stack)
                if client:
                    with suppress(OSError):
                        client.send(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")

    with world.judge.window("crowd"):
        _at_once([crowd] * 4)
        pause(0.5)
    yield


@FAULTS("followers that never read")
def _followers(world: World, random: Random) -> Iterator[None]:
    with ExitStack() as stack:
        for number in range(20):
            client = _connect(world, stack)
            if client:
                what = b"events?follow=1" if number % 2 else b"logs?tail=100000&follow=1"
                with suppress(OSError):
                    client.send(b"GET /v1/%s HTTP/1.1\r\nHost: x\r\n\r\n" % what)
        pause(random.uniform(0.1, 1.5))
        yield


@FAULTS("clients that speak nonsense")
def _nonsense(world: World, random: Random) -> Iterator[None]:
    words = [
        random.randbytes(random.randrange(1, 5000)),
        b"\r\n" * 2000,
        b"GET " + b"/a" * 20000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"POST /v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /v1/restart HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n[[[[[[[[[",
        b"POST /v1/start HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"DELETE /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/logs?tail=-1 HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
        b"GET /v1/%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    random.shuffle(words)
    with ExitStack() as stack:
        for word in words:
            client = _connect(world, stack)
            if client:
                with suppress(OSError):
                    client.sendall(word)
        yield


@FAULTS("a storm of questions")
def _storm(world: World, random: Random) -> Iterator[None]:
    paths = ["/v1/status", "/metrics", "/v1/events", "/v1/logs?tail=1000", "/v1/models", "/readyz"]

    def ask(path: str) -> None:
        for _ in range(25):
            with suppress(OSError, ValueError, IndexError):
                world.rig.request("GET", path, timeout=_PATIENCE)

    _at_once([lambda path=path: ask(path) for path in paths])  # type: ignore[misc]  # mypy cannot infer a default's type
    yield


@FAULTS("contradicting orders from several clients")
def _orders(world: World, random: Random) -> Iterator[None]:
    verbs = ["start", "stop", "restart", "reload"]
    plans = [[(random.choice(verbs), random.random() < 0.5) for _ in range(6)] for _ in range(4)]

    def order(plan: list[tuple[str, bool]]) -> None:
        for verb, drain in plan:
            with suppress(OSError, ValueError, IndexError):
                world.rig.request("POST", f"/v1/{verb}", {"drain": drain, "reason": "chaos"}, timeout=_PATIENCE)

    _at_once([lambda plan=plan: order(plan) for plan in plans])  # type: ignore[misc]  # as above
    pause(random.uniform(0, 0.5))
    yield


@FAULTS("a stop, and a start right after it")
def _stop_start(world: World, random: Random) -> Iterator[None]:
    for verb in ("stop", "start"):
        with suppress(OSError, ValueError, IndexError):
            world.rig.request("POST", f"/v1/{verb}", {"drain": random.random() < 0.5}, timeout=_PATIENCE)
        pause(random.uniform(0, 0.1))
    yield
