"""Our own figures, each with the target that it is held against."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench import observe
from tests.bench.figures import Row, Samples, percentile, samples
from tests.bench.observe import until
from tests.rig import COMMAND, Rig, running

OURS, TARGET = "measured", "target"


def row(name: str, unit: str, found: Samples, target: float) -> Row:
    verdict = "" if found.median() <= target else ", missed"
    return Row(name, unit, {OURS: found, TARGET: f"{target:g}{verdict}"})


@contextmanager
def daemon(engine: dict[str, object]) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, running(Path(folder), engine) as rig:
        yield rig


def simulator(**extra: str) -> dict[str, object]:
    return {"env": extra, "stop": {"drain_timeout": 0}}


def readiness(count: int) -> Row:
    """First moment a connection is accepted to `ready` seen on the socket."""
    taken = []
    with daemon(simulator(SIM_LOAD_SECONDS="0.3")) as rig:
        generation = rig.wait_state("ready")["generation"]
        for _ in range(count):
            rig.post("restart")
            until(lambda: _starting(rig, generation), 30, "a start", 0.002)  # noqa: B023 -- used at once
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", rig.port)) == 0:
                        break
                time.sleep(0.0005)
            begun = time.perf_counter()
            while not rig.status()["ready"]:
                time.sleep(0.001)
            taken.append((time.perf_counter() - begun) * 1000)
            generation = rig.status()["generation"]
    return row("first servable moment to ready on the socket", "ms", samples(taken), 300)


def _starting(rig: Rig, generation: int) -> bool:
    status = rig.status()
    return bool(status["pid"] and status["generation"] > generation)


def settled(count: int, seconds: float) -> list[Row]:
    """Everything that is measured on one daemon with a ready engine."""
    with daemon(simulator()) as rig:
        rig.wait_state("ready")
        fresh, kept = round_trips(rig, count * 500), kept_alive(rig, count * 500)
        command = [str(COMMAND), "status", "--socket", str(rig.socket)]
        commands = []
        for _ in range(count):
            begun = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            commands.append((time.perf_counter() - begun) * 1000)
        before, begun = observe.cpu_seconds(rig.pid), time.monotonic()
        time.sleep(seconds)
        used = (observe.cpu_seconds(rig.pid) - before) / (time.monotonic() - begun)
        rss = int(Path(f"/proc/{rig.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return [
        row("status round trip, connection kept alive", "ms", samples(kept), 0.3),
        row("status round trip, new connection each time", "ms", samples(fresh), 0.3),
        row("the same, 99th percentile", "ms", samples([percentile(fresh, 99)]), 2),
        row("`vllm-supervisor status` as a command", "ms", samples(commands), 40),
        row("RSS, an engine ready, metrics on", "MiB", samples([rss]), 45),
        row(f"idle CPU over {seconds:g} s", "%", samples([used * 100]), 0.1),
    ]


def flood(seconds: float) -> list[Row]:
    """While the engine logs 100 MB/s, which are rotated each second, and a client follows the log."""
    engine = {**simulator(SIM_LOG_FLOOD="100"), "log": {"max_bytes": "100 MB", "keep": 2}}
    with daemon(engine) as rig:
        rig.wait_state("ready")
        command = [str(COMMAND), "logs", "-f", "--socket", str(rig.socket)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as follower:
            before, begun = observe.cpu_seconds(rig.pid), time.monotonic()
            time.sleep(seconds)
            used = (observe.cpu_seconds(rig.pid) - before) / (time.monotonic() - begun)
            follower.kill()
        peak = observe.peak_mib([rig.pid])
    return [
        row("CPU while 100 MB/s are logged, rotated and followed", "%", samples([used * 100]), 20),
        row("  peak of memory", "MiB", samples([peak]), 64),
    ]


def round_trips(rig: Rig, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        with _connected(rig) as client:
            _ask(client)
            taken.append((time.perf_counter() - begun) * 1000)
    return taken


def kept_alive(rig: Rig, count: int) -> list[float]:
    taken = []
    with _connected(rig) as client:
        for _ in range(count):
            begun = time.perf_counter()
            _ask(client)
            taken.append((time.perf_counter() - begun) * 1000)
    return taken


def _connected(rig: Rig) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(rig.socket))
    return client


def _ask(client: socket.socket) -> None:
    """Ask for the status; return when the answer is complete, as clients that go by its length do."""
    client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
    data = b""
    while not data.endswith(b"}\n"):
        data += client.recv(65536)
