"""Rows about what follows a death, side by side."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence

from tests.bench import observe, programs
from tests.bench.figures import Cell, samples
from tests.bench.observe import UnmetError, until
from tests.bench.peers.base import Peer, supervised
from tests.ports import free_port

WITHIN = 30.0


def killed(peer: Peer, count: int) -> Cell:
    """SIGKILL of the only process to the next one's first act, ms."""
    return _relaunched(peer, count, kill=True)


def ended_well(peer: Peer, count: int) -> Cell:
    """Exit with status 0 to the next one's first act, ms."""
    return _relaunched(peer, count, kill=False)


def _relaunched(peer: Peer, count: int, *, kill: bool) -> Cell:
    taken = []
    with peer.place() as place:
        beacon = programs.Beacon(place)
        try:
            with supervised(peer.launch(place, programs.waiter(place))):
                beacon.wait(WITHIN)
                for _ in range(count):
                    time.sleep(peer.settle)
                    if kill:
                        (pid,) = observe.bearing(place.token)
                        begun = time.perf_counter()
                        os.kill(pid, signal.SIGKILL)
                    else:
                        begun = beacon.let_exit()
                    taken.append((beacon.wait(WITHIN) - begun) * 1000)
        finally:
            beacon.close()
    return samples(taken)


def crowd_killed(peer: Peer, count: int, size: int) -> Cell:
    """SIGKILL of the leader of `size` processes to the next crowd complete, ms; and what is left of the one before."""
    taken, left = [], 0
    with peer.place() as place:
        beacon = programs.Beacon(place)
        try:
            with supervised(peer.launch(place, programs.crowd(place, size))):
                beacon.wait(WITHIN)
                for _ in range(count):
                    time.sleep(peer.settle)
                    members = set(observe.bearing(place.token))
                    leader = _leader(members)
                    begun = time.perf_counter()
                    os.kill(leader, signal.SIGKILL)
                    taken.append((beacon.wait(WITHIN) - begun) * 1000)
                    strays = members & set(observe.bearing(place.token))
                    left += len(strays)
                    for pid in strays:
                        os.kill(pid, signal.SIGKILL)
        finally:
            beacon.close()
    return samples(taken, f"{left // count} left" if left else "")


def orphans(peer: Peer, count: int) -> Cell:
    """Processes of the old engine that are alive when the new one has begun, and 2 s later: the latter is shown."""
    left = []
    for _ in range(count):
        with peer.place() as place:
            port = free_port()
            with supervised(peer.launch(place, programs.engine(place, port, worker_setsid="1"))):
                old = _tree(place, 4)
                leader = _leader(old)
                time.sleep(peer.settle)
                os.kill(leader, signal.SIGKILL)
                until(lambda: bool(set(observe.bearing(place.token)) - old), WITHIN, "a new engine")  # noqa: B023 -- used at once
                time.sleep(2)
                left.append(float(len(old & set(observe.bearing(place.token)))))
    return samples(left)


def _tree(place: programs.Place, least: int) -> set[int]:
    until(lambda: len(observe.bearing(place.token)) >= least, WITHIN, "the engine's tree")
    time.sleep(1)  # its last members are forked after the first ones are seen
    return set(observe.bearing(place.token))


def _leader(members: set[int]) -> int:
    """Return the API server: the one whose parent is none of them, and that has children among them."""
    parents = {observe.parent(pid) for pid in members}
    return next(pid for pid in members if observe.parent(pid) not in members and pid in parents)


def stubborn(peer: Peer, count: int, grace: float) -> Cell:
    """What a stop takes beyond the grace, s, where nobody heeds SIGTERM; and the most that is left 1 s afterwards."""
    taken, left = [], 0
    for _ in range(count):
        with peer.place() as place:
            port = free_port()
            program = programs.engine(place, port, grace, ignore_sigterm="1", worker_setsid="1")
            with supervised(peer.launch(place, program)) as running:
                _tree(place, 4)
                begun = time.monotonic()
                running.stop()
                taken.append(time.monotonic() - begun - grace)
                time.sleep(1)
                left = max(left, len(observe.bearing(place.token)))
    return samples(taken, f"{left} left")


def command_status(peer: Peer, count: int) -> Cell:
    """What an operator's question takes, as a command, ms."""
    with peer.place() as place:
        beacon = programs.Beacon(place)
        try:
            with supervised(peer.launch(place, programs.waiter(place))) as running:
                beacon.wait(WITHIN)
                command = running.status()
                if command is None:
                    raise UnmetError("cannot be asked")
                time.sleep(peer.settle)
                return samples([_run(command) for _ in range(count)])
        finally:
            beacon.close()


def _run(command: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - begun) * 1000


def answering(peer: Peer, count: int) -> Cell:
    """Launch of the supervisor to its first answer, ms."""
    taken = []
    for _ in range(count):
        with peer.place() as place:
            beacon = programs.Beacon(place)
            try:
                program = programs.waiter(place)
                begun = time.perf_counter()
                with supervised(peer.launch(place, program)) as running:
                    until(running.answers, WITHIN, "an answer", 0.001)
                    taken.append((time.perf_counter() - begun) * 1000)
            finally:
                beacon.close()
    return samples(taken)
