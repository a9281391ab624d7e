"""A launcher that makes fake engines, and refuses as told."""

import anyio

from tests.fakes.engine import Calls, EngineScript, FakeEngine
from vllm_supervisor.domain.model import Blocker


class FakeLauncher:
    """Implements `ports.Launcher`. Each launch takes the next of `scripts`; the last one serves for all that follow.

    Two engines alive at once, or a generation used twice, are kept in `violations`: an exception would be tried again.
    """

    def __init__(self, *scripts: EngineScript) -> None:
        self.scripts = list(scripts) or [EngineScript()]
        self.calls = Calls()
        self.engines: list[FakeEngine] = []
        self.blockers: list[Blocker] = []
        """What stands in the way, one a check; an empty list clears the way."""
        self.blocked_by: Blocker | None = None
        """What stands in the way for as long as it is set."""
        self.left: FakeEngine | None = None
        self.forgotten: list[int] = []
        self.violations: list[str] = []

    @property
    def engine(self) -> FakeEngine:
        """The engine launched last."""
        return self.engines[-1]

    @property
    def alive(self) -> list[FakeEngine]:
        """The engines with a living member."""
        return [engine for engine in self.engines if not engine.gone]

    async def check(self) -> Blocker | None:
        async with self.calls.call("check"):
            return self.blockers.pop(0) if self.blockers else self.blocked_by

    async def spawn(self, generation: int) -> FakeEngine:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(self.calls.takes.get("spawn", 0.0))
        with self.calls.now("spawn"):
            before = [*self.engines, *([self.left] if self.left else [])]
            self.violations += [
                f"{engine} lives while {generation} is launched" for engine in before if not engine.gone
            ]
            self.violations += [
                f"{engine} came before {generation}" for engine in before if engine.generation >= generation
            ]
            script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
            engine = FakeEngine(generation, 1000 * generation, script)
            self.engines.append(engine)
            return engine

    async def leftover(self) -> FakeEngine | None:
        async with self.calls.call("leftover"):
            return self.left

    def forget(self, generation: int) -> None:
        with self.calls.now("forget"):
            self.forgotten.append(generation)

    def running(self) -> dict[str, int]:
        """Return the calls in progress, the engines' included."""
        found = self.calls.running()
        for engine in (*self.engines, *([self.left] if self.left else [])):
            for name, count in engine.calls.running().items():
                found[name] = found.get(name, 0) + count
        return found
