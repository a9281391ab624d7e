"""The series of vLLM 0.32 that anybody here reads, in Prometheus' text format, under vLLM's names and labels."""

import bisect
import threading
import time
from collections.abc import Iterable
from typing import Protocol

from vllm_supervisor.simulator.link import Message

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FIRST = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FINISHED = ("stop", "length", "abort", "error", "repetition")


class Finished(Protocol):
    """A request that ended, as far as the histograms care."""

    prompt: int
    tokens: int
    submitted: float
    first_at: float | None


class Histogram:
    """Counts of observations by upper bound."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, labels: str) -> Iterable[str]:
        """Yield the samples."""
        total = 0
        for bound, count in zip((*(f"{float(b)}" for b in self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{engine="0",le="{bound}",{labels}}} {float(total)}'
        yield f'{self.name}_count{{engine="0",{labels}}} {float(total)}'
        yield f'{self.name}_sum{{engine="0",{labels}}} {self._sum}'


class Metrics:
    """What the API server knows. The engine's figures move only with its messages: they stand still when it does."""

    def __init__(self, model_name: str, *, block_size: int, kv_tokens: int, max_model_len: int, engine: bool) -> None:
        self._labels = f'model_name="{model_name}"'
        self._engine = engine
        self._block_size = block_size
        self._kv_tokens = kv_tokens
        self._max_model_len = max_model_len
        self._lock = threading.Lock()
        self._created = time.time()
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.asleep = False
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._success = dict.fromkeys(FINISHED, 0)
        self._requests: dict[tuple[str, str, str], int] = {}
        self._iteration = Histogram(
            "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP
        )
        self._prompt = Histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", _TOKENS)
        self._generated = Histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", _TOKENS)
        self._first = Histogram(
            "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST
        )
        self._between = Histogram(
            "vllm:request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            _BETWEEN,
        )
        self._whole = Histogram(
            "vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _WHOLE
        )

    def stepped(self, message: Message, now: float) -> None:
        """Take over what the engine reported."""
        del now
        with self._lock:
            self.running = message["running"]
            self.waiting = message["waiting"]
            self.kv_usage = message["kv"]
            self.preemptions = message["preemptions"]
            if not message["stepped"]:
                return
            generated = len(message["outputs"])
            self.prompt_tokens += message["prompt_tokens"]
            self.generation_tokens += generated
            self._iteration.observe(message["prompt_tokens"] + generated)

    def finished(self, request: Finished, reason: str, now: float) -> None:
        """Count a request that the engine finished."""
        with self._lock:
            self._success[reason] += 1
            self._prompt.observe(request.prompt)
            self._generated.observe(request.tokens)
            self._whole.observe(now - request.submitted)
            if request.first_at is not None:
                self._first.observe(request.first_at - request.submitted)
                self._between.observe((now - request.first_at) / max(1, request.tokens - 1))

    def aborted(self) -> None:
        """Count a request whose client went away."""
        with self._lock:
            self._success["abort"] += 1

    def answered(self, handler: str, method: str, status: int) -> None:
        """Count an HTTP request; vLLM leaves out those for /health, /metrics, /load, /ping and /version."""
        with self._lock:
            key = (handler, method, f"{status // 100}xx")
            self._requests[key] = self._requests.get(key, 0) + 1

    def render(self) -> bytes:
        """Return the exposition."""
        with self._lock:
            parts = [*self._process_lines(), *(self._engine_lines() if self._engine else ()), *self._http_lines()]
        return ("\n".join(parts) + "\n").encode()

    def _process_lines(self) -> Iterable[str]:
        yield from _head(
            "process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds."
        )
        yield f"process_start_time_seconds {self._created}"

    def _engine_lines(self) -> Iterable[str]:
        labels = f'engine="0",{self._labels}'
        for name, value, text in (
            ("num_requests_running", self.running, "Number of requests in model execution batches."),
            ("num_requests_waiting", self.waiting, "Number of requests waiting to be processed."),
            ("kv_cache_usage_perc", self.kv_usage, "KV-cache usage. 1 means 100 percent usage."),
        ):
            yield from _head(f"vllm:{name}", "gauge", text)
            yield f"vllm:{name}{{{labels}}} {float(value)}"
        yield from _head("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
        yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {float(self.waiting)}'
        yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 0.0'
        yield from _head("vllm:engine_sleep_state", "gauge", "Engine sleep state; awake = 1 means engine is awake.")
        lasting = "weights_offloaded" if self.asleep else "awake"
        for state in ("awake", "weights_offloaded", "discard_all"):
            yield f'vllm:engine_sleep_state{{{labels},sleep_state="{state}"}} {float(state == lasting)}'
        for name, value, text in (
            ("num_preemptions", self.preemptions, "Cumulative number of preemption from the engine."),
            ("prompt_tokens", self.prompt_tokens, "Number of prefill tokens processed."),
            ("generation_tokens", self.generation_tokens, "Number of generation tokens processed."),
        ):
            yield from self._counter(f"vllm:{name}", text, [(labels, value)])
        yield from self._counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            [(f'engine="0",finished_reason="{reason}",{self._labels}', n) for reason, n in self._success.items()],
        )
        for histogram in (self._iteration, self._prompt, self._generated, self._first, self._between, self._whole):
            yield from _head(histogram.name, "histogram", histogram.text)
            yield from histogram.lines(self._labels)
        yield from self._cache_lines()

    def _cache_lines(self) -> Iterable[str]:
        # Without model_name, as vLLM has it (measured, 0.32).
        info = {
            "block_size": self._block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": True,
            "engine": 0,
            "gpu_memory_utilization": 0.92,
            "kv_cache_max_concurrency": self._kv_tokens / self._max_model_len,
            "kv_cache_size_tokens": self._kv_tokens,
            "num_cpu_blocks": None,
            "num_gpu_blocks": self._kv_tokens // self._block_size,
            "num_gpu_blocks_override": None,
        }
        yield from _head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        labels = ",".join(f'{key}="{value}"' for key, value in info.items())
        yield f"vllm:cache_config_info{{{labels}}} 1.0"

    def _http_lines(self) -> Iterable[str]:
        if self._requests:
            yield from self._counter(
                "http_requests",
                "Total number of requests by method, status and handler.",
                [(f'handler="{h}",method="{m}",status="{s}"', n) for (h, m, s), n in self._requests.items()],
            )

    def _counter(self, name: str, text: str, samples: list[tuple[str, int]]) -> Iterable[str]:
        """Yield a counter, and beside it the time of its creation, as prometheus_client does."""
        yield from _head(f"{name}_total", "counter", text)
        for labels, value in samples:
            yield f"{name}_total{{{labels}}} {float(value)}"
        yield from _head(f"{name}_created", "gauge", text)
        for labels, _ in samples:
            yield f"{name}_created{{{labels}}} {self._created}"


def _head(name: str, kind: str, text: str) -> Iterable[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
