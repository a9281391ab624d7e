"""Rows about what a supervisor uses, side by side."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.bench import observe, programs
from tests.bench.figures import Cell, samples
from tests.bench.observe import UnmetError, until
from tests.bench.peers.base import Peer, Running, supervised
from tests.ports import free_port

WITHIN = 60.0


@dataclass(frozen=True)
class Idle:
    """What the supervisor's own processes used over a while in which nothing happened."""

    rss: Cell
    pss: Cell
    cpu: Cell
    wakeups: Cell


def idle(peers: Sequence[Peer], seconds: float) -> dict[str, Idle]:
    """All at the same time, each with a ready engine: a process's own clock counts, not the machine's."""
    with ExitStack() as stack:
        running: dict[str, Running] = {}
        for peer in peers:
            place = stack.enter_context(peer.place())
            program = programs.engine(place, free_port())
            running[peer.name] = stack.enter_context(supervised(peer.launch(place, program)))
        for each in running.values():
            until(lambda: len(observe.bearing(each.place.token)) >= 4, WITHIN, "the engine")  # noqa: B023 -- used at once
        time.sleep(min(10.0, seconds))
        pids = {name: each.pids() for name, each in running.items()}
        before = {name: (observe.cpu_of(p), observe.wakeups(p)) for name, p in pids.items()}
        begun = time.monotonic()
        time.sleep(seconds)
        span = time.monotonic() - begun
        found = {}
        for name, p in pids.items():
            cpu, wakeups = before[name]
            found[name] = Idle(
                samples([observe.rss_mib(p)]),
                samples([observe.pss_mib(p)]),
                samples([(observe.cpu_of(p) - cpu) / span * 100]),
                samples([(observe.wakeups(p) - wakeups) / span]),
            )
        return found


@dataclass(frozen=True)
class Flooded:
    """What a flood of log cost."""

    cpu: Cell
    peak: Cell
    taken: Cell


def flooded(peer: Peer, rate: float, seconds: float) -> Flooded:
    """The supervisor's processor time while the program prints `rate` MB/s, %; its peak of memory, MiB; MB/s taken."""
    with peer.place() as place:
        program = programs.flood(place, rate, seconds)
        with supervised(peer.launch(place, program)) as running:
            until(lambda: bool(observe.bearing(place.token)), WITHIN, "the program")
            pids = running.pids()
            before, begun = observe.cpu_of(pids), time.monotonic()
            until(lambda: bool(place.read("flooded")), seconds * 4 + WITHIN, "the end of the flood", 0.05)
            span = time.monotonic() - begun
            used = observe.cpu_of(pids) - before
            peak = observe.peak_mib(pids)
            megabytes, taken = map(float, place.read("flooded").split())
    return Flooded(samples([used / span * 100]), samples([peak]), samples([megabytes / taken]))


def too_early(peer: Peer, count: int, loading: float) -> Cell:
    """How long before the engine serves its port the supervisor says that all is well, s: below 0 is after."""
    return samples([_too_early(peer, loading) for _ in range(count)])


def _too_early(peer: Peer, loading: float) -> float:
    with peer.place() as place:
        program = programs.engine(place, free_port(), load_seconds=str(loading))
        with supervised(peer.launch(place, program)) as running:
            until(lambda: bool(observe.bearing(place.token)), WITHIN, "the program")
            said, serves = None, None
            deadline = time.monotonic() + loading + WITHIN
            while said is None or serves is None:
                now = time.monotonic()
                if now > deadline:
                    raise UnmetError("never said, or never served")
                if serves is None and _listens(place, program.port):
                    serves = now
                if said is None and _says_up(running):
                    said = time.monotonic()
                time.sleep(0.01)
    return serves - said


def _says_up(running: Running) -> bool:
    try:
        return running.says_up()
    except OSError:
        return False


def _listens(place: programs.Place, port: int) -> bool:
    """Tell from the kernel's table of sockets, in the program's own network, whether the port is listened on."""
    wanted = f":{port:04X} 00000000:0000 0A"
    for pid in observe.bearing(place.token)[:1]:
        try:
            return wanted in (observe.PROC / str(pid) / "net/tcp").read_text()
        except OSError:
            return False
    return False
