"""An engine without processes: members that end when a script says so, in the time of the loop."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio

from vllm_supervisor.domain.member import Member, Portrait
from vllm_supervisor.domain.model import ExitStatus, Sig

EXIT_0 = ExitStatus(code=0)


class Calls:
    """Counts the calls in progress, and makes the next ones fail as told."""

    def __init__(self) -> None:
        self.active: Counter[str] = Counter()
        self.made: list[tuple[float, str]] = []
        self.failing: dict[str, list[Exception]] = {}
        self.takes: dict[str, float] = {}

    def fail(self, name: str, *errors: Exception) -> None:
        """Have the next calls of `name` raise `errors`, one each."""
        self.failing.setdefault(name, []).extend(errors)

    def times(self, name: str) -> list[float]:
        """Return when `name` was called."""
        return [at for at, made in self.made if made == name]

    def running(self) -> dict[str, int]:
        """Return the calls that have not ended."""
        return {name: count for name, count in self.active.items() if count}

    def _begin(self, name: str) -> None:
        self.made.append((anyio.current_time(), name))
        errors = self.failing.get(name)
        if errors:
            raise errors.pop(0)

    @contextmanager
    def now(self, name: str) -> Iterator[None]:
        """Stand for a call that does not wait."""
        self._begin(name)
        yield

    @asynccontextmanager
    async def call(self, name: str) -> AsyncIterator[None]:
        """Stand for a call that takes `takes[name]` seconds, and may be cancelled meanwhile."""
        self.active[name] += 1
        try:
            await anyio.sleep(self.takes.get(name, 0.0))
            self._begin(name)
            yield
        finally:
            self.active[name] -= 1


@dataclass(frozen=True, slots=True)
class MemberScript:
    """How a process behaves. Seconds from the signal to its end; None: it is not impressed."""

    name: str = "VLLM::EngineCore"
    after_term: float | None = 0.5
    after_kill: float | None = 0.0
    with_leader: float | None = None
    """Seconds from the leader's end to its own; None: it stays, as vLLM's workers do after a SIGKILL."""


@dataclass(frozen=True, slots=True)
class EngineScript:
    """How an engine behaves. Seconds from its launch; None: never."""

    healthy_after: float | None = 20.0
    exits_after: float | None = None
    status: ExitStatus = EXIT_0
    leader: MemberScript = MemberScript("vllm")
    others: tuple[MemberScript, ...] = (MemberScript(with_leader=0.1),)
    leader_alive: bool = True
    owns_listener: bool | None = True


@dataclass(slots=True)
class _Process:
    pid: int
    script: MemberScript
    ends_at: float = math.inf

    def alive(self) -> bool:
        return anyio.current_time() < self.ends_at

    def end_by(self, at: float) -> None:
        self.ends_at = min(self.ends_at, at)


@dataclass
class FakeEngine:
    """Implements `ports.Engine`."""

    generation: int
    pid: int
    script: EngineScript
    calls: Calls = field(default_factory=Calls)
    signals: list[tuple[float, Sig]] = field(default_factory=list)
    log_start: int = 0
    found: tuple[Portrait, ...] = ()

    def __post_init__(self) -> None:
        self.launched_at = anyio.current_time()
        self._changed = anyio.Event()
        self._leader = _Process(self.pid, self.script.leader)
        self._others = [_Process(self.pid + 1 + i, script) for i, script in enumerate(self.script.others)]
        self._status = self.script.status
        if not self.script.leader_alive:
            self._leader.ends_at = -math.inf
        elif self.script.exits_after is not None:
            self._end_leader(self.launched_at + self.script.exits_after)

    # --- the world's side

    @property
    def healthy(self) -> bool:
        """Whether it listens and would answer 200."""
        after = self.script.healthy_after
        return self.leader_alive and after is not None and anyio.current_time() >= self.launched_at + after

    @property
    def gone(self) -> bool:
        """Whether no member is alive."""
        return not any(process.alive() for process in self._processes())

    def exit(self, code: int = 0, signal: int | None = None) -> None:
        """End the leader now, unasked."""
        self._status = ExitStatus(signal=signal) if signal is not None else ExitStatus(code=code)
        self._end_leader(anyio.current_time())

    def end_all(self) -> None:
        """End every member now: even the kernel lets go in the end."""
        self._end_leader(anyio.current_time())
        for process in self._others:
            process.end_by(anyio.current_time())
        self._tell()

    def _processes(self) -> list[_Process]:
        return [self._leader, *self._others]

    def _end_leader(self, at: float) -> None:
        self._leader.end_by(at)
        for process in self._others:
            if process.script.with_leader is not None:
                process.end_by(at + process.script.with_leader)
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _ended(self, *processes: _Process) -> None:
        while any(process.alive() for process in processes):
            changed = self._changed
            wait = max(process.ends_at for process in processes) - anyio.current_time()
            with anyio.move_on_after(max(0.0, wait)):
                await changed.wait()

    # --- the port

    @property
    def leader_alive(self) -> bool:
        return self._leader.alive()

    async def wait_leader(self) -> ExitStatus:
        async with self.calls.call("wait_leader"):
            await self._ended(self._leader)
            return self._status

    async def signal(self, signal: Sig) -> int:
        async with self.calls.call("signal"):
            now = anyio.current_time()
            self.signals.append((now, signal))
            if not self.found:
                states = [(process, "D" if process.alive() else "Z") for process in self._processes()]
                self.found = tuple(Portrait(p.pid, 1, p.script.name, state, self.pid) for p, state in states)
            reached = [process for process in self._processes() if process.alive()]
            for process in reached:
                after = process.script.after_term if signal is Sig.TERM else process.script.after_kill
                if after is None:
                    continue
                if process is self._leader:
                    self._end_leader(now + after)
                process.end_by(now + after)
            self._tell()
            return len(reached)

    async def wait_gone(self) -> None:
        async with self.calls.call("wait_gone"):
            await self._ended(*self._processes())

    async def members(self) -> tuple[Member, ...]:
        async with self.calls.call("members"):
            return tuple(Member(p.pid, 1, p.script.name, "D") for p in self._processes() if p.alive())

    async def portraits(self, members: Sequence[Member]) -> tuple[Portrait, ...]:
        async with self.calls.call("portraits"):
            alive = {process.pid for process in self._processes() if process.alive()}
            return tuple(
                Portrait(member.pid, 1, member.name, "S", self.pid, "futex_wait", f"/bin/{member.name}")
                for member in members
                if member.pid in alive
            )

    async def owns_listener(self, port: int) -> bool | None:
        async with self.calls.call("owns_listener"):
            return self.script.owns_listener
