"""`advise --load`: makes the load itself, doubling it step by step, and says where to settle."""

import argparse
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from vllm_supervisor.adapters.engine_http import HttpEngineClient
from vllm_supervisor.adapters.loadgen import ClosedLoop, Seen, StreamClient
from vllm_supervisor.cli.client import Status, get_json
from vllm_supervisor.domain.advice import Sample, sample_of
from vllm_supervisor.domain.advice.ramp import Conclusion, Step, conclude, is_flat, measured, why_stop
from vllm_supervisor.domain.secret import Secret
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.errors import SupervisorError, first_of

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
"""Where neither given nor observed: a short question and a short answer."""
_FEWEST_OBSERVED = 8
"""Tokens of a mean answer; below, what was observed are our own canaries."""
_PROBE_TIMEOUT = 10.0
_QUIET = 1.0
"""Seconds in which an engine without foreign traffic makes no token."""
_CANARY_TOKENS = 4
_SETTLING = 0.25
"""The part of a step that is not measured: the batch changes."""
_LOOKS = 10
_PATIENCE = 3
"""How many times its length a step may take until each client had an answer."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the run may not exceed."""

    concurrency: int
    requests: int
    seconds: float
    step_seconds: float
    with_traffic: bool


@dataclass(slots=True)
class Run:
    """What a run brought, also one that was interrupted."""

    prompt_tokens: int
    output_tokens: int
    observed: bool
    steps: list[Step] = field(default_factory=list)
    stopped: str = ""
    interrupted: bool = False
    lost: str = ""
    """How the engine that was measured came to be gone."""

    @property
    def conclusion(self) -> Conclusion | None:
        """What the steps say; None where `why_none` does."""
        return None if self.why_none else conclude(self.steps)

    @property
    def why_none(self) -> str:
        """Why nothing can be concluded, else empty."""
        if self.lost:
            return self.lost
        count = sum(not step.spoiled and step.throughput > 0 for step in self.steps)
        if not count:
            return "no step was finished that counts"
        return "there is nothing to compare a single step with" if self.interrupted and count == 1 else ""


def load(args: argparse.Namespace, socket: str, tell: Callable[[Run], None]) -> Run:
    """Run the load against the daemon's engine. `tell` is told of the run at its beginning and after each step.

    Raises NoDaemonError; SupervisorError (1) for an engine that is not ready, has others' traffic, or refuses.
    """
    status = get_json(socket, "/v1/status")
    if not status.get("ready"):
        remedy = "wait until it serves (`vllm-supervisor wait`)"
        raise SupervisorError("advise --load", f"the engine is not ready but {status.get('state')}", remedy)
    bounds = Bounds(
        concurrency=args.max_concurrency or 256,
        requests=args.max_requests or 5000,
        seconds=args.max_seconds or 300.0,
        step_seconds=args.step_seconds or 10.0,
        with_traffic=args.with_traffic,
    )
    try:
        return anyio.run(_Load(socket, status, _key(args), bounds, (args.prompt_tokens, args.output_tokens), tell).run)
    except BaseExceptionGroup as failures:
        told = first_of(failures)
        if told is None:
            raise
        raise told from None


def _key(args: argparse.Namespace) -> str | None:
    """Return the engine's key: that of the configuration (-c), else the variable's."""
    if args.config:
        from vllm_supervisor.config.load import load as read  # noqa: PLC0415 - pydantic: only this way needs it

        key = read(Path(args.config), sets=args.set, environ=os.environ).settings.engine.vllm.api_key
        return key.get_secret_value() if key else None
    return os.environ.get("VLLM_API_KEY") or None


class _Load:
    """One run."""

    def __init__(
        self,
        socket: str,
        status: Status,
        key: str | None,
        bounds: Bounds,
        lengths: tuple[int | None, int | None],
        tell: Callable[[Run], None],
    ) -> None:
        base_url, model = str(status["base_url"]), str(status["model"])
        self._socket = socket
        self._generation = status.get("generation")
        self._bounds = bounds
        self._lengths = lengths
        self._tell = tell
        self._client = StreamClient(base_url, model, key)
        self._engine = HttpEngineClient(
            EngineSpec(
                base_url=base_url,
                health_path="/health",
                model=model,
                aliases={},
                api_key=Secret(key) if key else None,
                warmup=False,
                probe_timeout=_PROBE_TIMEOUT,
                concurrency=1,
                timeout=_PROBE_TIMEOUT,
            )
        )

    async def run(self) -> Run:
        """Prepare, double, stop."""
        try:
            await self._refuse_traffic()
            run = await self._prepare()
            self._tell(run)
            async with anyio.create_task_group() as group:
                group.start_soon(self._heed_signals, run, group)
                with anyio.move_on_after(self._bounds.seconds) as limit:
                    await self._double(run, group)
                if limit.cancelled_caught:
                    run.stopped = f"{self._bounds.seconds:g} s have passed (--max-seconds)"
                group.cancel_scope.cancel()
            run.lost = run.lost or await self._loss()
            return run
        finally:
            with anyio.CancelScope(shield=True):
                await self._client.aclose()
                await self._engine.aclose()

    async def _heed_signals(self, run: Run, group: TaskGroup) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                run.interrupted, run.stopped = True, "interrupted"
                group.cancel_scope.cancel()
                return

    # --- before

    async def _refuse_traffic(self) -> None:
        before = await self._look()
        await anyio.sleep(_QUIET)
        after = await self._look()
        if before is None or after is None:
            why = "the engine's figures cannot be read, or it shows none"
            raise SupervisorError("advise --load", why, "start it without --disable-log-stats")
        tokens = (after.generation_tokens or 0.0) - (before.generation_tokens or 0.0)
        if self._bounds.with_traffic or (max(before.in_flight, after.in_flight) < 1 and tokens <= _CANARY_TOKENS):
            return
        why = f"the engine works for others: {after.in_flight:.0f} requests, {tokens:.0f} tokens in {_QUIET:g} s"
        raise SupervisorError("advise --load", why, "try again when it is idle, or share it with --with-traffic")

    async def _prepare(self) -> Run:
        """Find out the lengths, and see that the engine serves such a request. Raises SupervisorError."""
        metrics = await self._engine.metrics()
        prompts, outputs = (metrics.prompt_lengths, metrics.output_lengths) if metrics else (None, None)
        observed = bool(prompts and outputs and outputs.count and outputs.total / outputs.count >= _FEWEST_OBSERVED)
        lengths = [PROMPT_TOKENS, OUTPUT_TOKENS]
        if observed and prompts and outputs:
            lengths = [max(1, round(tally.total / max(1.0, tally.count))) for tally in (prompts, outputs)]
        room = (await self._engine.models()).max_model_len
        if room is not None and self._lengths == (None, None):
            lengths = [min(lengths[0], max(1, room // 2)), min(lengths[1], max(1, room // 4))]
        prompt, output = (given or length for given, length in zip(self._lengths, lengths, strict=True))
        if room is not None and prompt + output > room:
            why = f"{prompt} + {output} tokens are more than the engine's {room}"
            raise SupervisorError("advise --load", why, "give smaller --prompt-tokens and --output-tokens")
        seen = Seen()
        if not await self._client.ask(prompt, output, lambda: seen):
            raise SupervisorError("advise --load", *_refused(seen.failures[0]))
        return Run(prompt, output, observed and self._lengths == (None, None))

    # --- the run

    async def _double(self, run: Run, group: TaskGroup) -> None:
        loop = ClosedLoop(group, self._client, (run.prompt_tokens, run.output_tokens), self._bounds.requests)
        concurrency = 1
        while True:
            step = await self._step(loop, concurrency)
            before = run.steps[-1] if run.steps else None
            if is_flat(step, before) and not step.failed and not loop.spent:
                # What else runs on the host may have held up one step: the better of two counts.
                again = await self._step(loop, concurrency)
                step = max(step, again, key=lambda tried: (not tried.foreign, tried.throughput))
            run.lost = await self._loss()
            if run.lost or (step.foreign and not self._bounds.with_traffic):
                step = replace(step, spoiled=True)
            run.steps.append(step)
            self._tell(run)
            run.stopped = run.lost or self._why_end(loop, step, before) or ""
            if run.stopped:
                return
            concurrency = min(2 * concurrency, self._bounds.concurrency)

    def _why_end(self, loop: ClosedLoop, step: Step, before: Step | None) -> str | None:
        if step.spoiled:
            return "others' requests came in between (--with-traffic goes on all the same)"
        if (why := why_stop(step, before)) is not None:
            return why
        if loop.spent:
            return f"{self._bounds.requests} requests were sent (--max-requests)"
        if step.concurrency >= self._bounds.concurrency:
            return f"{step.concurrency} at once were tried (--max-concurrency)"
        return None

    async def _loss(self) -> str:
        """Say how the engine that is measured came to be gone; empty while it is there."""
        try:
            status = await to_thread.run_sync(get_json, self._socket, "/v1/status")
        except SupervisorError:
            return "the daemon went away during the run"
        generation, state = status.get("generation"), status.get("state")
        if generation != self._generation:
            return f"the engine was restarted during the run (generation {self._generation}, now {generation})"
        # Unhealthy may be what our load makes of an engine that still works.
        return "" if state in ("ready", "unhealthy") else f"the engine went away during the run: it is {state}"

    async def _step(self, loop: ClosedLoop, concurrency: int) -> Step:
        """Hold one concurrency, for as long as it takes each client to have had an answer."""
        length = self._bounds.step_seconds
        seen, began = loop.raise_to(concurrency), time.monotonic()
        await anyio.sleep(_SETTLING * length)
        settled = time.monotonic()
        looks: list[Sample] = []
        while True:
            look = await self._look()
            looks += [look] if look else []
            passed = time.monotonic() - began
            enough = seen.finished >= concurrency or bool(seen.failures) or loop.spent
            if passed >= _PATIENCE * length or (passed >= length and enough):
                break
            await anyio.sleep(length / _LOOKS)
        gaps = [seconds for at, seconds in seen.between if at >= settled]
        tokens = len(gaps) + sum(at >= settled for at, _ in seen.first)
        return measured(
            concurrency,
            looks,
            tokens / max(time.monotonic() - settled, 1e-9),
            first_token=[seconds for _, seconds in seen.first],
            between_tokens=gaps,
            requests=seen.finished,
            failures=seen.failures,
        )

    async def _look(self) -> Sample | None:
        return sample_of((await self._engine.scrape(_PROBE_TIMEOUT)).metrics, time.monotonic())


def _refused(failure: str) -> tuple[str, str]:
    """Return why the first request failed, and what to do."""
    if failure.startswith(("HTTP 401", "HTTP 403")):
        return "the engine refuses the key", "name the configuration with -c, or set VLLM_API_KEY"
    if failure.startswith(("HTTP 404", "HTTP 400", "HTTP 405")):
        return f"the engine makes no such completion: {failure}", "only models that generate text can be loaded"
    return f"the first request failed: {failure}", "see `vllm-supervisor logs`"
