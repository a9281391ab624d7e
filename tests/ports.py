"""Ports for what listens later, or again."""

import itertools
import os
import socket
from pathlib import Path

_RANGE = 3000
_FIRST, _LAST = 10_000, 32_000
"""Below the kernel's ephemeral ports: one of those, asked for and let go, is soon somebody's end of a connection."""


def _numbers() -> "itertools.chain[int]":
    """Return this process's share of the ports: each of the test runner's workers has its own.

    It begins anywhere in it, since runs at the same time have the same share, and in namespaces also the same pids.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw6").removeprefix("gw")
    first = _FIRST + _RANGE * (int(worker) % ((_LAST - _FIRST) // _RANGE))
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first + _RANGE <= ephemeral, "the ephemeral ports of this host begin lower than is usual"
    start = first + int.from_bytes(os.urandom(4)) % _RANGE
    return itertools.chain(range(start, first + _RANGE), itertools.cycle(range(first, first + _RANGE)))


_ports = _numbers()


def free_port() -> int:
    """Return a port that nobody listens on, and that is not given out again for a long time."""
    for port in _ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise AssertionError
