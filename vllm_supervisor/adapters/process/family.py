"""Which processes belong to one generation: the reading of a process table, without a signal or a wait."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vllm_supervisor.adapters.process.procfs import Proc, Stat
from vllm_supervisor.domain.spec import MARKER

_INIT = 1
_ELDERS_FOR = 0.25
"""Seconds for which a process older than the leader is taken to hold its pid still. Ending an engine takes several
looks in a few milliseconds, and a GPU host has thousands of kernel threads at 12 us each (measured). A member could
take such a pid only after the kernel went through all pids in that time."""


@dataclass(frozen=True, slots=True)
class Origin:
    """By what the members of a generation are known.

    `leader` is the pid of the leader, its session and its group; None when the daemon that launched it died before it
    could note it. `born` is its start in ticks, or a time before it: nothing older is a member. `marks` are values of
    the marker; one that ends in a dot stands for every generation of the instance. `adopter` is the pid of the daemon
    if orphans come to it, `session` that daemon's own session.
    """

    leader: int | None
    born: int
    marks: tuple[str, ...]
    adopter: int | None = None
    session: int = 0


@dataclass(slots=True)
class Family:
    """The members of one generation, as they come to light. Once seen, a process stays a member until it is gone.

    Not safe for threads: the caller takes a lock.
    """

    proc: Proc
    origin: Origin
    own: int
    """The daemon's pid: never a member."""
    _known: dict[int, int] = field(default_factory=dict)
    """pid -> start of the members seen last time."""
    _elders: frozenset[int] = frozenset()
    """Pids of processes older than the leader."""
    _elders_until: float = 0.0
    _strangers: dict[int, int] = field(default_factory=dict)
    """pid -> start of processes whose environment was read and does not make them members."""

    def look(self) -> list[Stat]:
        """Read the process table once and return the members in it, zombies included. Blocking."""
        table = self._table()
        members = {pid: table[pid] for pid, start in self._known.items() if _same(table.get(pid), start)}
        rest = {stat.pid: stat for stat in table.values() if stat.pid not in members and self._possible(stat)}
        _move(rest, members, [stat.pid for stat in rest.values() if self._leads(stat)])
        _move(rest, members, self._mates(rest, members))
        _descend(rest, members)
        _move(rest, members, list(self._marked(rest)))
        _descend(rest, members)
        self._known = {stat.pid: stat.start for stat in members.values()}
        self._strangers = {pid: start for pid, start in self._strangers.items() if _same(rest.get(pid), start)}
        return list(members.values())

    def _table(self) -> dict[int, Stat]:
        """Read all processes, or all but the elders where those were told apart just now."""
        now = time.monotonic()
        if now < self._elders_until:
            return self.proc.table(self._elders)
        table = self.proc.table()
        self._elders = frozenset(pid for pid, stat in table.items() if stat.start < self.origin.born)
        self._elders_until = now + _ELDERS_FOR
        return table

    def _possible(self, stat: Stat) -> bool:
        return stat.start >= self.origin.born and not stat.kernel and stat.pid not in (self.own, _INIT)

    def _leads(self, stat: Stat) -> bool:
        return stat.pid == self.origin.leader and stat.start == self.origin.born

    def _mates(self, rest: Mapping[int, Stat], members: Mapping[int, Stat]) -> list[int]:
        """Find those in the leader's session or group.

        A pid is not reused while its session or group has members, and the leader's zombie is kept until all are gone.
        After the death of a daemon there is no such zombie: then another session may have got the number, and it is
        ours only if somebody in it proves it, by being a known member or by the marker.
        """
        leader = self.origin.leader
        if leader in rest:  # later than ours, so that the number was free once: our session had ended
            return []
        mates = [stat for stat in rest.values() if leader in (stat.session, stat.group)]
        if leader in members or any(leader in (stat.session, stat.group) for stat in members.values()):
            return [stat.pid for stat in mates]
        verdicts = {stat.pid: self._bears(self.proc.environ(stat.pid)) for stat in mates}
        proven = any(verdicts.values())
        return [pid for pid, bears in verdicts.items() if proven or bears is None]

    def _marked(self, rest: Mapping[int, Stat]) -> Iterator[int]:
        """Find those that bear the marker, and our adopted children that bear none.

        An orphan that left the session and erased its environment before it was ever seen is our child, in a session
        that is not ours: whatever the daemon itself launches stays in the daemon's session.
        """
        for stat in rest.values():
            adopted = stat.parent == self.origin.adopter and stat.session != self.origin.session
            if not adopted and _same(stat, self._strangers.get(stat.pid, -1)):
                continue
            block = self.proc.environ(stat.pid)
            bears = self._bears(block)
            if bears or (adopted and not _markers(block or b"")):
                yield stat.pid
            elif bears is False:
                self._strangers[stat.pid] = stat.start

    def _bears(self, block: bytes | None) -> bool | None:
        """Say whether this environment has our marker; None where it is erased, or blank because of an exec."""
        if block is None:
            return False
        if not block.strip(b"\0"):
            return None
        return any(self._is_ours(value) for value in _markers(block))

    def _is_ours(self, value: str) -> bool:
        return any(value.startswith(mark) if mark.endswith(".") else value == mark for mark in self.origin.marks)


def newest_launch(proc: Proc, members: Iterable[Stat]) -> int:
    """Return the highest generation in the members' markers; 0 where none can be read."""
    values = [value for stat in members for value in _markers(proc.environ(stat.pid) or b"")]
    numbers = [value.rpartition(".")[2] for value in values]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _same(stat: Stat | None, start: int) -> bool:
    return stat is not None and stat.start == start


def _markers(block: bytes) -> list[str]:
    prefix = MARKER.encode() + b"="
    return [item[len(prefix) :].decode(errors="replace") for item in block.split(b"\0") if item.startswith(prefix)]


def _move(rest: dict[int, Stat], members: dict[int, Stat], pids: Iterable[int]) -> None:
    for pid in pids:
        members[pid] = rest.pop(pid)


def _descend(rest: dict[int, Stat], members: dict[int, Stat]) -> None:
    """Move the descendants of members over, however deep."""
    while found := [
        stat.pid for stat in rest.values() if stat.parent in members and stat.start >= members[stat.parent].start
    ]:
        _move(rest, members, found)
