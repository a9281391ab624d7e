"""The promises, held against what the outside observer saw. Pure: sights in, broken promises out."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.chaos.sight import Answer, Health, Look, Sight

ANSWER_WITHIN = 0.1
ANSWER_IN_A_CROWD_WITHIN = 0.5
"""Where a thousand others asked first: clients are answered in the order in which they come, and each costs 0.3 ms."""
ANSWER_UNDER_PRESSURE_WITHIN = 0.3
"""On a machine where somebody waits for a processor nearly all the time: a daemon that launches a process stands still
until that one gets one (vfork), and the kernel counts this as nobody's wait but the new process's."""
_PRESSED = 0.8
TRUE_WITHIN = 2.0
_TOO_LATE_TO_JUDGE = 0.05
"""Where the observer itself was held up for so long, what it measured says nothing about the daemon."""

QUIET = frozenset({"stopped", "backoff", "failed"})
"""States that say: there is no engine."""
SERVING = frozenset({"ready", "unhealthy"})


@dataclass(frozen=True, slots=True)
class Broken:
    """One promise, broken."""

    at: float
    promise: str
    detail: str


@dataclass(slots=True)
class Window:
    """A time in which something cannot be asked of the daemon, or only then: `down`, `stopped`, `crowd`, `calm`."""

    kind: str
    begun: float
    ended: float = math.inf


@dataclass
class Judge:
    """Takes sights in the order in which they were made. `windows` must be known before what they are about."""

    windows: list[Window] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    _answer: Answer | None = None
    """The last answer that told a state."""
    _occupied: tuple[float, list[int]] | None = None
    """The last look at the processes that found an engine."""
    _look: Look | None = None
    _since: dict[str, float] = field(default_factory=dict)
    """Since when something untrue has been told without a break, by what it is."""
    _excused: dict[str, float] = field(default_factory=dict)
    _health: str = ""
    _late: list[tuple[float, float]] = field(default_factory=list)
    _slow: list[Answer] = field(default_factory=list)
    """Answers over the limit, until it is known whether the observer was held up meanwhile."""

    @contextmanager
    def window(self, kind: str, now: Callable[[], float] = time.monotonic) -> Iterator[None]:
        """Declare a window for as long as the block lasts."""
        window = Window(kind, now())
        self.windows.append(window)
        try:
            yield
        finally:
            window.ended = now()

    def take(self, sights: Iterable[Sight]) -> None:
        """Judge what was seen."""
        for sight in sights:
            match sight:
                case Look():
                    self._looked(sight)
                case Answer():
                    self._answered(sight)
                case Health():
                    self._health = sight.outcome
            self.counts[type(sight).__name__] += 1

    def _within(self, kind: str, begun: float, ended: float) -> bool:
        return any(w.kind == kind and w.begun <= ended and begun <= w.ended for w in self.windows)

    def accuse(self, promise: str, detail: str) -> None:
        """Add a promise that somebody else saw broken."""
        self._break(time.monotonic(), promise, detail)

    def _break(self, at: float, promise: str, detail: str) -> None:
        self.broken.append(Broken(at, promise, detail))

    # --- processes

    def _looked(self, look: Look) -> None:
        self._look = look
        if look.late > _TOO_LATE_TO_JUDGE:
            self._late = [*self._late[-50:], (look.at - look.late, look.at)]
        slow, self._slow = self._slow, []
        for answer in slow:
            self._slowly(answer)
        if look.engines:
            self._occupied = look.at, [pid for pids in look.engines.values() for pid in pids]
        if look.two:
            self._break(look.at, "one engine", f"alive at the same moment: {look.engines}")
        if not look.daemon and not self._within("down", look.at, look.at):
            self._break(look.at, "the daemon lives", "there is no such process")

    # --- answers

    def _answered(self, answer: Answer) -> None:
        down = self._within("down", answer.sent, answer.at)
        if down:
            self._forget()
            return
        if not self._within("stopped", answer.sent, answer.at):
            self._on_time(answer)
        if answer.state:
            self._true(answer)
            self._answer = answer

    def _forget(self) -> None:
        self._answer, self._occupied = None, None
        self._since.clear()

    def _on_time(self, answer: Answer) -> None:
        self.counts["questions judged"] += 1
        if not answer.code or answer.at - answer.sent > ANSWER_WITHIN:
            self._slow.append(answer)
        else:
            self.slowest = max(self.slowest, answer.at - answer.sent)

    def _slowly(self, answer: Answer) -> None:
        took = answer.at - answer.sent
        crowd = self._within("crowd", answer.sent, answer.at)
        pressed = answer.pressed > _PRESSED
        limit = max(ANSWER_WITHIN, crowd * ANSWER_IN_A_CROWD_WITHIN, pressed * ANSWER_UNDER_PRESSURE_WITHIN)
        if answer.code and any(begun <= answer.at and answer.sent <= ended for begun, ended in self._late):
            self.counts["answers over 100 ms while the observer was held up: not judged"] += 1
        elif not answer.code:
            self._break(answer.at, "the socket answers", f"{answer.error} after {took:.3f} s")
        elif took - answer.waited <= limit:
            self.counts["answers over 100 ms for want of a processor, or in a crowd: not judged"] += 1
        else:
            self.slowest = max(self.slowest, took)
            detail = f"{took:.3f} s, of which {answer.waited:.3f} s without a processor (HTTP {answer.code})"
            self._break(answer.at, "the socket answers within 100 ms", detail)

    # --- truth

    def _true(self, answer: Answer) -> None:
        before, occupied, look = self._answer, self._occupied, self._look
        if (
            before is not None
            and occupied is not None
            and before.state in QUIET
            and answer.state in QUIET
            and before.generation == answer.generation
            and before.at < occupied[0] < answer.sent
        ):
            detail = f"state {answer.state}, generation {answer.generation}, and these lived: {occupied[1]}"
            self._break(occupied[0], "no process is left", detail)
            self._occupied = None
        if look is None:
            return
        pids = [pid for members in look.engines.values() for pid in members]
        calm = self._within("calm", answer.sent, answer.sent)
        self._lie(answer, f"state {answer.state}, without a process", answer.state in SERVING and not pids)
        self._lie(answer, f"pid {answer.pid}, which is gone", bool(answer.pid) and answer.pid not in pids)
        self._lie(answer, "ready, and /health is bad", answer.state == "ready" and self._health == "dead")
        serves = calm and self._health == "ok" and not look.frozen
        self._lie(answer, f"{answer.state}, though it serves", serves and answer.state == "starting")

    def _lie(self, answer: Answer, what: str, untrue: object) -> None:
        """Count how long something untrue is told without a break, less the time without a processor."""
        if not untrue:
            self._since.pop(what, None)
            self._excused.pop(what, None)
            return
        since = self._since.setdefault(what, answer.at)
        self._excused[what] = self._excused.get(what, 0.0) + answer.waited
        if self._within("stopped", since, answer.at):
            self._since[what] = answer.at
        elif answer.at - since - self._excused[what] > TRUE_WITHIN:
            self._break(answer.at, "what is told is true within 2 s", f"{what}, for {answer.at - since:.1f} s")
            self._since[what] = math.inf
