"""GPUs by NVML, on a driver that says what the test wants."""

import os
from typing import cast

import psutil
import pytest

from tests.adapters.fake_nvml import Card, FakeNvml
from vllm_supervisor.adapters.gpu import Nvml, NvmlGpus, load
from vllm_supervisor.ports import Gpu, GpuHolder

pytestmark = pytest.mark.asyncio


def gpus(nvml: FakeNvml, **env: str) -> NvmlGpus:
    return NvmlGpus(env, lambda: cast("Nvml", nvml))


async def test_memory_and_holders() -> None:
    """Figures and processes are NVML's; a process that does not live here has no name."""
    nvml = FakeNvml(Card(used=40, processes=[(os.getpid(), 30), (1 << 22, None)]))
    (seen,) = await gpus(nvml).look() or ()
    name = psutil.Process().name()[:15]
    assert seen == Gpu(0, "NVIDIA Fake", 40, 100, (GpuHolder(os.getpid(), name, 30), GpuHolder(1 << 22, None, None)))


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        pytest.param(None, [0, 1, 2], id="all"),
        pytest.param("2,0", [0, 2], id="by index"),
        pytest.param("GPU-bbb", [1], id="by uuid, shortened as CUDA allows"),
        pytest.param("", [], id="none"),
        pytest.param("MIG-123", [0, 1, 2], id="a part of one, which cannot be told"),
    ],
)
async def test_only_those_that_the_engine_may_use(visible: str | None, indices: list[int]) -> None:
    """CUDA_VISIBLE_DEVICES of the engine's environment chooses."""
    nvml = FakeNvml(Card("GPU-aaa1"), Card("GPU-bbb2"), Card("GPU-ccc3"))
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [gpu.index for gpu in await gpus(nvml, **env).look() or ()] == indices


async def test_without_a_driver_it_is_asked_once() -> None:
    """Where there is no NVML, the first look finds that out, and no other does anything."""
    loads: list[None] = []

    def absent() -> Nvml | None:
        loads.append(None)
        return None

    seen = NvmlGpus({}, absent)
    assert [await seen.look() for _ in range(3)] == [None] * 3
    assert await seen.xids() == ()
    assert len(loads) == 1


async def test_absent_here_or_usable() -> None:
    """On whatever host this runs, loading does not raise."""
    nvml = load()
    assert nvml is None or nvml.nvmlDeviceGetCount() >= 0


@pytest.mark.parametrize(
    ("failing", "works"),
    [
        pytest.param("nvmlDeviceGetCount", False, id="no cards to count"),
        pytest.param("nvmlDeviceGetMemoryInfo", False, id="a card that fell off the bus"),
        pytest.param("nvmlDeviceGetComputeRunningProcesses", True, id="processes not told (MIG, WSL)"),
        pytest.param("nvmlEventSetCreate", True, id="no events"),
        pytest.param("nvmlDeviceRegisterEvents", True, id="no Xid events"),
    ],
)
async def test_what_cannot_be_read_is_left_out(failing: str, works: bool) -> None:
    """Nothing raises, whatever the driver does not do."""
    seen = gpus(FakeNvml(Card(used=1), failing=frozenset([failing])))
    assert (await seen.look() is not None) is works
    assert await seen.xids() == ()


async def test_xids_since_the_last_call() -> None:
    """Each event is told once; one that came before the first look cannot be known."""
    nvml = FakeNvml(Card())
    seen = gpus(nvml)
    assert await seen.xids() == ()
    await seen.look()
    nvml.xids += [79, 48]
    assert await seen.xids() == (79, 48)
    assert await seen.xids() == ()


async def test_how_busy_they_are() -> None:
    """The mean of the engine's own; None where a card has no such figure, and without a driver."""
    cards = Card("GPU-a", busy=100), Card("GPU-b", busy=50), Card("GPU-c", busy=0)
    assert await gpus(FakeNvml(*cards), CUDA_VISIBLE_DEVICES="0,1").utilization() == pytest.approx(0.75)
    failing = FakeNvml(*cards, failing=frozenset({"nvmlDeviceGetUtilizationRates"}))
    assert await gpus(failing).utilization() is None
    assert await NvmlGpus({}, lambda: None).utilization() is None
