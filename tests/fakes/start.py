"""What a start is watched by, faked: a log that a test writes, a cache, processes, and a history in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from vllm_supervisor.domain.capacity.measured import Key, Measured
from vllm_supervisor.domain.member import Member
from vllm_supervisor.domain.model import Cause
from vllm_supervisor.domain.startup import Activity, Download, PastStarts
from vllm_supervisor.ports import Engine


@dataclass
class FakeStartLog:
    """Implements `ports.StartLog`. Lines are (seconds since the making, text)."""

    lines: list[tuple[float, str]] = field(default_factory=list)
    error: OSError | None = None
    unread: str | None = None
    began: float = field(default_factory=anyio.current_time)

    async def read(self) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        passed = anyio.current_time() - self.began
        due = [text for at, text in self.lines if at <= passed]
        self.lines = [(at, text) for at, text in self.lines if at > passed]
        return due


@dataclass
class FakeSigns:
    """Implements `ports.StartSigns`. Rates are per second since the making; `hangs` makes every look wait for ever."""

    download_rate: float = 0.0
    download_from: float = 0.0
    download_total: int | None = None
    total_is_told: bool = True
    cpu_rate: float = 0.0
    io_rate: float = 0.0
    hangs: bool = False
    began: float = field(default_factory=anyio.current_time)

    @property
    def passed(self) -> float:
        return anyio.current_time() - self.began

    async def download(self) -> Download | None:
        if self.hangs:
            await anyio.sleep_forever()
        if self.download_total is None:
            return None
        if self.passed < self.download_from:
            return Download(0)
        present = min(self.download_total, int((self.passed - self.download_from) * self.download_rate))
        expected = self.download_total if self.total_is_told else None
        return Download(present, expected, present < self.download_total)

    async def activity(self, members: Sequence[Member]) -> Activity:
        if self.hangs:
            await anyio.sleep_forever()
        return Activity(self.passed * self.cpu_rate, int(self.passed * self.io_rate), "same")


@dataclass
class FakeHistory:
    """Implements `ports.StartHistory`."""

    starts: PastStarts = field(default_factory=PastStarts)

    def load(self) -> PastStarts:
        return self.starts

    def save(self, starts: PastStarts) -> None:
        self.starts = starts


@dataclass
class FakeMeasurements:
    """Implements `ports.Measurements`."""

    kept: list[tuple[Key, Measured]] = field(default_factory=list)

    def keep(self, key: Key, figures: Measured) -> None:
        self.kept.append((key, figures))


@dataclass
class FakeEvidence:
    """Implements `ports.EvidenceCollector`."""

    takes: float = 1.0
    collected: list[tuple[int, Cause, str]] = field(default_factory=list)

    async def collect(self, engine: Engine, cause: Cause, detail: str) -> None:
        await anyio.sleep(self.takes)
        self.collected.append((engine.generation, cause, detail))
