"""Rows that take minutes: everybody is watched at the same time, once."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.bench import observe, programs
from tests.bench.figures import Cell, samples
from tests.bench.observe import until
from tests.bench.peers.base import Peer, Running, supervised
from tests.ports import free_port

START = 5.0
"""What a start takes before it fails, seconds. A real one takes longer: vLLM imports for ten seconds or more."""

_ORIGIN = "OSError: no/model is not a local folder and is not a valid model identifier listed on"
KNOWN = (f"(APIServer pid=1) {_ORIGIN} 'https://huggingface.co/models'",)
UNKNOWN = ("(APIServer pid=1) RuntimeError: something that nobody has seen before",)

RETRYING = {"restart": {"never_ready_limit": 5}}
"""Our defaults: the shortest delays that the other rows set would make these a different question."""


@dataclass(frozen=True)
class Watched:
    """What was seen of one supervisor."""

    known: Cell
    unknown: Cell
    frozen: Cell


def watch(peers: Sequence[Peer], seconds: float, frozen_for: float, liveness: dict[str, object]) -> dict[str, Watched]:
    """Starts within `seconds` of a program that cannot start; and seconds until a frozen engine is replaced."""
    with ExitStack() as stack:

        def launch(peer: Peer, place: programs.Place, program: programs.Program, **ours: object) -> Running:
            program.ours.update(ours)
            return stack.enter_context(supervised(peer.launch(place, program)))

        frozen: dict[str, programs.Place] = {}
        for peer in peers:
            place = frozen[peer.name] = stack.enter_context(peer.place())
            launch(peer, place, programs.engine(place, free_port(), freeze_after="1"), liveness=liveness)
        for place in frozen.values():
            until(lambda: len(observe.bearing(place.token)) >= 4, 60, "the engine")  # noqa: B023 -- used at once
        time.sleep(2)  # the last members are forked after the first ones are seen, and it freezes
        since = time.monotonic()
        whole = {name: set(observe.bearing(place.token)) for name, place in frozen.items()}
        hopeless: dict[str, list[tuple[programs.Place, float]]] = {}
        for peer in peers:
            started = hopeless[peer.name] = []
            for words in (KNOWN, UNKNOWN):
                place = stack.enter_context(peer.place())
                launch(peer, place, programs.hopeless(place, START, words), **RETRYING)
                started.append((place, time.monotonic()))
        noticed: dict[str, float] = {}
        counts: dict[str, list[float]] = {name: [] for name in hopeless}
        while not _enough(noticed, counts) and time.monotonic() - since < max(frozen_for, seconds + 60):
            time.sleep(0.1)
            for name, started in hopeless.items():
                index = len(counts[name])
                if index < len(started) and time.monotonic() - started[index][1] >= seconds:
                    counts[name].append(float(len(started[index][0].read("starts"))))
            for name, place in frozen.items():
                if name not in noticed and not whole[name] <= set(observe.bearing(place.token)):
                    noticed[name] = time.monotonic() - since
    return {
        name: Watched(
            samples([known]),
            samples([unknown]),
            samples([noticed[name]]) if name in noticed else f"not in {frozen_for:g} s",
        )
        for name, (known, unknown) in counts.items()
    }


def _enough(noticed: dict[str, float], counts: dict[str, list[float]]) -> bool:
    return len(noticed) == len(counts) and all(len(found) == 2 for found in counts.values())
