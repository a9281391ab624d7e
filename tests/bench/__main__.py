"""`make bench`: all figures, as tables and as JSON. Everything runs on this host alone, and ends by itself.

Run with the interpreter of the run-time environment: what is installed beside the daemon changes its memory.
"""

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import vllm_supervisor
from tests.bench import costs, growth, kernel, own, patience, restarts
from tests.bench.figures import Cell, Table
from tests.bench.growth import attempt
from tests.bench.peers.base import Peer
from tests.bench.peers.ours import Ours
from tests.bench.peers.pythonic import Circus, StandardSupervisor, Supervisor
from tests.bench.peers.scanned import S6, Runit
from tests.bench.peers.systemd import systemd
from tests.bench.relaunch import relaunch

KERNEL = "kernel alone"


@dataclass(frozen=True)
class Effort:
    """How long everything is looked at: counts of samples, and seconds."""

    count: int
    idle: float
    flood: float
    hopeless: float
    frozen: float
    liveness: dict[str, object]
    clients: list[int]
    load: float
    crowds: list[int]
    daemons: list[int]


PARTS = frozenset({"peers", "long", "trees", "own", "growth"})
FULL = Effort(20, 60, 5, 120, 200, {}, [1, 16, 256, 1000], 5, [8, 64, 512], [1, 8, 32])
QUICK = Effort(
    3, 3, 1, 12, 15, {"interval": 1, "timeout": 3}, [1, 64], 1, [8], [1, 2],
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few samples: shows that all works, proves no figure")
    parser.add_argument("--only", default="", help="parts, by commas: peers, long, trees, own, growth (all)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    effort = QUICK if args.quick else FULL
    parts = set(filter(None, args.only.split(","))) or PARTS
    if unknown := parts - PARTS:
        parser.error(f"--only {','.join(sorted(unknown))}: the parts are {', '.join(sorted(PARTS))}")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        parser.error(f"--json {args.json}: there is no such folder")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by SIGTERM"))  # so that nothing is left
    here = machine()
    print(here, flush=True)
    tables: list[Table] = []

    def done(table: Table) -> None:
        print(f"\n{table.show()}", flush=True)
        tables.append(table)

    environment = Path(os.environ.get("BENCH_VENV", ".venv-bench")).absolute()
    python: list[Peer] = [Supervisor(environment), Circus(environment), StandardSupervisor(environment)]
    with systemd() as unit:
        everybody: list[Peer] = [Ours(), *python, unit, S6(environment / "debian"), Runit(environment / "debian")]
        peers = [peer for peer in everybody if (why := peer.missing()) is None or told(peer, why)]
        versions = {peer.name: peer.version() for peer in peers}
        print("\n".join(f"{name} {version}" for name, version in versions.items()), flush=True)
        if "peers" in parts:
            done(side_by_side(peers, effort))
        if "long" in parts:
            done(in_minutes(peers, effort))
        if "trees" in parts:
            trees = Table("Growth with the tree", [*versions, KERNEL])
            trees.rows = growth.crowds(peers, effort.crowds, effort.count)
            done(trees)
    if "own" in parts:
        table = Table("vllm-supervisor against its targets", [own.OURS, own.TARGET])
        table.rows = [relaunch(effort.count), own.readiness(effort.count), *own.settled(effort.count, effort.idle)]
        table.rows += own.flood(effort.flood)
        done(table)
    if "growth" in parts:
        for table in grown(effort):
            done(table)
    if args.json:
        report = {"machine": here, "versions": versions, "tables": [table.as_json() for table in tables]}
        args.json.write_text(json.dumps(report, indent=1))


def machine() -> str:
    load = os.getloadavg()[0]
    return (
        f"vllm-supervisor {vllm_supervisor.__version__}, Python {platform.python_version()}, "
        f"Linux {platform.release()}, {os.cpu_count()} cores, load {load:.1f} before the first figure, "
        f"{time.strftime('%Y-%m-%d %H:%M')}"
    )


def told(peer: Peer, why: str) -> bool:
    """Say why a peer is left out."""
    print(f"{peer.name}: left out: {why}", file=sys.stderr)
    return False


def side_by_side(peers: list[Peer], effort: Effort) -> Table:
    table = Table("Side by side, each supervising the same program", [*(peer.name for peer in peers), KERNEL])

    def put(
        name: str, unit: str, measure: Callable[[Peer], Cell], limit: Cell | None = None, *, lanes: int = 1
    ) -> None:
        def lap(peer: Peer) -> tuple[Cell, float]:
            begun = time.monotonic()
            return attempt(lambda: measure(peer)), time.monotonic() - begun

        with ThreadPoolExecutor(lanes) as pool:
            found = dict(zip([peer.name for peer in peers], pool.map(lap, peers), strict=True))
        cells = {name: cell for name, (cell, _) in found.items()}
        table.put(name, unit, cells if limit is None else cells | {KERNEL: limit})
        spent = ", ".join(f"{name} {seconds:.0f}" for name, (_, seconds) in found.items())
        print(f"  {name} (seconds: {spent})", file=sys.stderr, flush=True)

    count = effort.count
    put("killed to relaunched", "ms", lambda p: restarts.killed(p, count), kernel.relaunched(count, kill=True))
    put("exit 0 to relaunched", "ms", lambda p: restarts.ended_well(p, count), kernel.relaunched(count, kill=False))
    # These wait most of the time: some at once, where tens of milliseconds do not count.
    put("orphans 2 s after the next engine began", "", lambda p: restarts.orphans(p, count), lanes=4)
    put("stop, nobody heeds SIGTERM: beyond the grace", "s", lambda p: restarts.stubborn(p, count, 1.0), lanes=2)
    put("says up so long before the port serves", "s", lambda p: costs.too_early(p, count, 3.0), lanes=2)
    put("launched to answering a client", "ms", lambda p: restarts.answering(p, count))
    put("status as a command", "ms", lambda p: restarts.command_status(p, count))
    floods = {peer.name: costs.flooded(peer, 100, effort.flood) for peer in peers}
    table.put("CPU while 100 MB/s are logged", "%", {name: found.cpu for name, found in floods.items()})
    table.put("  MB/s that it took", "", {name: found.taken for name, found in floods.items()})
    table.put("  peak of memory", "MiB", {name: found.peak for name, found in floods.items()})
    quiet = costs.idle(peers, effort.idle)
    table.put("idle: RSS", "MiB", {name: found.rss for name, found in quiet.items()})
    table.put("  PSS", "MiB", {name: found.pss for name, found in quiet.items()})
    table.put("  CPU", "%", {name: found.cpu for name, found in quiet.items()})
    table.put("  wake-ups", "1/s", {name: found.wakeups for name, found in quiet.items()})
    return table


def in_minutes(peers: list[Peer], effort: Effort) -> Table:
    seen = patience.watch(peers, effort.hopeless, effort.frozen, effort.liveness)
    table = Table("What takes minutes: one run, all at once", [peer.name for peer in peers])
    what = f"starts in {effort.hopeless:g} s of what fails after {patience.START:g} s"
    table.put(f"{what}, cause in the log", "", {name: watched.known for name, watched in seen.items()})
    table.put(f"{what}, cause unknown", "", {name: watched.unknown for name, watched in seen.items()})
    table.put("frozen, /health 200: replaced after", "s", {name: watched.frozen for name, watched in seen.items()})
    return table


def grown(effort: Effort) -> list[Table]:
    clients = Table("Growth with the clients, one in ten slow", [str(count) for count in effort.clients])
    clients.rows = growth.clients(effort.clients, effort.load)
    ranks = [1, 8]
    metrics = Table("Growth with the engine's ranks", [str(rank) for rank in ranks])
    metrics.rows = [growth.scrape(ranks, effort.count)]
    rates = [1.0, 10.0, 100.0]
    logs = Table("Growth with the log", [f"{rate:g}" for rate in rates])
    logs.rows = growth.log_reading(Ours(), rates, effort.flood)
    daemons = Table("Growth with the daemons", [str(count) for count in effort.daemons])
    daemons.rows = growth.daemons(effort.daemons, effort.idle / 2)
    return [clients, metrics, logs, daemons]


if __name__ == "__main__":
    main()
