"""What the daemon asks an engine, on the simulator and on real vLLM: the same answers, so that neither drifts."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from tests.ports import free_port
from vllm_supervisor.adapters.engine_http import HttpEngineClient
from vllm_supervisor.domain.engine import EngineMetrics, ProbeResult, Warmup, moved
from vllm_supervisor.domain.model import Outcome
from vllm_supervisor.domain.secret import Secret
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.ports import EngineClient

KEY = "contract-key"
START_DEADLINE = 600.0
"""Seconds. Real vLLM on a CPU is ready in 25 to 60; the simulator in 1."""
T = TypeVar("T")


@dataclass
class Served:
    """A running engine, and what its health was on the way to ready."""

    url: str
    on_the_way: list[Outcome] = field(default_factory=list)

    def ask(
        self,
        question: Callable[[EngineClient], Awaitable[T]],
        *,
        key: str | None = KEY,
        rungs: tuple[str, ...] | None = None,
        canary: str = "auto",
    ) -> T:
        """Put one question on a loop of its own."""
        spec = EngineSpec(
            base_url=self.url,
            health_path="/health",
            model="tiny",
            aliases={},
            api_key=Secret(key) if key else None,
            warmup=True,
            probe_timeout=30.0,
            concurrency=1,
            timeout=600.0,
            canary=canary,
        )

        async def asked() -> T:
            client = HttpEngineClient(spec, rungs) if rungs else HttpEngineClient(spec)
            try:
                return await question(client)
            finally:
                await client.aclose()

        return asyncio.run(asked())


def _command(target: str) -> list[str]:
    if target == "simulator":
        return [sys.executable, "-m", "vllm_supervisor.simulator", "serve", "sim/tiny-llama"]
    binary, model = os.environ.get("VLLM_BIN"), os.environ.get("VLLM_TINY_MODEL")
    if not binary or not model:
        pytest.skip("VLLM_BIN and VLLM_TINY_MODEL are not set: no real vLLM to ask")
    return [binary, "serve", model]


@pytest.fixture(
    scope="session",
    params=["simulator", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(START_DEADLINE + 100)])],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Launch once for all tests; end every process of it."""
    port = free_port()
    command = [
        *_command(request.param),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny", "second"),
        *("--enforce-eager", "--dtype", "float32", "--max-model-len", "1024"),
    ]
    environ = os.environ | {
        "VLLM_API_KEY": KEY,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "SIM_LOAD_SECONDS": "0.3",
        "SIM_MAX_SECONDS": "300",
    }
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with log.open("wb") as output:
        leader = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        engine = Served(f"http://127.0.0.1:{port}")
        _wait_ready(engine, leader, log)
        yield engine
    finally:
        _end(leader)


def _wait_ready(engine: Served, leader: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE
    while True:
        outcome = engine.ask(lambda client: client.health()).outcome
        engine.on_the_way.append(outcome)
        if outcome is Outcome.OK:
            return
        if leader.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"not ready, exit status {leader.poll()}:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.05)


def _end(leader: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        leader.wait(15)
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait(15)


def test_refused_until_ready(served: Served) -> None:
    """Before it can serve, an engine refuses connections, and does nothing else that could be taken for an answer."""
    assert set(served.on_the_way[:-1]) == {Outcome.REFUSED}


def test_health(served: Served) -> None:
    """A healthy engine answers 200."""
    result = served.ask(lambda client: client.health())
    assert (result.outcome, result.status, result.detail) == (Outcome.OK, 200, "")


def test_models(served: Served) -> None:
    """Every served name is listed, with the length that was asked for."""
    models = served.ask(lambda client: client.models())
    assert (models.names, models.max_model_len, models.detail) == (("tiny", "second"), 1024, "")


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_missing_or_wrong_key_is_told_apart(served: Served, key: str | None) -> None:
    """Models and warm-up say that it is the key; health and metrics need none."""
    models = served.ask(lambda client: client.models(), key=key)
    assert (models.names, models.status) == (None, 401)
    warmup = served.ask(lambda client: client.warm_up(), key=key)
    assert (warmup.result, warmup.rung) == (Warmup.UNAUTHORIZED, "completions")
    assert served.ask(lambda client: client.health(), key=key).outcome is Outcome.OK
    assert served.ask(lambda client: client.metrics(), key=key) is not None


@pytest.mark.parametrize("rungs", [None, ("chat",), ("embeddings", "chat")])
def test_warm_up_has_a_token_made(served: Served, rungs: tuple[str, ...] | None) -> None:
    """A model that generates serves completions and chat; a rung that does not apply is passed over."""
    warmup = served.ask(lambda client: client.warm_up(), rungs=rungs)
    assert (warmup.result, warmup.rung, warmup.detail) == (Warmup.SERVED, rungs[-1] if rungs else "completions", "")
    assert warmup.latency > 0


def test_rungs_that_do_not_apply(served: Served) -> None:
    """A model that generates embeds nothing, and says so with a status that the ladder knows."""
    warmup = served.ask(lambda client: client.warm_up(), rungs=("embeddings", "pooling"))
    assert warmup.result is Warmup.UNSUPPORTED, warmup
    assert "embeddings: HTTP 4" in warmup.detail


def test_metrics_of_an_idle_engine(served: Served) -> None:
    """All figures that the daemon uses are there, under the first served name and rank 0."""
    metrics = served.ask(lambda client: client.metrics())
    assert metrics is not None
    assert (metrics.running, metrics.waiting, metrics.asleep) == (0, 0, False)
    assert metrics.kv_cache_usage == pytest.approx(0, abs=0.01)
    assert metrics.preemptions == 0
    assert metrics.kv_cache_tokens is not None
    assert metrics.kv_cache_tokens > 1024
    assert metrics.max_concurrency == pytest.approx(metrics.kv_cache_tokens / 1024, rel=0.01)
    assert set(metrics.counters) == {
        ("0", "vllm:iteration_tokens_total_count"),
        ("0", "vllm:generation_tokens_total"),
        ("0", "vllm:prompt_tokens_total"),
    }


def test_each_heartbeat_moves_with_a_request(served: Served) -> None:
    """One served token moves every heartbeat; an idle engine moves none."""

    async def around_a_request(client: EngineClient) -> tuple[EngineMetrics | None, ...]:
        first = await client.metrics()
        second = await client.metrics()
        assert (await client.warm_up()).result is Warmup.SERVED
        third = await client.metrics()
        deadline = time.monotonic() + 10
        while not moved(second, third) and time.monotonic() < deadline:
            third = await client.metrics()
        return first, second, third

    first, second, third = served.ask(around_a_request)
    assert not moved(first, second)
    assert first is not None
    assert third is not None
    assert all(third.counters[name] > value for name, value in first.counters.items())


def test_version(served: Served) -> None:
    """The version is a bare number."""
    version = served.ask(lambda client: client.version())
    assert version is not None
    assert version[0].isdigit()


@pytest.mark.parametrize("rung", ["auto", "completions", "chat"])
def test_a_canary_has_a_token_made(served: Served, rung: str) -> None:
    """By the rung that is configured, or the one that the warm-up found; its token is seen in the figures."""

    async def asked(client: EngineClient) -> tuple[ProbeResult, ProbeResult]:
        first = await client.canary()
        await client.warm_up()
        return first, await client.canary(rank="0")

    for result in served.ask(asked, canary=rung):
        assert (result.outcome, result.status, result.detail) == (Outcome.OK, 200, "")
        assert result.latency > 0


def test_a_canary_that_is_refused_says_so(served: Served) -> None:
    """A wrong key, and a rung that the model does not have: answers of the API server."""
    result = served.ask(lambda client: client.canary(), key="wrong")
    assert (result.outcome, result.status) == (Outcome.ERROR, 401)
    result = served.ask(lambda client: client.canary(), canary="embeddings")
    assert result.outcome is Outcome.ERROR
    assert result.status in (400, 404)


def test_load_is_0_where_it_is_not_tracked(served: Served) -> None:
    """Without `--enable-server-load-tracking`, vLLM answers all the same."""
    assert served.ask(lambda client: client.load()) == 0


def test_it_does_not_say_whether_it_is_suspended(served: Served) -> None:
    """Those endpoints exist only with VLLM_SERVER_DEV_MODE=1."""
    assert served.ask(lambda client: client.suspended()) is None


def test_a_scrape_says_what_came_of_it(served: Served) -> None:
    """The same figures as `metrics`, which are those of one rank."""
    scrape = served.ask(lambda client: client.scrape(30))
    assert scrape.outcome is Outcome.OK
    assert scrape.metrics is not None
    assert scrape.metrics.ranks == {"0"}
    assert scrape.metrics.gauges["0", "running"] == 0
    assert scrape.metrics.rejections in (0, None)
