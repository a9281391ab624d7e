"""What the observer saw, as it travels from its process to the judge: one JSON array a line.

All times are seconds of CLOCK_MONOTONIC, which every process of a machine shares.
"""

import json
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Look:
    """One reading of the process table."""

    at: float
    engines: dict[str, list[int]]
    """Living processes of each engine, by the name that its launch gave it."""
    two: list[str]
    """Engines proven to have been alive at the same moment; empty where not more than one was."""
    daemon: str
    """The kernel's letter for the daemon's state; empty when there is no such process."""
    late: float
    """How much later than planned the observer itself got to look."""
    frozen: bool = False
    """Some member is stopped by a signal: no engine serves so, whatever its `/health` says."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question to the control socket, on a connection of its own."""

    sent: float
    at: float
    """When the answer was complete, or given up."""
    code: int
    """HTTP status; 0 where there was none."""
    error: str
    state: str
    generation: int
    pid: int
    """Of the leader, as told; 0 for none."""
    waited: float
    """How long observer and daemon were ready to run meanwhile and were given no processor, as the kernel tells."""
    pressed: float = 0.0
    """Share of that time, 0..1, in which somebody on this machine was ready to run and had to wait."""


@dataclass(frozen=True, slots=True)
class Health:
    """One look at the engine's own `/health`: `ok`, `dead` (refused, reset, no 2xx, no HTTP) or `late`."""

    at: float
    outcome: str


Sight = Look | Answer | Health
_KINDS: dict[str, type[Look | Answer | Health]] = {kind.__name__: kind for kind in (Look, Answer, Health)}


def write(sight: Sight) -> str:
    """Return one line."""
    return json.dumps([type(sight).__name__, *astuple(sight)]) + "\n"


def read(line: str) -> Sight:
    """Return what `write` wrote."""
    name, *fields = json.loads(line)
    return _KINDS[name](*fields)
