"""NVIDIA's GPUs by NVML (nvidia-ml-py), where that and a driver are there; neither is touched before the first look.

Some figures are absent on some cards (MIG, WSL, vGPU): whatever cannot be read is left out, and nothing here raises.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from anyio import to_thread

from vllm_supervisor.ports import Gpu, GpuHolder

_XID_EVENT = 8
"""nvmlEventTypeXidCriticalError."""
_MAX_EVENTS = 100


class Nvml(Protocol):
    """The part of pynvml that is used. Its calls raise NVMLError."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802, D102 -- NVML's own names
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802, D102
    def nvmlDeviceGetName(self, handle: Any) -> str | bytes: ...  # noqa: N802, D102
    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes: ...  # noqa: N802, D102
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...  # noqa: N802, D102
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]: ...  # noqa: N802, D102
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...  # noqa: N802, D102
    def nvmlEventSetCreate(self) -> Any: ...  # noqa: N802, D102
    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, events: Any) -> None: ...  # noqa: N802, D102
    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any: ...  # noqa: N802, D102


def load() -> Nvml | None:
    """Return NVML, ready for use; None where there is none, or no driver."""
    try:
        nvml: Nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 -- whatever a driver or a binding raises, there is nothing to ask then
        return None
    return nvml


class NvmlGpus:
    """Implements `ports.Gpus`. `env` is the engine's: CUDA_VISIBLE_DEVICES chooses among the GPUs."""

    def __init__(
        self,
        env: Mapping[str, str],
        nvml: Callable[[], Nvml | None] = load,
        proc: Path = Path("/proc"),
    ) -> None:
        self._visible = env.get("CUDA_VISIBLE_DEVICES")
        self._load: Callable[[], Nvml | None] | None = nvml
        self._nvml: Nvml | None = None
        self._proc = proc
        self._handles: dict[int, Any] = {}
        self._events: Any = None

    async def look(self) -> tuple[Gpu, ...] | None:
        """Return the GPUs that the engine may use; None where the driver cannot be asked, and then at no cost."""
        if self._load is None and self._nvml is None:
            return None
        return await to_thread.run_sync(self._look, abandon_on_cancel=True)

    async def utilization(self) -> float | None:
        """Return how busy the engine's GPUs are on average, 0..1: the time in which any kernel ran; None: not known."""
        if self._load is None and self._nvml is None:
            return None
        return await to_thread.run_sync(self._utilization, abandon_on_cancel=True)

    async def xids(self) -> tuple[int, ...]:
        """Return the Xid events since the last call, or since the first look."""
        if self._events is None:
            return ()
        return await to_thread.run_sync(self._xids, abandon_on_cancel=True)

    def _driver(self) -> Nvml | None:
        """Return NVML where it has a GPU of the engine's; it is loaded the first time."""
        if self._load is not None:
            load, self._load = self._load, None
            self._nvml = load()
            self._open()
        return self._nvml if self._handles else None

    def _utilization(self) -> float | None:
        nvml = self._driver()
        if nvml is None:
            return None
        try:
            shares = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in self._handles.values()]
        except nvml.NVMLError:
            return None  # a part of a GPU (MIG) has none
        return float(sum(shares) / len(shares))

    def _look(self) -> tuple[Gpu, ...] | None:
        nvml = self._driver()
        if nvml is None:
            return None
        try:
            return tuple(self._gpu(nvml, index, handle) for index, handle in self._handles.items())
        except nvml.NVMLError:
            return None  # a GPU that fell off the bus: its Xid tells

    def _open(self) -> None:
        nvml = self._nvml
        if nvml is None:
            return
        try:
            handles = {index: nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())}
            self._handles = {
                index: handle
                for index, handle in handles.items()
                if _chosen(self._visible, index, _text(nvml.nvmlDeviceGetUUID(handle)))
            }
        except nvml.NVMLError:
            self._nvml = None
            return
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                nvml.nvmlDeviceRegisterEvents(handle, _XID_EVENT, events)
        except nvml.NVMLError:
            return  # not every card, driver and container tells of Xids
        self._events = events

    def _gpu(self, nvml: Nvml, index: int, handle: Any) -> Gpu:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        try:
            listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError:
            listed = []
        holders = tuple(GpuHolder(int(item.pid), self._name(item.pid), item.usedGpuMemory) for item in listed)
        return Gpu(index, _text(nvml.nvmlDeviceGetName(handle)), int(memory.used), int(memory.total), holders)

    def _name(self, pid: int) -> str | None:
        try:
            return (self._proc / str(pid) / "comm").read_text().strip()
        except OSError:
            return None

    def _xids(self) -> tuple[int, ...]:
        nvml, found = self._nvml, []
        if nvml is None:
            return ()
        for _ in range(_MAX_EVENTS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 1)
            except nvml.NVMLError:
                break  # the time-out: none is left
            found.append(int(event.eventData))
        return tuple(found)


def _chosen(visible: str | None, index: int, uuid: str) -> bool:
    """Say whether CUDA_VISIBLE_DEVICES names this GPU; what cannot be told apart (MIG) counts."""
    if visible is None:
        return True
    words = [word.strip() for word in visible.split(",") if word.strip()]
    return any(word == str(index) or uuid.startswith(word) or word.startswith("MIG-") for word in words)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
