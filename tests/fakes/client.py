"""A client whose answers follow the fake engine, unless a test says otherwise."""

import math
from dataclasses import replace

import anyio

from tests.fakes.engine import Calls
from tests.fakes.launcher import FakeLauncher
from vllm_supervisor.domain.engine import EngineMetrics, ModelList, ProbeResult, Scrape, Warmup, WarmupResult
from vllm_supervisor.domain.model import Outcome
from vllm_supervisor.domain.spec import EngineSpec

SERVED = WarmupResult(Warmup.SERVED, 0.2, "completions")


class FakeClient:
    """Implements `ports.EngineClient`. An attribute ending in `_is` replaces what the engine would answer."""

    def __init__(self, launcher: FakeLauncher, model: str) -> None:
        self._launcher = launcher
        self.calls = Calls()
        self.spec: EngineSpec | None = None
        """What it was last adapted to."""
        self.health_is: Outcome | None = None
        self.models_is: ModelList = ModelList((model,))
        self.warm_up_is: WarmupResult = SERVED
        self.metrics_is: EngineMetrics | None = EngineMetrics(running=0, waiting=0)
        self.metrics_next: list[EngineMetrics | None] = []
        """What the next looks find, one each, before `metrics_is`."""
        self.version_is: str | None = "0.32.0"
        self.stepping = False
        """The counters move with time, as those of a busy engine do."""
        self.scrape_is: Outcome | None = None
        self.canary_is: ProbeResult | None = None
        """None: the engine serves it, unless it is `frozen`."""
        self.canary_ranks: list[str | None] = []
        self.frozen = False
        """Neither canaries nor questions about pauses are answered, and the figures stay as they are."""
        self.load_is: int | None = 0
        self.suspended_is: bool | None = None

    def adapt(self, spec: EngineSpec) -> None:
        self.spec = spec

    async def health(self) -> ProbeResult:
        async with self.calls.call("health"):
            engines = self._launcher.alive
            outcome = Outcome.OK if engines and engines[-1].healthy else Outcome.REFUSED
            outcome = self.health_is or outcome
            return ProbeResult(outcome, 0.003, "" if outcome is Outcome.OK else f"health: {outcome.value}")

    async def models(self) -> ModelList:
        async with self.calls.call("models"):
            return self.models_is

    async def warm_up(self) -> WarmupResult:
        async with self.calls.call("warm_up"):
            return self.warm_up_is

    async def metrics(self) -> EngineMetrics | None:
        async with self.calls.call("metrics"):
            if self.metrics_next:
                return self.metrics_next.pop(0)
            if self.metrics_is is None or not self.stepping:
                return self.metrics_is
            steps = float(len(self.calls.times("metrics")))
            return EngineMetrics(running=1, waiting=0, counters={("0", "vllm:generation_tokens_total"): steps})

    async def scrape(self, seconds: float) -> Scrape:
        async with self.calls.call("scrape"):
            if self.scrape_is is not None:
                return Scrape(self.scrape_is, detail=f"scrape: {self.scrape_is.value}")
            if self.metrics_is is None:
                return Scrape(Outcome.ERROR, detail="HTTP 404")
            if not self.stepping or self.frozen:
                return Scrape(Outcome.OK, self.metrics_is)
            steps = float(len(self.calls.times("scrape")))
            return Scrape(Outcome.OK, replace(self.metrics_is, counters={("0", "vllm:generation_tokens_total"): steps}))

    async def canary(self, rank: str | None = None) -> ProbeResult:
        self.canary_ranks.append(rank)
        async with self.calls.call("canary"):
            if self.canary_is is not None:
                return self.canary_is
            if self.frozen:
                await anyio.sleep(math.inf)
            return ProbeResult(Outcome.OK, 0.2, status=200)

    async def load(self) -> int | None:
        async with self.calls.call("load"):
            return self.load_is

    async def suspended(self) -> bool | None:
        async with self.calls.call("suspended"):
            return self.suspended_is

    async def version(self) -> str | None:
        async with self.calls.call("version"):
            return self.version_is
