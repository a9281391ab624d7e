"""Between engines: the wait for the GPUs, in virtual time."""

from dataclasses import replace

import anyio
import pytest

from tests.fakes.instruments import FakeInstruments
from vllm_supervisor.domain.model import BlockerKind
from vllm_supervisor.ports import Gpu, GpuHolder, Note
from vllm_supervisor.runtime.ground import LIMIT, Ground
from vllm_supervisor.runtime.tasks import Post

pytestmark = pytest.mark.anyio

GB = 1 << 30
CARD = Gpu(0, "NVIDIA H200", 1 * GB, 140 * GB)
OTHER = replace(CARD, index=1)
OURS = GpuHolder(4711, None, 70 * GB)
"""A process of the dead engine that the driver lists still."""
LIVING = replace(OURS, name="VLLM::Worker")


class Case:
    def __init__(self) -> None:
        self.tools = FakeInstruments()
        self.ground: Ground = self.tools.ground
        self.notes: list[Note] = []

    def post(self) -> Post:
        return lambda item: self.notes.append(item) if isinstance(item, Note) else None

    def see(self, *looks: tuple[Gpu, ...] | None) -> None:
        self.tools.gpus.seen = list(looks)

    async def lived(self, *alive: Gpu, before: tuple[Gpu, ...] = (CARD,)) -> None:
        """Let an engine begin on GPUs that looked like `before`, and be seen on `alive`."""
        self.see(before)
        assert await self.ground.clear(self.post()) is None
        self.see(alive)
        await self.ground.note(frozenset({4711, 4712}))

    async def waited(self) -> float:
        began = anyio.current_time()
        assert await self.ground.clear(self.post()) is None
        return anyio.current_time() - began


@pytest.fixture
def case() -> Case:
    return Case()


BUSY = replace(CARD, used=71 * GB, holders=(LIVING,))
FALLING = [(replace(CARD, used=used * GB),) for used in range(70, 1, -1)]


async def test_without_nvml_it_costs_nothing(case: Case) -> None:
    """No wait and no note, engine or not."""
    case.see(None)
    await case.ground.note(frozenset({4711}))
    assert await case.waited() == 0
    assert case.notes == []


async def test_a_first_launch_does_not_wait(case: Case) -> None:
    """Whatever else is on the cards: there was no engine of ours."""
    case.see((BUSY,))
    assert await case.waited() == 0
    assert case.notes == []


async def test_free_at_once(case: Case) -> None:
    """One look, and the wait was none."""
    await case.lived(BUSY)
    case.see((CARD,))
    assert await case.waited() == 0
    assert [note.fields for note in case.notes] == [{"seconds": 0.0}]


async def test_memory_that_falls_is_waited_for(case: Case) -> None:
    """A look four times a second, until it is as it was."""
    await case.lived(BUSY)
    case.see(*FALLING, (CARD,))
    assert await case.waited() == pytest.approx(len(FALLING) * 0.25)
    assert [note.kind for note in case.notes] == ["gpu_waited_for", "gpu_released"]
    assert case.notes[0].fields == {"held": ["0 (NVIDIA H200)"]}
    assert case.notes[1].fields["seconds"] == pytest.approx(len(FALLING) * 0.25)


async def test_memory_that_no_longer_falls_is_somebody_elses(case: Case) -> None:
    """Another's process took some meanwhile: two seconds tell, and vLLM itself says whether the rest does."""
    await case.lived(BUSY)
    case.see((replace(CARD, used=30 * GB, holders=(GpuHolder(99, "python3", 29 * GB),)),))
    assert await case.waited() == pytest.approx(2.0)


async def test_a_process_that_the_driver_still_lists(case: Case) -> None:
    """It is gone from the table of processes, and holds the memory still: at most a minute, then it is named."""
    await case.lived(BUSY)
    case.see((replace(CARD, used=71 * GB, holders=(OURS,)),))
    began = anyio.current_time()
    blocker = await case.ground.clear(case.post())
    assert anyio.current_time() - began == pytest.approx(LIMIT, abs=0.5)
    assert blocker is not None
    assert blocker.kind is BlockerKind.GPU
    for word in ("gpu_memory_not_free", "GPU 0 (NVIDIA H200)", "72704 of 143360 MiB", "pid 4711 (ended)"):
        assert word in blocker.why
    assert "gpu_memory_not_free" in blocker.remedy
    case.see((CARD,))
    assert await case.waited() == 0, "tried again after the backoff"


async def test_a_number_that_went_to_somebody_else(case: Case) -> None:
    """A living process under a pid of ours is not ours: it is no reason to wait for ever."""
    await case.lived(BUSY)
    case.see((replace(CARD, used=1 * GB, holders=(GpuHolder(4711, "other", GB),)),))
    assert await case.waited() == 0


async def test_only_the_gpus_that_it_used(case: Case) -> None:
    """Another card's memory is another's business; without knowing (a container), every card counts."""
    await case.lived(BUSY, OTHER, before=(CARD, OTHER))
    growing = replace(OTHER, used=100 * GB)
    case.see((CARD, growing))
    assert await case.waited() == 0

    unlisted = replace(BUSY, holders=())
    await case.lived(unlisted, OTHER, before=(CARD, OTHER))
    case.see((CARD, growing))
    assert await case.waited() == pytest.approx(2.0)


async def test_each_engine_is_waited_for_once(case: Case) -> None:
    """What is known of one engine is not held against the launch after the next."""
    await case.lived(BUSY)
    case.see((CARD,))
    await case.waited()
    case.see((BUSY,))
    assert await case.waited() == 0


async def test_a_driver_that_fails_meanwhile(case: Case) -> None:
    """Nothing is known then, and nothing is waited for."""
    await case.lived(BUSY)
    case.see((BUSY,), (BUSY,), None)
    assert await case.waited() == pytest.approx(0.5)


async def test_an_engine_on_other_cards_gives_back_first(case: Case) -> None:
    """After a change of what the engine uses, the launch waits for the cards of the one before, and once."""
    await case.lived(BUSY)
    others = FakeInstruments().gpus
    others.seen = [(OTHER,)]
    ground = Ground(others, before=case.ground)
    case.see((replace(CARD, used=71 * GB, holders=(OURS,)),))
    blocker = await ground.clear(case.post())
    assert blocker is not None
    assert "pid 4711 (ended)" in blocker.why
    case.see((CARD,))
    assert await ground.clear(case.post()) is None
    looks = len(case.tools.calls.times("gpus"))
    assert await ground.clear(case.post()) is None
    assert len(case.tools.calls.times("gpus")) == looks


async def test_what_is_remembered_of_the_processes_is_bounded(case: Case) -> None:
    """An engine that forks without end fills no memory; the cards that it uses are noted all the same."""
    await case.lived(BUSY, before=(CARD, OTHER))
    await case.ground.note(frozenset(range(10_000, 20_000)))
    known = len(case.ground._pids)
    late = replace(OTHER, used=71 * GB, holders=(replace(LIVING, pid=20_000),))
    case.see((CARD, late))
    await case.ground.note(frozenset({20_000}))
    assert len(case.ground._pids) == known
    case.see((CARD, late), (CARD, late), (CARD, OTHER))
    assert await case.waited() == pytest.approx(0.5)
