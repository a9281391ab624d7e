"""The processes of an engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """A process of an engine. `start_ticks` (clock ticks since boot) tells it from a later one with the same pid."""

    pid: int
    start_ticks: int
    name: str
    state: str
    """The kernel's letter: R S D Z T …"""


@dataclass(frozen=True, slots=True)
class Portrait(Member):
    """A process of an engine, and what it was doing. Empty where the kernel does not tell us."""

    parent: int = 0
    wchan: str = ""
    """Where in the kernel its main thread waits."""
    command: str = ""
    """Its command line, in the clear."""
    stack: tuple[str, ...] = ()
    """Its main thread's kernel stack, which root alone may read."""
