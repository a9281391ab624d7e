"""The limit: what the kernel alone takes, with no supervisor in between."""

import os
import signal
import time

from tests.bench import observe, programs
from tests.bench.figures import Cell, samples
from tests.bench.peers.base import host_place, sweep

WITHIN = 30.0


def relaunched(count: int, *, kill: bool) -> Cell:
    """End, wait, fork and exec of the same program, to its first act, ms."""
    taken = []
    with host_place() as place:
        beacon = programs.Beacon(place)
        argv = programs.waiter(place).argv
        try:
            pid = os.posix_spawn(argv[0], argv, os.environ)
            beacon.wait(WITHIN)
            for _ in range(count):
                time.sleep(0.05)
                begun = time.perf_counter()
                if kill:
                    os.kill(pid, signal.SIGKILL)
                else:
                    begun = beacon.let_exit()
                os.waitpid(pid, 0)
                pid = os.posix_spawn(argv[0], argv, os.environ)
                taken.append((beacon.wait(WITHIN) - begun) * 1000)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        finally:
            beacon.close()
            sweep(lambda: observe.bearing(place.token))
    return samples(taken)


def crowd_killed(count: int, size: int) -> Cell:
    """SIGKILL for each of a known crowd, until all are gone, and the next crowd, ms."""
    taken = []
    begun = 0.0
    with host_place() as place:
        beacon = programs.Beacon(place)
        argv = programs.crowd(place, size).argv
        try:
            for round_ in range(count + 1):
                pid = os.posix_spawn(argv[0], argv, os.environ)
                now = beacon.wait(WITHIN)
                if round_:
                    taken.append((now - begun) * 1000)
                members = observe.bearing(place.token)
                begun = time.perf_counter()
                for member in members:
                    os.kill(member, signal.SIGKILL)
                os.waitpid(pid, 0)
        finally:
            beacon.close()
            sweep(lambda: observe.bearing(place.token))
    return samples(taken)
