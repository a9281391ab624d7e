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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import vllm_supervisor

TICKS = os.sysconf("SC_CLK_TCK")
COMMAND = Path(sys.executable).with_name("vllm-supervisor")


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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class Daemon:
    """A daemon on a configuration of its own, and a raw client of its socket."""

    def __init__(self, folder: Path, engine: dict[str, object]) -> None:
        self.port = free_port()
        self.socket = folder / "control.sock"
        config = {
            "engine": {"vllm": {"model": "demo", "port": self.port, "log_file": str(folder / "vllm.log")} | engine},
            "control": {"socket": str(self.socket)},
            "metrics": {"port": free_port()},
            "state_dir": str(folder / "state"),
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        self.process = subprocess.Popen(
            [str(COMMAND), "run", "-c", str(folder / "config.yaml")],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "daemon.log").open("wb"),
        )
        until(lambda: self.try_status() is not None, 20)

    def request(self, path: str) -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.socket))
            client.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
            parts = []
            while part := client.recv(65536):
                parts.append(part)
        return b"".join(parts).partition(b"\r\n\r\n")[2]

    def status(self) -> dict[str, object]:
        answer: dict[str, object] = json.loads(self.request("/v1/status"))
        return answer

    def try_status(self) -> dict[str, object] | None:
        try:
            return self.status()
        except (OSError, ValueError):
            return None

    def wait_state(self, state: str, within: float = 30) -> None:
        until(lambda: (self.try_status() or {}).get("state") == state, within, 0.002)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def until(check: Callable[[], bool], within: float, every: float = 0.01) -> None:
    deadline = time.monotonic() + within
    while not check():
        if time.monotonic() > deadline:
            sys.exit(f"bench: not within {within} s")
        time.sleep(every)


@contextmanager
def daemon(engine: dict[str, object]) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        running = Daemon(Path(folder), engine)
        try:
            yield running
        finally:
            running.stop()


def simulator(**extra: str) -> dict[str, object]:
    return {
        "launcher": [sys.executable, "-m", "vllm_supervisor.simulator", "serve"],
        "env": extra,
        "stop": {"drain_timeout": 0},
    }


def leader_of(pid: int) -> int | None:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(text[0]) if text else None


def relaunch(count: int) -> Row:
    """Leader killed to the next leader there, less the configured delay."""
    delay = 0.05
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "engine.sh")
        script.write_text("#!/bin/sh\nexec sleep 1000\n")
        script.chmod(0o755)
        restart = {"min_backoff": delay, "max_backoff": delay, "never_ready_limit": 100_000}
        samples = []
        with daemon({"launcher": [str(script)], "restart": restart}) as running:
            pid = running.process.pid
            for _ in range(count):
                until(lambda: leader_of(pid) is not None, 10, 0.001)
                leader = leader_of(pid) or 0
                until(lambda: "engine.sh" not in Path(f"/proc/{leader}/cmdline").read_text(), 10, 0.001)  # noqa: B023 -- used at once
                begun = time.perf_counter()
                os.kill(leader, signal.SIGKILL)
                while leader_of(pid) in (None, leader):
                    pass
                samples.append((time.perf_counter() - begun - delay) * 1000)
    return Row("leader killed to relaunched, beyond the delay", "ms", samples, 10)


def readiness(count: int) -> Row:
    """First moment a connection is accepted to `ready` seen on the socket."""
    samples = []
    with daemon(simulator(SIM_LOAD_SECONDS="0.3")) as running:
        for _ in range(count):
            running.wait_state("ready")
            leader = running.status()["pid"]
            assert isinstance(leader, int)
            post(running, "/v1/restart")
            until(lambda: running.status()["pid"] not in (None, leader), 30, 0.002)  # noqa: B023 -- used at once
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", running.port)) == 0:
                        break
                time.sleep(0.0005)
            begun = time.perf_counter()
            running.wait_state("ready")
            samples.append((time.perf_counter() - begun) * 1000)
    return Row("first servable moment to ready on the socket", "ms", samples, 300)


def post(running: Daemon, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(running.socket))
        client.sendall(f"POST {path} HTTP/1.0\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        while client.recv(65536):
            pass


def settled(running: Daemon, count: int, seconds: float) -> list[Row]:
    """Everything that is measured on one daemon with a ready engine."""
    running.wait_state("ready")
    rows = [round_trip(running, count * 500)]
    rows.insert(1, Row("status round trip on the socket, p99", "ms", [percentile(rows[0].samples, 99)], 2))
    rows.append(keep_alive(running, count * 500))
    command = [str(COMMAND), "status", "--socket", str(running.socket)]
    samples = []
    for _ in range(count):
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        samples.append((time.perf_counter() - begun) * 1000)
    rows.append(Row("`vllm-supervisor status` as a command", "ms", samples, 40))
    before = cpu_seconds(running.process.pid)
    begun = time.monotonic()
    time.sleep(seconds)
    used = (cpu_seconds(running.process.pid) - before) / (time.monotonic() - begun)
    rss = int(Path(f"/proc/{running.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    rows.append(Row("RSS, an engine ready, metrics on", "MiB", [rss], 45))
    rows.append(Row(f"idle CPU over {seconds:g} s", "%", [used * 100], 0.1))
    return rows


def round_trip(running: Daemon, count: int) -> Row:
    samples = []
    for _ in range(count):
        begun = time.perf_counter()
        running.request("/v1/status")
        samples.append((time.perf_counter() - begun) * 1000)
    return Row("status round trip on the socket, new connection, p50", "ms", samples, 0.3)


def keep_alive(running: Daemon, count: int) -> Row:
    samples = []
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(running.socket))
        for _ in range(count):
            begun = time.perf_counter()
            client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
            data = b""
            while not data.endswith(b"}\n"):
                data += client.recv(65536)
            samples.append((time.perf_counter() - begun) * 1000)
    return Row("status round trip on the socket, kept alive, p50", "ms", samples, 0.3)


def percentile(samples: list[float], percent: int) -> float:
    return statistics.quantiles(samples, n=100)[percent - 1]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="samples a figure (20)")
    parser.add_argument("--idle", type=float, default=60, help="seconds over which idle CPU is taken (60)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    print(f"vllm-supervisor {vllm_supervisor.__version__}, Python {platform.python_version()}, "
          f"Linux {platform.release()}, {os.cpu_count()} cores")  # fmt: skip
    rows = [relaunch(args.count), readiness(args.count)]
    with daemon(simulator()) as running:
        rows += settled(running, args.count, args.idle)
    for row in rows:
        print(row.show())
    if args.json:
        args.json.write_text(json.dumps({row.name: {"unit": row.unit, "samples": row.samples} for row in rows}))


if __name__ == "__main__":
    main()
