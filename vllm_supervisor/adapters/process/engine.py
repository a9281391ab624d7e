"""The process tree of one generation: waited for, signalled, and proven gone."""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM, Signals

import anyio
from anyio import to_thread

from vllm_supervisor.adapters.process import listeners, pidfd, portraits
from vllm_supervisor.adapters.process.family import Family
from vllm_supervisor.adapters.process.procfs import Proc, Stat
from vllm_supervisor.domain.member import Member, Portrait
from vllm_supervisor.domain.model import ExitStatus, Sig

_NUMBERS = {Sig.TERM: SIGTERM, Sig.KILL: SIGKILL}
_KILL_ROUNDS = 200
"""Looks at the table for members forked while we were killing: a fork bomb ends long before, a defect here too."""
_PROOF = 2
"""Quiet looks in a row that prove something. A member that forks and ends between our listing of /proc and our reading
of it hides its child from that look (seen in tests), but not from one that begins later."""
_HELD_AT_ONCE = 64
"""Pidfds open while waiting, so that a fork bomb does not cost us our descriptors."""
_RETRY = 0.1
"""Seconds to the next try when we are out of descriptors ourselves."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The process that was launched. `held` is a pidfd on it, None where it was gone when a leftover was found.

    `child` says whether it is ours to reap.
    """

    pid: int
    held: int | None
    child: bool


class ProcessTree:
    """Implements `ports.Engine`.

    The leader's zombie is kept until every member is gone: as long as it is there, the kernel gives its number to no
    other process, session or group. `gone` is called once no member is left.
    """

    def __init__(
        self,
        generation: int,
        leader: Leader,
        family: Family,
        host: str,
        log_start: int = 0,
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._generation = generation
        self._leader = leader
        self._family = family
        self._host = host
        self._log_start = log_start
        self._lock = threading.Lock()
        self._status: ExitStatus | None = None if leader.held is not None else ExitStatus()
        self._gone = False
        self._tell_gone = gone
        self._found: tuple[Portrait, ...] | None = None

    @property
    def generation(self) -> int:
        """The launch that this tree belongs to."""
        return self._generation

    @property
    def pid(self) -> int:
        """The leader."""
        return self._leader.pid

    @property
    def leader_alive(self) -> bool:
        """False where only other members were found, or once `wait_leader` has returned."""
        return self._status is None

    @property
    def log_start(self) -> int:
        """Where its part of the log begins, as `ports.Engine` has it; 0 for a leftover without a record."""
        return self._log_start

    async def wait_leader(self) -> ExitStatus:
        """Return how the leader ended, as soon as it has, all its threads included."""
        if self._status is None and self._leader.held is not None:
            await pidfd.ended(self._leader.held)
            if self._status is None:  # another waiter may have been first
                self._status = pidfd.status(self._leader.held) if self._leader.child else ExitStatus()
        return self._status or ExitStatus()

    async def signal(self, signal: Sig) -> int:
        """Signal every living member once and return how many were reached.

        SIGKILL is repeated on whatever was forked meanwhile, until nobody new is found. Stopped members get their
        SIGTERM when continued, by whomever: waking them is not ours, and SIGKILL does not need it.
        """
        number = _NUMBERS[signal]
        return await to_thread.run_sync(self._signal, number)  # not abandoned: never half a tree

    async def wait_gone(self) -> None:
        """Return when no member is alive, leader first."""
        await self.wait_leader()
        quiet = 0
        while quiet < _PROOF:
            alive = await self._living()
            quiet = 0 if alive else quiet + 1
            if alive:
                await self._until_one_look_is_worth(alive)
        if not self._gone:
            self._tell_gone()
        self._let_go()

    async def members(self) -> tuple[Member, ...]:
        """Return the members alive now."""
        return tuple(Member(stat.pid, stat.start, stat.name, stat.state) for stat in await self._living())

    async def portraits(self, members: Sequence[Member]) -> tuple[Portrait, ...]:
        """Return what those of `members` that still live are doing. Takes its time where one is stuck."""
        return await to_thread.run_sync(self._portraits, members, abandon_on_cancel=True)

    @property
    def found(self) -> tuple[Portrait, ...]:
        """The members, dead ones included, as the first signal of ours found them, without commands; empty before."""
        return self._found or ()

    async def owns_listener(self, port: int) -> bool | None:
        """Say whether all sockets that answer on `port` at our address are members'; None where it cannot be read."""
        return await to_thread.run_sync(self._owns_listener, port, abandon_on_cancel=True)

    async def _living(self) -> list[Stat]:
        while True:
            try:
                return await to_thread.run_sync(self._look, abandon_on_cancel=True)
            except OSError:  # out of descriptors or memory: not knowing is not proof
                await anyio.sleep(_RETRY)

    async def _until_one_look_is_worth(self, alive: list[Stat]) -> None:
        """Wait until the given ones (of very many, the first) have ended."""
        with ExitStack() as stack:
            held = []
            for stat in alive[:_HELD_AT_ONCE]:
                try:
                    fd = pidfd.hold(self._family.proc, stat.pid, stat.start)
                except OSError:
                    await anyio.sleep(_RETRY)
                    break
                if fd is not None:
                    stack.callback(os.close, fd)
                    held.append(fd)
            async with anyio.create_task_group() as group:
                for fd in held:
                    group.start_soon(pidfd.ended, fd)

    def _look(self) -> list[Stat]:
        """Return the living members, and reap the dead ones that became our children. Blocking."""
        return [stat for stat in self._look_at_all() if not stat.gone]

    def _look_at_all(self) -> list[Stat]:
        """Return the members, the dead ones among them for the last time if they are our children. Blocking."""
        with self._lock:
            if self._gone:
                return []
            found = self._family.look()
            self._reap(found)
            return found

    def _portraits(self, members: Sequence[Member]) -> tuple[Portrait, ...]:
        # Without the lock: what is read here may wait for a process that is stuck.
        stats = [(member, self._family.proc.stat(member.pid)) for member in members]
        living = [stat for member, stat in stats if stat is not None and stat.start == member.start_ticks]
        return tuple(portraits.portrait(self._family.proc, stat) for stat in living if not stat.gone)

    def _reap(self, found: Iterable[Stat]) -> None:
        for stat in found:
            if stat.gone and stat.parent == self._family.own and stat.pid != self._leader.pid:
                pidfd.reap(stat.pid)

    def _signal(self, number: Signals) -> int:
        reached: set[tuple[int, int]] = set()
        tried: set[tuple[int, int]] = set()
        quiet = 0
        for _ in range(_KILL_ROUNDS if number is SIGKILL else 1):
            members = self._look_at_all()
            if self._found is None:
                self._found = portraits.sketch(self._family.proc, members)
            fresh = [stat for stat in members if not stat.gone and (stat.pid, stat.start) not in tried]
            for stat in fresh:
                tried.add((stat.pid, stat.start))
                if pidfd.send(self._family.proc, stat.pid, stat.start, number):
                    reached.add((stat.pid, stat.start))
            quiet = 0 if fresh else quiet + 1
            if quiet == _PROOF or not tried:
                break
        return len(reached)

    def _owns_listener(self, port: int) -> bool | None:
        try:
            living = self._look()
            return listeners.owned(self._family.proc, [stat.pid for stat in living], self._host, port)
        except OSError:
            return None

    def _let_go(self) -> None:
        with self._lock:
            if self._gone:
                return
            self._gone = True
            if self._leader.child:
                pidfd.reap(self._leader.pid)
            if self._leader.held is not None:
                os.close(self._leader.held)


def held_leader(proc: Proc, pid: int, start: int, *, child: bool) -> Leader:
    """Return the leader with a pidfd on it, or without one when it is gone. Raises OSError out of descriptors."""
    return Leader(pid, pidfd.hold(proc, pid, start), child=child)
