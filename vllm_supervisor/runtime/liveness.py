"""The watch over a ready engine: looks at its figures, sends a canary when it is silent, condemns it when it is stuck.

It decides nothing itself: `domain.liveness` says what the observations amount to.
"""

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from vllm_supervisor.domain.engine import EngineMetrics, ProbeResult
from vllm_supervisor.domain.liveness import (
    Judgement,
    Limits,
    Liveness,
    answered,
    asked,
    begin,
    canary_deadline,
    canary_due,
    judge,
    load_due,
    loaded,
    looked,
    proof_due,
    rank_in_doubt,
    suspended,
)
from vllm_supervisor.domain.messages import Absolved, Condemned
from vllm_supervisor.domain.model import Cause, Outcome
from vllm_supervisor.ports import Engine, EngineClient, EvidenceCollector, Level, Note
from vllm_supervisor.runtime.facts import Looked, Watched
from vllm_supervisor.runtime.tasks import Post

EVIDENCE_TIMEOUT = 20.0
"""A collector that hangs as the engine does must not keep it alive."""
_SHORTEST_PAUSE = 0.05
"""Between two looks, whatever is due: a look costs the engine's API server some milliseconds."""

_TROUBLE = {
    Liveness.SUSPECT: Level.WARNING,
    Liveness.STUCK: Level.ERROR,
    Liveness.BLIND: Level.WARNING,
    Liveness.DEAD: Level.WARNING,
}
"""Verdicts that are worth telling. The others come and go with the load."""


class LivenessWatch:
    """`Companions.watch_liveness`: one call watches one engine.

    `now` is the daemon's monotonic clock. A look at `/metrics` may take `look_timeout` seconds, longer than a health
    probe: a saturated API server that is slow to write its figures must not be taken for a silent engine. `count` is
    told of each canary that ended, `seen` of each look, with the generation.
    """

    def __init__(
        self,
        client: EngineClient,
        limits: Limits,
        now: Callable[[], float],
        *,
        look_timeout: float,
        evidence: EvidenceCollector | None = None,
        count: Callable[[Outcome, float], None] | None = None,
        seen: Callable[[int, EngineMetrics | None], None] | None = None,
    ) -> None:
        self.client = client
        self.limits = limits
        self.now = now
        self.look_timeout = look_timeout
        self.evidence = evidence
        self.count = count
        self.seen = seen
        self.steps = 0
        """How often an engine was seen to step, ever."""

    def tune(self, limits: Limits, look_timeout: float) -> None:
        """Judge by other limits from now on. What was observed so far counts."""
        self.limits = limits
        self.look_timeout = look_timeout

    async def __call__(self, engine: Engine, post: Post) -> None:
        """Watch until cancelled: the machine decides what follows when the engine is condemned."""
        async with anyio.create_task_group() as group:
            await _Round(self, engine, post).run(group)


class _Round:
    """What is known of one engine while it is watched."""

    def __init__(self, watch: LivenessWatch, engine: Engine, post: Post) -> None:
        self._client = watch.client
        self._now = watch.now
        self._watch = watch
        self._engine = engine
        self._post = post
        self._series = begin(watch.now())
        self._stepped_at = self._series.stepped_at
        self._canary_scope = anyio.CancelScope()
        self._canary_seconds: float | None = None
        self._asks_suspended = True
        self._told: Liveness | None = None
        self._condemned = False
        """Still watched, because an engine that may not be restarted is left running."""

    @property
    def _limits(self) -> Limits:
        return self._watch.limits

    async def run(self, group: TaskGroup) -> None:
        while True:
            await self._look()
            judgement = self._judge()
            if self._condemned and judgement.verdict is not Liveness.STUCK:
                self._condemned = False
                self._post(Absolved(self._engine.generation))
            elif judgement.verdict is Liveness.STUCK and not self._condemned:
                self._condemned = await self._condemn(judgement.evidence)
            self._heed_canary(group)
            await anyio.sleep(self._pause())

    # --- observing

    async def _look(self) -> None:
        begun = self._now()
        scrape = await self._client.scrape(self._watch.look_timeout)
        self._post(Looked(self._engine.generation, scrape.metrics))
        if self._watch.seen is not None:
            self._watch.seen(self._engine.generation, scrape.metrics)
        if scrape.outcome is not Outcome.UNKNOWN:  # our own failure to ask says nothing
            self._series = looked(self._series, scrape, begun, self._now())
        if load_due(self._series, self._limits, self._now()):
            begun = self._now()
            load = await self._client.load()
            self._series = loaded(self._series, load, begun, self._now())
        if self._asks_suspended and self._now() - self._series.quiet_since >= self._limits.interval:
            paused = await self._client.suspended()
            self._asks_suspended = paused is not None
            self._series = suspended(self._series, self._now(), paused=bool(paused))

    def _heed_canary(self, group: TaskGroup) -> None:
        now = self._now()
        deadline = canary_deadline(self._series, self._limits)
        if deadline is not None and now >= deadline:
            self._canary_scope.cancel()
        due = canary_due(self._series, self._limits)
        if due is not None and now >= due:
            # Straight after a look: had anything moved meanwhile, it would not be due.
            self._series = asked(self._series, now)
            self._canary_scope = anyio.CancelScope()
            group.start_soon(self._ask, self._canary_scope, rank_in_doubt(self._series, self._limits))

    async def _ask(self, scope: anyio.CancelScope, rank: str | None) -> None:
        begun = self._now()
        result: ProbeResult | None = None
        with scope:
            result = await self._client.canary(rank)
        if result is None:
            seconds = self._now() - begun
            result = ProbeResult(Outcome.TIMEOUT, seconds, f"no answer within {seconds:.0f} s")
        self._series = answered(self._series, result, self._now())
        if result.outcome is Outcome.OK:
            self._canary_seconds = result.latency
        if self._watch.count is not None:
            self._watch.count(result.outcome, result.latency)

    def _pause(self) -> float:
        """Return the seconds until the next look: at each heartbeat, and at once when it could change the verdict."""
        now = self._now()
        times = [now + self._limits.heartbeat, canary_due(self._series, self._limits)]
        times += [canary_deadline(self._series, self._limits), proof_due(self._series, self._limits)]
        return max(_SHORTEST_PAUSE, min(at for at in times if at is not None and at > now) - now)

    # --- telling

    def _judge(self) -> Judgement:
        judgement = judge(self._series, self._limits, self._now())
        self._watch.steps += self._series.stepped_at != self._stepped_at
        self._stepped_at = self._series.stepped_at
        verdict, generation = judgement.verdict, self._engine.generation
        self._post(
            Watched(generation, verdict, judgement.evidence, self._series.stepped_at, self._canary_seconds),
        )
        self._tell(judgement)
        return judgement

    def _tell(self, judgement: Judgement) -> None:
        verdict, before = judgement.verdict, self._told
        if verdict is before or (verdict not in _TROUBLE and before is None):
            return
        if before is Liveness.BLIND and verdict not in _TROUBLE and self._series.refusals:
            # It still cannot be asked; it only happens to step.
            return
        self._told = verdict if verdict in _TROUBLE else None
        fields = {"verdict": verdict.value, "before": before.value if before else None, "detail": judgement.evidence}
        self._post(Note("liveness", _TROUBLE.get(verdict, Level.INFO), fields))

    async def _condemn(self, detail: str) -> bool:
        """Collect the evidence, then end the engine; False where it stepped after all, meanwhile."""
        if self._watch.evidence is not None:
            try:
                with anyio.move_on_after(EVIDENCE_TIMEOUT) as limit:
                    await self._watch.evidence.collect(self._engine, Cause.HANG, detail)
                if limit.cancelled_caught:
                    self._post(Note("evidence_incomplete", Level.WARNING, {"detail": "collecting it took too long"}))
            except Exception as error:  # noqa: BLE001 -- evidence is not worth an engine that hangs for ever
                self._post(Note("internal_error", Level.ERROR, {"where": "evidence", "error": repr(error)}))
            await self._look()
            if judge(self._series, self._limits, self._now()).verdict is not Liveness.STUCK:
                return False
        self._post(Condemned(self._engine.generation, Cause.HANG, detail))
        return True
