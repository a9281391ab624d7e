"""What a fault is: something done to a daemon, its engine, its host or its clients, and undone."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random

from tests.chaos.world import World

Doing = Callable[[World, Random], Iterator[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """`apply` does it on entering and undoes it on leaving; what it chooses, it takes from the Random it is given."""

    name: str
    apply: Callable[[World, Random], AbstractContextManager[None]]
    starves: bool
    """The daemon lacks something meanwhile, so that it may tell of failures of its own."""
    impossible: Callable[[World], str]
    """Why it cannot be done in this world; empty where it can."""


def _possible(_: World) -> str:
    return ""


class Faults:
    """A register of faults, filled by decorating generators that yield once, between doing and undoing."""

    def __init__(self) -> None:
        self.all: list[Fault] = []

    def __call__(
        self, name: str, *, starves: bool = False, impossible: Callable[[World], str] = _possible
    ) -> Callable[[Doing], Doing]:
        """Register a generator."""

        def register(doing: Doing) -> Doing:
            self.all.append(Fault(name, contextmanager(doing), starves, impossible))
            return doing

        return register


def pause(seconds: float) -> None:
    """Let a fault last. What happens meanwhile is the observer's to see: nothing is expected afterwards."""
    time.sleep(seconds)
