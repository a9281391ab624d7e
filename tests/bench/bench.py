"""Figures of the daemon on this machine: `make bench` prints them as a table, `--json FILE` writes them.

Everything runs on 127.0.0.1 with the built-in simulator or a shell that sleeps, and ends by itself. Run it with the
interpreter of the run-time environment, since what is installed beside the daemon changes its memory.
"""

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import vllm_supervisor
from tests.rig import COMMAND, Rig, running


@dataclass(frozen=True)
class Row:
    """One figure: samples in `unit`, and the target that it is held against."""

    name: str
    unit: str
    samples: list[float]
    target: float

    def median(self) -> float:
        return statistics.median(self.samples)

    def show(self) -> str:
        low, high = min(self.samples), max(self.samples)
        verdict = "ok" if self.median() <= self.target else "MISSED"
        return (
            f"{self.name:<52} {self.median():>9.3f} {self.unit:<4} [{low:.3f} .. {high:.3f}] n={len(self.samples):<5}"
            f" target {self.target:g} {self.unit}: {verdict}"
        )


def until(check: Callable[[], bool], within: float, every: float = 0.01) -> None:
    deadline = time.monotonic() + within
    while not check():
        if time.monotonic() > deadline:
            sys.exit(f"bench: not within {within} s")
        time.sleep(every)


@contextmanager
def daemon(engine: dict[str, object]) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, running(Path(folder), engine) as rig:
        yield rig


def simulator(**extra: str) -> dict[str, object]:
    return {"env": extra, "stop": {"drain_timeout": 0}}


def leader_of(pid: int) -> int | None:
    """Return the daemon's child. The kernel lists children by the thread that made them."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                return int(child)
    return None


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return "engine.sh"


def relaunch(count: int) -> Row:
    """Leader killed to the next leader there, less the configured delay."""
    delay = 0.05
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "engine.sh")
        script.write_text("#!/bin/sh\nexec sleep 1000\n")
        script.chmod(0o755)
        restart = {"min_backoff": delay, "max_backoff": delay, "never_ready_limit": 100_000}
        with daemon({"launcher": [str(script)], "restart": restart}) as rig:
            samples = [(relaunched_after(rig.pid) - delay) * 1000 for _ in range(count)]
    return Row("leader killed to relaunched, beyond the delay", "ms", samples, 10)


def relaunched_after(pid: int) -> float:
    def leader_sleeps() -> bool:
        leader = leader_of(pid)
        return leader is not None and "engine.sh" not in command_of(leader)

    until(leader_sleeps, 10, 0.001)
    leader = leader_of(pid)
    assert leader is not None
    begun = time.perf_counter()
    os.kill(leader, signal.SIGKILL)
    while leader_of(pid) in (None, leader):
        time.sleep(0.0002)  # looking all the time would take from the kernel what the daemon needs
    return time.perf_counter() - begun


def readiness(count: int) -> Row:
    """First moment a connection is accepted to `ready` seen on the socket."""
    samples = []
    with daemon(simulator(SIM_LOAD_SECONDS="0.3")) as rig:
        generation = rig.wait_state("ready")["generation"]
        for _ in range(count):
            rig.post("restart")
            until(lambda: starting(rig, generation), 30, 0.002)  # noqa: B023 -- used at once
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", rig.port)) == 0:
                        break
                time.sleep(0.0005)
            begun = time.perf_counter()
            while not rig.status()["ready"]:
                time.sleep(0.001)
            samples.append((time.perf_counter() - begun) * 1000)
            generation = rig.status()["generation"]
    return Row("first servable moment to ready on the socket", "ms", samples, 300)


def starting(rig: Rig, generation: int) -> bool:
    status = rig.status()
    return bool(status["pid"] and status["generation"] > generation)


def settled(rig: Rig, count: int, seconds: float) -> list[Row]:
    """Everything that is measured on one daemon with a ready engine."""
    rig.wait_state("ready")
    rows = [round_trip(rig, count * 500)]
    rows.insert(1, Row("status round trip on the socket, p99", "ms", [percentile(rows[0].samples, 99)], 2))
    rows.append(keep_alive(rig, count * 500))
    command = [str(COMMAND), "status", "--socket", str(rig.socket)]
    samples = []
    for _ in range(count):
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        samples.append((time.perf_counter() - begun) * 1000)
    rows.append(Row("`vllm-supervisor status` as a command", "ms", samples, 40))
    before = cpu_seconds(rig.pid)
    begun = time.monotonic()
    time.sleep(seconds)
    used = (cpu_seconds(rig.pid) - before) / (time.monotonic() - begun)
    rss = int(Path(f"/proc/{rig.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    rows.append(Row("RSS, an engine ready, metrics on", "MiB", [rss], 45))
    rows.append(Row(f"idle CPU over {seconds:g} s", "%", [used * 100], 0.1))
    return rows


def round_trip(rig: Rig, count: int) -> Row:
    samples = []
    for _ in range(count):
        begun = time.perf_counter()
        with connected(rig) as client:
            ask(client)
            samples.append((time.perf_counter() - begun) * 1000)
    return Row("status round trip on the socket, new connection, p50", "ms", samples, 0.3)


def keep_alive(rig: Rig, count: int) -> Row:
    samples = []
    with connected(rig) as client:
        for _ in range(count):
            begun = time.perf_counter()
            ask(client)
            samples.append((time.perf_counter() - begun) * 1000)
    return Row("status round trip on the socket, kept alive, p50", "ms", samples, 0.3)


def connected(rig: Rig) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(rig.socket))
    return client


def ask(client: socket.socket) -> None:
    """Ask for the status; return when the answer is complete, as clients that go by its length do."""
    client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
    data = b""
    while not data.endswith(b"}\n"):
        data += client.recv(65536)


def percentile(samples: list[float], percent: int) -> float:
    return statistics.quantiles(samples, n=100)[percent - 1]


def cpu_seconds(pid: int) -> float:
    """Return what all threads of a process have used, ended ones too: by its clock, as /proc counts in 10 ms."""
    return time.clock_gettime(~pid << 3 | 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="samples a figure (20)")
    parser.add_argument("--idle", type=float, default=60, help="seconds over which idle CPU is taken (60)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    print(f"vllm-supervisor {vllm_supervisor.__version__}, Python {platform.python_version()}, "
          f"Linux {platform.release()}, {os.cpu_count()} cores")  # fmt: skip
    rows = [relaunch(args.count), readiness(args.count)]
    with daemon(simulator()) as rig:
        rows += settled(rig, args.count, args.idle)
    for row in rows:
        print(row.show())
    if args.json:
        args.json.write_text(json.dumps({row.name: {"unit": row.unit, "samples": row.samples} for row in rows}))


if __name__ == "__main__":
    main()
