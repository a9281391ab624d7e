"""What a post-mortem looks with, faked: each says what the test wants, fails when told, and may take its time."""

from collections.abc import Iterable, Mapping, Sequence

from tests.fakes.engine import Calls
from vllm_supervisor.domain.diagnosis import Context, Diagnosis
from vllm_supervisor.domain.member import Member
from vllm_supervisor.ports import Gpu
from vllm_supervisor.runtime.ground import Ground
from vllm_supervisor.runtime.postmortem import Instruments


class FakeLog:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.found: Diagnosis | None = None
        self.asked: list[tuple[int, Context]] = []
        self.unread: str | None = None

    async def diagnose(self, start: int, context: Context) -> Diagnosis | None:
        async with self.calls.call("diagnose"):
            self.asked.append((start, context))
            return self.found


class FakeOom:
    def __init__(self) -> None:
        self.count: int | None = None

    async def read(self) -> int | None:
        return self.count


class FakeGpus:
    """`seen` is what the next look finds; a list is used up look by look, and its last stays."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.seen: list[tuple[Gpu, ...] | None] = [None]
        self.events: tuple[int, ...] = ()

    async def look(self) -> tuple[Gpu, ...] | None:
        async with self.calls.call("gpus"):
            return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]

    async def xids(self) -> tuple[int, ...]:
        events, self.events = self.events, ()
        return events


class FakeRecord:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.proven = False
        self.tried: set[str] = set()

    async def ready(self) -> None:
        self.proven = True
        async with self.calls.call("ready"):
            self.tried.clear()

    async def once(self, what: str) -> bool:
        first = what not in self.tried
        self.tried.add(what)
        return first


class FakeCache:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.moves = 0

    async def move_aside(self, log_start: int) -> tuple[str, ...]:
        async with self.calls.call("move_aside"):
            self.moves += 1
            return (f"aside-{self.moves}",)


class FakeRemains:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.noted: list[frozenset[int]] = []
        self.removals = 0
        self.left: tuple[str, ...] = ("psm_1",)

    async def note(self, pids: Iterable[int]) -> None:
        self.noted.append(frozenset(pids))

    async def remove(self) -> tuple[str, ...]:
        async with self.calls.call("remove"):
            self.removals += 1
            return self.left


class FakeBundles:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.photographs: list[tuple[int, Mapping[str, object], tuple[Member, ...]]] = []
        self.reports: list[tuple[int, Mapping[str, object], int]] = []
        self.processes: list[Sequence[Mapping[str, object]]] = []

    async def photograph(self, generation: int, facts: Mapping[str, object], members: Iterable[Member]) -> str:
        async with self.calls.call("photograph"):
            self.photographs.append((generation, facts, tuple(members)))
            return f"bundle-{generation}"

    async def write(
        self,
        generation: int,
        report: Mapping[str, object],
        processes: Sequence[Mapping[str, object]],
        log_start: int,
    ) -> str:
        async with self.calls.call("bundle"):
            self.processes.append(processes)
            self.reports.append((generation, report, log_start))
            return f"bundle-{generation}"


class FakeInstruments:
    """All of them, sharing one list of calls."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.log = FakeLog(self.calls)
        self.oom = FakeOom()
        self.gpus = FakeGpus(self.calls)
        self.record = FakeRecord(self.calls)
        self.cache = FakeCache(self.calls)
        self.remains = FakeRemains(self.calls)
        self.bundles = FakeBundles(self.calls)
        self.ground = Ground(self.gpus)

    def all(self) -> Instruments:
        return Instruments(
            log=self.log,
            oom=self.oom,
            gpus=self.gpus,
            ground=self.ground,
            history=self.record,
            cache=self.cache,
            remains=self.remains,
            bundles=self.bundles,
        )
