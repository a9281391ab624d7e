"""Soak one daemon: many restarts and many questions, after which it holds no more memory, descriptors or threads.

Run with `make soak`, or `python -m tests.soak --help`. Exits 1 with a line for each figure that grew. What the loop
keeps as tasks cannot be seen from outside: tests/runtime/test_soak.py counts them.
"""

import argparse
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rig import Rig, Status, running

LIMIT = 2.0
"""MiB by which the resident memory may grow."""
SETTLED_WITHIN = 60.0
"""Seconds for descriptors and idle threads to go after the last thing asked; idle ones end by themselves."""
SHELL = "#!/bin/sh\nexec sleep 100000\n"


@dataclass(frozen=True)
class Footprint:
    """What the daemon's process holds."""

    rss: float
    """MiB"""
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        proc = Path(f"/proc/{pid}")
        pages = int((proc / "statm").read_text().split()[1])
        rss = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        return cls(rss, len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir())))


@dataclass(frozen=True)
class Row:
    """One soak: what was done how often, and the daemon before and after."""

    name: str
    count: int
    seconds: float
    before: Footprint
    after: Footprint

    def show(self) -> str:
        one, two = self.before, self.after
        return (
            f"{self.name:<34} {self.count:>7} in {self.seconds:>6.1f} s   "
            f"RSS {one.rss:6.2f} -> {two.rss:6.2f} MiB   "
            f"descriptors {one.descriptors} -> {two.descriptors}   threads {one.threads} -> {two.threads}"
        )

    def failures(self) -> Iterator[str]:
        """Yield a line for each figure that grew."""
        grown = self.after.rss - self.before.rss
        if grown >= LIMIT:
            yield f"soak: {self.name}: memory grew by {grown:.2f} MiB, {LIMIT:g} at most are allowed"
        if self.after.descriptors > self.before.descriptors:
            yield f"soak: {self.name}: descriptors grew from {self.before.descriptors} to {self.after.descriptors}"
        if self.after.threads > self.before.threads:
            yield f"soak: {self.name}: threads grew from {self.before.threads} to {self.after.threads}"


def soak(rig: Rig, name: str, act: Callable[[int], None], *, warm: int, count: int) -> Row:
    """Do `act` `warm` times, so that what is filled once is full, and `count` times more."""
    act(warm)
    before = settled(rig, None)
    began = time.monotonic()
    act(count)
    seconds = time.monotonic() - began
    return Row(name, count, seconds, before, settled(rig, before))


def settled(rig: Rig, like: Footprint | None) -> Footprint:
    """Return what the daemon holds once it holds no more descriptors and threads than `like`, or at the time limit.

    Without `like`, once two looks a second apart agree.
    """
    deadline = time.monotonic() + SETTLED_WITHIN
    last = Footprint.of(rig.pid)
    while time.monotonic() < deadline:
        time.sleep(1)
        now = Footprint.of(rig.pid)
        steady = (now.descriptors, now.threads) == (last.descriptors, last.threads)
        if steady if like is None else now.descriptors <= like.descriptors and now.threads <= like.threads:
            return now
        last = now
    return last


def crash_and_restart(rig: Rig, state: str) -> Callable[[int], None]:
    """Return what kills the engine's leader and waits for the next one in `state`, so many times."""

    def launched(after: int) -> Status | None:
        status = rig.status()
        there = status["state"] == state and status["generation"] > after and status["pid"]
        return status if there else None

    def act(times: int) -> None:
        status = rig.until(lambda: launched(0), 60, what="an engine")
        for _ in range(times):
            os.kill(status["pid"], signal.SIGKILL)
            last = status["generation"]
            status = rig.until(lambda: launched(last), 60, every=0.005, what="the next engine")  # noqa: B023 - used at once

    return act


def ask(rig: Rig) -> Callable[[int], None]:
    """Return what asks for the status so many times: half on one connection, half on a new one each."""

    def act(times: int) -> None:
        with connection(rig) as client:
            for _ in range(times - times // 2):
                question(client)
        for _ in range(times // 2):
            with connection(rig) as client:
                question(client)

    return act


@contextmanager
def connection(rig: Rig) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(rig.socket))
        yield client


def question(client: socket.socket) -> None:
    client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
    data = b""
    while not data.endswith(b"}\n"):
        part = client.recv(65536)
        if not part:
            sys.exit("soak: the daemon closed a connection before it had answered")
        data += part
    if not data.startswith(b"HTTP/1.1 200 "):
        sys.exit(f"soak: the daemon answered {data[:80]!r}")


def engine_of(kind: str, folder: Path) -> dict[str, object]:
    """Return the `engine.vllm` section: the simulator, or a shell that only sleeps and is never ready."""
    restart = {"min_backoff": 0.01, "max_backoff": 0.01, "never_ready_limit": 1_000_000}
    section: dict[str, object] = {"restart": restart, "stop": {"drain_timeout": 0}}
    if kind == "shell":
        script = folder / "engine.sh"
        script.write_text(SHELL)
        script.chmod(0o755)
        section["launcher"] = [str(script)]
    return section


def run(args: argparse.Namespace) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        with running(folder, engine_of(args.engine, folder)) as rig:
            act = crash_and_restart(rig, "ready" if args.engine == "simulator" else "starting")
            warm = max(5, args.restarts // 10)
            rows.append(soak(rig, f"crashes and restarts ({args.engine})", act, warm=warm, count=args.restarts))
            print(rows[-1].show(), flush=True)
            rows.append(soak(rig, "status queries", ask(rig), warm=max(500, args.queries // 50), count=args.queries))
            print(rows[-1].show(), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--restarts", type=int, default=1000, help="how often the engine is killed (1000)")
    parser.add_argument("--queries", type=int, default=100_000, help="how often the status is asked for (100000)")
    engines = "shell: one that only sleeps, some twenty times as fast to restart (simulator)"
    parser.add_argument("--engine", choices=["simulator", "shell"], default="simulator", help=engines)
    rows = run(parser.parse_args())
    failures = [line for row in rows for line in row.failures()]
    for line in failures:
        print(line, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
