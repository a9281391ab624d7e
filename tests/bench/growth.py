"""How our figures grow with what there is to do."""

import asyncio
import contextlib
import http.client
import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.bench import costs, kernel, observe, programs, restarts
from tests.bench.figures import Cell, Row, percentile, samples
from tests.bench.own import daemon, simulator
from tests.bench.peers.base import Peer, host_place, supervised
from tests.bench.peers.ours import OurDaemon
from tests.ports import free_port
from tests.rig import Rig
from vllm_supervisor.adapters.engine_http.metrics import parse

SLOW_SHARE = 10
"""One client in so many asks for the half of a status, and waits."""


@dataclass
class _Tally:
    taken: list[float] = field(default_factory=list)
    busy: int = 0
    broken: int = 0


def clients(counts: list[int], seconds: float) -> list[Row]:
    """Status answers a second, and what one takes, with so many clients at once, each on a new connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    rate, middle, worst = (Row(name, unit) for name, unit in (
        ("status answers, by clients at once", "1/s"),
        ("  one answer, median", "ms"),
        ("  one answer, 99th percentile", "ms"),
    ))  # fmt: skip
    with daemon(simulator()) as rig:
        rig.wait_state("ready")
        for count in counts:
            tally = asyncio.run(_crowd(rig, count, seconds))
            refused = f"{tally.busy} told busy" if tally.busy else ""
            broken = f"{tally.broken} cut" if tally.broken else ""
            note = " ".join(filter(None, (refused, broken)))
            column = str(count)
            if len(tally.taken) < 2:
                rate.cells[column] = f"no answer {note}"
                continue
            rate.cells[column] = samples([len(tally.taken) / seconds], note)
            middle.cells[column] = samples([percentile(tally.taken, 50)])
            worst.cells[column] = samples([percentile(tally.taken, 99)])
    return [rate, middle, worst]


async def _crowd(rig: Rig, count: int, seconds: float) -> _Tally:
    tally, until = _Tally(), time.monotonic() + seconds
    async with asyncio.timeout(seconds + 30), asyncio.TaskGroup() as group:
        for number in range(count):
            slow = number % SLOW_SHARE == SLOW_SHARE - 1
            group.create_task((_dawdle if slow else _hurry)(str(rig.socket), tally, until))
    return tally


async def _hurry(path: str, tally: _Tally, until: float) -> None:
    while time.monotonic() < until:
        begun = time.perf_counter()
        try:
            reader, writer = await _connected(path)
            writer.write(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
        except OSError:
            tally.broken += 1
            await asyncio.sleep(0.01)
            continue
        if answer.startswith(b"HTTP/1.1 200"):
            tally.taken.append((time.perf_counter() - begun) * 1000)
        elif answer:
            tally.busy += 1
            await asyncio.sleep(0.05)
        else:
            tally.broken += 1


async def _connected(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as a blocking client does: where the queue is full it waits."""
    while True:
        try:
            return await asyncio.open_unix_connection(path)
        except BlockingIOError:
            await asyncio.sleep(0.02)


async def _dawdle(path: str, tally: _Tally, until: float) -> None:
    while time.monotonic() < until:
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await _connected(path)
            writer.write(b"GET /v1/status HTTP/1.1\r\nHo")
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await reader.read()
            writer.close()
        await asyncio.sleep(0.05)


def scrape(ranks: list[int], count: int) -> Row:
    """Reading the engine's own metrics, of so many ranks: what is parsed, without the exchange."""
    row = Row("parsing the engine's /metrics, by ranks", "ms")
    with daemon(simulator()) as rig:
        rig.wait_state("ready")
        connection = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=10)
        connection.request("GET", "/metrics")
        one = connection.getresponse().read().decode()
        connection.close()
    for size in ranks:
        text = _ranked(one, size)
        taken = []
        for _ in range(count):
            begun = time.perf_counter()
            parse(text)
            taken.append((time.perf_counter() - begun) * 1000)
        row.cells[str(size)] = samples(taken, f"{len(text) // 1024} KiB")
    return row


def _ranked(text: str, size: int) -> str:
    """Return the metrics of `size` engines: each series of one engine with a label of its own rank."""
    lines: list[str] = []
    for line in text.splitlines():
        if 'engine="0"' in line:
            lines.extend(line.replace('engine="0"', f'engine="{rank}"') for rank in range(size))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def crowds(peers: list[Peer], sizes: list[int], count: int) -> list[Row]:
    """A tree of so many processes: leader killed to the next tree complete."""
    rows = []
    for size in sizes:
        row = Row(f"tree of {size}, leader killed to the next tree complete", "ms")
        for peer in peers:
            row.cells[peer.name] = attempt(lambda: restarts.crowd_killed(peer, count, size))  # noqa: B023 -- used at once
        row.cells["kernel alone"] = attempt(lambda: kernel.crowd_killed(count, size))  # noqa: B023 -- used at once
        rows.append(row)
    return rows


def attempt(measure: Callable[[], Cell]) -> Cell:
    """Return what was measured, or in words why not."""
    try:
        return measure()
    except observe.UnmetError as why:
        return str(why)


def log_reading(peer: Peer, rates: list[float], seconds: float) -> list[Row]:
    """The daemon's processor time while it follows a start that prints so much."""
    cpu, peak = Row("CPU while the engine logs, by MB/s", "%"), Row("  peak of memory", "MiB")
    for rate in rates:
        found = costs.flooded(peer, rate, seconds)
        assert not isinstance(found.taken, str)
        taken = found.taken.median()
        assert not isinstance(found.cpu, str)
        cpu.cells[f"{rate:g}"] = samples(found.cpu.values, f"at {taken:.0f}" if taken < rate * 0.95 else "")
        peak.cells[f"{rate:g}"] = found.peak
    return [cpu, peak]


def daemons(counts: list[int], seconds: float) -> list[Row]:
    """What each of so many daemons on a host costs, its engine ready."""
    pss, rss, cpu = (
        Row("PSS of a daemon, by daemons on the host", "MiB"),
        Row("  its RSS", "MiB"),
        Row("  its CPU", "%"),
    )
    for count in counts:
        with ExitStack() as stack:
            started: list[OurDaemon] = []
            for _ in range(count):
                place = stack.enter_context(host_place())
                program = programs.engine(place, free_port())
                each = OurDaemon(place, program, metrics=False)
                stack.enter_context(supervised(each))
                started.append(each)
            for each in started:
                each.rig.wait_answer(120)
                each.rig.wait_state("ready", 120)
            time.sleep(min(10.0, seconds))
            pids = [each.rig.pid for each in started]
            before, begun = [observe.cpu_seconds(pid) for pid in pids], time.monotonic()
            time.sleep(seconds)
            span = time.monotonic() - begun
            used = [observe.cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True)]
            column = str(count)
            pss.cells[column] = samples([observe.pss_mib([pid]) for pid in pids])
            rss.cells[column] = samples([observe.rss_mib([pid]) for pid in pids])
            cpu.cells[column] = samples([seconds_used / span * 100 for seconds_used in used])
    return [pss, rss, cpu]
