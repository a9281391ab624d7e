"""Keeps what the looks at a ready engine showed, and says what it amounts to: in the status, the metric, the command.

It asks nothing by itself: the liveness watch looks, and a command that wants more has it look again.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from vllm_supervisor.domain.advice import WINDOW, Advice, Sample, Setting, Verdict, advise, sample_of
from vllm_supervisor.domain.advice.sample import risen
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.ports import EngineClient

KEPT = 720
"""Samples: an hour at a look every five seconds, about 400 bytes each."""
ENOUGH = 6
"""Samples in a stretch that judge it."""
LOOK_TIMEOUT = 5.0
"""Seconds for a look that a command waits for."""
_SHORTEST = 0.25
_LONGEST = 5.0
_STALE = 30.0
"""Seconds after which the last sample tells nothing of now."""

Json = dict[str, object]


class Advisor:
    """Takes looks (`see`), answers the status (`told`), the metric (`recommended`) and the command (`ask`).

    Each names the generation that it is about: none is judged by the figures of the one before, although what those
    showed of throughput over concurrency stays known. An advisor belongs to one configuration of the engine.
    `now` is the daemon's monotonic clock. `busy` tells how busy the GPUs are, 0..1; it is asked for a command alone.
    """

    def __init__(
        self,
        client: EngineClient,
        setting: Setting,
        now: Callable[[], float],
        busy: Callable[[], Awaitable[float | None]] | None = None,
    ) -> None:
        self._client = client
        self._setting = setting
        self._now = now
        self._busy = busy
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._generation: int | None = None
        self._judged: tuple[float, Advice | None] = (-1.0, None)
        self._recommended: int | None = None

    def tune(self, setting: Setting) -> None:
        """Go by what clients are told from now on; what is known of the engine stays."""
        self._setting = replace(
            self._setting,
            concurrency=setting.concurrency,
            configured=setting.configured,
            max_concurrent_jobs=setting.max_concurrent_jobs,
        )
        self._judged = (-1.0, None)

    def see(self, generation: int, metrics: EngineMetrics | None, gpu: float | None = None) -> None:
        """Take in a look; one that failed, shows no requests, or comes late for its engine, adds nothing."""
        self._turn_to(generation)
        if generation != self._generation:
            return
        sample = sample_of(metrics, self._now(), generation)
        if sample is None or metrics is None:
            return
        self._samples.append(sample if gpu is None else replace(sample, gpu=gpu))
        if metrics.kv_cache_tokens or metrics.max_concurrency:
            self._setting = replace(
                self._setting, kv_tokens=metrics.kv_cache_tokens, max_concurrency=metrics.max_concurrency
            )

    def told(self, generation: int) -> Json | None:
        """Return the advice in brief, None where there is nothing to go by."""
        self._turn_to(generation)
        advice = self._advice()
        if advice is None:
            return None
        whole = advice.as_json()
        names = ("verdict", "reason", "confidence", "current_concurrency", "target_concurrency", "target_trusted")
        return {name: whole[name] for name in (*names, "headline")}

    def recommended(self, generation: int) -> int:
        """Return how many requests to keep in flight: what the last trusted advice said, else what is configured."""
        self._turn_to(generation)
        self._advice()
        return self._recommended or self._setting.concurrency or 0

    async def ask(self, generation: Callable[[], int], window: float | None, concurrency: int | None) -> Json:
        """Return the whole advice over the last `window` seconds, and what there is now.

        Where these were not looked at often enough, the engine is looked at for so long (without a `window`, until a
        few samples are there) before the answer. `generation` tells the present one: it may change meanwhile.
        """
        asked = generation()
        await self._look(generation)
        seconds = window or WINDOW
        pause = min(_LONGEST, max(_SHORTEST, seconds / (2 * ENOUGH))) if window else 1.0
        end = self._now() + seconds
        while generation() == asked and not self._covered(window) and self._now() < end:
            await anyio.sleep(pause)
            await self._look(generation)
        setting = self._setting
        if concurrency is not None:
            setting = replace(setting, concurrency=concurrency, said=True)
        advice = advise(self._current(), setting, window=seconds) if generation() == asked else None
        why = None if advice else "the engine's figures could not be read, or it shows none (--disable-log-stats)"
        if generation() != asked:
            why = "the engine was restarted meanwhile"
        return {"advice": advice.as_json() if advice else None, "why": why, "now": self._latest()}

    async def _look(self, generation: Callable[[], int]) -> None:
        asked = generation()
        metrics = (await self._client.scrape(LOOK_TIMEOUT)).metrics
        busy = await self._busy() if self._busy is not None else None
        if generation() == asked:
            self.see(asked, metrics, busy)

    def _turn_to(self, generation: int) -> None:
        """Forget what was known of an engine before, but for its samples: this one may have another KV cache."""
        if self._generation is not None and generation > self._generation:
            self._setting = replace(self._setting, kv_tokens=None, max_concurrency=None)
            self._judged = (-1.0, None)
            self._recommended = None
        self._generation = max(generation, self._generation or 0)

    def _covered(self, window: float | None) -> bool:
        """Say whether the stretch was looked at for long and often enough."""
        seconds = window or WINDOW
        began = self._now() - seconds
        part = [sample.at for sample in self._samples if sample.generation == self._generation and sample.at >= began]
        if len(part) < ENOUGH:
            return False
        return window is None or part[0] - began <= min(_LONGEST, seconds / ENOUGH)

    def _current(self) -> list[Sample]:
        """Return the samples, unless the last of them is too old to tell of now, or of an engine before."""
        samples = list(self._samples)
        return samples if samples and self._tells_of_now(samples[-1]) else []

    def _tells_of_now(self, sample: Sample) -> bool:
        return sample.generation == self._generation and self._now() - sample.at <= _STALE

    def _advice(self) -> Advice | None:
        """Return the advice on the last minute; it is the same until another look."""
        samples = self._samples
        if not samples or not self._tells_of_now(samples[-1]):
            return None
        if self._judged[0] != samples[-1].at:
            advice = advise(tuple(samples), self._setting)
            self._judged = (samples[-1].at, advice)
            if advice is not None and advice.target.trusted and advice.verdict is not Verdict.NO_LOAD:
                self._recommended = advice.target.value
        return self._judged[1]

    def _latest(self) -> Json | None:
        """Return the last sample, and the pace since the one before."""
        last = self._samples[-1] if self._samples else None
        if last is None or last.generation != self._generation:
            return None
        before = self._samples[-2] if len(self._samples) > 1 else last
        if before.generation != last.generation:
            before = last
        made = risen([before.generation_tokens, last.generation_tokens])
        passed = last.at - before.at
        return {
            "running": last.running,
            "waiting": last.waiting,
            "kv_cache_usage": last.kv,
            "generation_tokens_per_s": round(made / passed, 1) if made is not None and passed > 0 else None,
        }
