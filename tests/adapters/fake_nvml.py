"""A driver that says what a test wants, in the shape of pynvml."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class FakeNvmlError(Exception):
    pass


@dataclass
class Card:
    uuid: str = "GPU-0"
    used: int = 0
    busy: int = 0
    total: int = 100
    processes: list[tuple[int, int | None]] = field(default_factory=list)


class FakeNvml:
    """`failing` names calls that raise; `asked` lists all calls."""

    NVMLError = FakeNvmlError

    def __init__(self, *cards: Card, failing: frozenset[str] = frozenset()) -> None:
        self.cards = list(cards)
        self.failing = failing
        self.asked: list[str] = []
        self.xids: list[int] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.asked.append(name)
            if name in self.failing:
                raise FakeNvmlError(name)
            return getattr(self, "_" + name.removeprefix("nvml"))(*args)

        return call

    def _Init(self) -> None:  # noqa: N802 -- NVML's name
        pass

    def _DeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def _DeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self.cards[index]

    def _DeviceGetName(self, card: Card) -> bytes:  # noqa: N802
        return b"NVIDIA Fake"

    def _DeviceGetUUID(self, card: Card) -> str:  # noqa: N802
        return card.uuid

    def _DeviceGetMemoryInfo(self, card: Card) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=card.used, total=card.total, free=card.total - card.used)

    def _DeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.processes]

    def _DeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=card.busy, memory=0)

    def _EventSetCreate(self) -> list[int]:  # noqa: N802
        return self.xids

    def _DeviceRegisterEvents(self, card: Card, types: int, events: list[int]) -> None:  # noqa: N802
        assert types == 8

    def _EventSetWait_v2(self, events: list[int], timeout_ms: int) -> SimpleNamespace:  # noqa: N802
        if not events:
            raise FakeNvmlError("Timeout")
        return SimpleNamespace(eventData=events.pop(0))
