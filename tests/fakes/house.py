"""A supervisor in a house of fakes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio

from tests.fakes.client import FakeClient
from tests.fakes.engine import EngineScript, FakeEngine
from tests.fakes.launcher import FakeLauncher
from tests.fakes.observer import RecordingObserver
from vllm_supervisor.domain.messages import StartAsked
from vllm_supervisor.domain.model import Phase, Policy, State
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.ports import Observer
from vllm_supervisor.runtime.facts import Configured
from vllm_supervisor.runtime.outfit import Outfit
from vllm_supervisor.runtime.supervisor import Clock, Supervisor
from vllm_supervisor.runtime.work import NONE, Companions

EPOCH = 1_700_000_000.0
MODEL = "openai/gpt-oss-20b"
SPEC = EngineSpec(
    base_url="http://127.0.0.1:8000",
    health_path="/health",
    model=MODEL,
    aliases={"gpt-oss-20b": MODEL},
    api_key=None,
    warmup=True,
    probe_timeout=10.0,
    concurrency=32,
    timeout=600.0,
)


def wall() -> float:
    """Return a wall clock that goes with the virtual one."""
    return EPOCH + anyio.current_time()


@dataclass
class House:
    """A supervisor with everything around it faked."""

    launcher: FakeLauncher
    client: FakeClient
    observer: RecordingObserver
    supervisor: Supervisor
    status: int | None = None
    """What `run` returned."""
    _ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def state(self) -> State:
        return self.supervisor.state

    @property
    def phase(self) -> Phase:
        return self.supervisor.state.phase

    @property
    def engine(self) -> FakeEngine:
        return self.launcher.engine

    def accompany(self, companions: Companions) -> None:
        """Have these go with the engines to come."""
        wardrobe = self.supervisor._wardrobe
        wardrobe.outfit = replace(wardrobe.outfit, companions=companions)

    def running(self) -> dict[str, int]:
        """Return the calls in progress, of all the fakes."""
        return self.launcher.running() | self.client.calls.running()

    async def until(self, *phases: Phase, within: float = 1000.0) -> None:
        """Wait until one of `phases` is entered, if it does not last already."""
        await self.observer.until(lambda: self.phase in phases, within)

    async def a_moment(self) -> None:
        """Let the loop finish the step that it is in, and what follows from it at once."""
        await anyio.sleep(0.001)

    async def started(self) -> FakeEngine:
        """Start, and return the engine once it is ready."""
        self.supervisor.post(StartAsked())
        await self.until(Phase.READY)
        return self.engine

    async def ended(self, within: float = 1000.0) -> int:
        """Wait for `run` to return, and return what it did."""
        with anyio.fail_after(within):
            await self._ended.wait()
        assert self.status is not None
        return self.status

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Run the supervisor meanwhile. Afterwards no call of any fake may be in progress."""

        async def run() -> None:
            self.status = await self.supervisor.run()
            self._ended.set()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                yield
                group.cancel_scope.cancel()
        except BaseExceptionGroup as failures:
            # A failed assertion reads better by itself.
            raise (failures.exceptions[0] if len(failures.exceptions) == 1 else failures) from None
        assert self.running() == {}
        assert self.launcher.violations == []


def build(
    *scripts: EngineScript,
    policy: Policy | None = None,
    spec: EngineSpec = SPEC,
    u: Callable[[], float] = lambda: 0.5,
    last_generation: int = 0,
    more: tuple[Observer, ...] = (),
    companions: Companions = NONE,
    config: Configured | None = None,
) -> House:
    """Build a house. `more` observers are told after the house's own."""
    launcher = FakeLauncher(*scripts)
    client = FakeClient(launcher, spec.model)
    observer = RecordingObserver()
    supervisor = Supervisor(
        Outfit(launcher, client, spec, companions),
        policy or Policy(),
        (observer, *more),
        Clock(anyio.current_time, wall, u),
        last_generation=last_generation,
        config=config,
    )
    return House(launcher, client, observer, supervisor)
