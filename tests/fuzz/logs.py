"""Logs as fuzzers write them: real lines, bent ones, any bytes, and cuts anywhere."""

from hypothesis import settings
from hypothesis import strategies as st

from tests.domain.diagnosis.snippets import HEALTHY, SNIPPETS

SOME = settings(max_examples=settings.default.max_examples // 4 if settings.default else 100)
"""Fewer examples than of what is quick: `make test` has seconds for all of them."""

_LINES = sorted({line for snippet in SNIPPETS for line in snippet.text.splitlines()})
_HEALTHY = sorted({line for text in HEALTHY.values() for line in text.splitlines()})
_NUMBERS = ("0", "-1", "1e400", "9" * 400, "9" * 5000, "1.2.3", ".", "٣", "inf")
_WITH_NUMBERS = (
    "Loading safetensors checkpoint shards:  {0}% Completed | {1}/{0} [00:01<00:02, 1.2it/s]",
    "Available KV cache memory: {0} GiB",
    "GPU KV cache size: {0} tokens",
    "Maximum concurrency for {0} tokens per request: {1}x",
    "Model loading took {0} GiB and {1} seconds",
    "init engine (profile, create kv cache, warmup model) took {0} seconds",
    (
        "INFO 09-02 08:03:11 [loggers.py:271] Engine 000: Avg prompt throughput: {0} tokens/s, "
        "Avg generation throughput: {1} tokens/s, Running: {0} reqs, Waiting: {1} reqs, "
        "GPU KV cache usage: {0}%, Prefix cache hit rate: {1}%"
    ),
    "Prefix cache hit rate: GPU: {0}%, CPU: {1}%",
    "max_num_seqs={0}, max_model_len={1}",
    (
        "ValueError: Free memory on device cuda:0 ({0}/{1} GiB) on startup is less than desired GPU memory utilization "
        "(0.9, {1} GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    ),
    "ValueError: Total number of attention heads ({0}) must be divisible by tensor parallel size ({1}).",
    "RuntimeError: The NVIDIA driver on your system is too old (found version {0}).",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={0}, OpType=ALLREDUCE, Timeout(ms)={1})",
    (
        "ValueError: To serve at least one request with the models's max seq len ({0}), ({1} GiB KV cache is needed, "
        "which is larger than the available KV cache memory ({0} GiB). Based on the available memory, the estimated "
        "maximum model length is {1}."
    ),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {0} GiB. GPU 0 has a total capacity of {1} GiB",
    "[vllm-supervisor] generation {0} is launched at {1}",
)
_WRAPPED = ("{}", '{{"message": {}', '{{"log": "{}"}}', "vllm-1  | {}", "(EngineCore pid=7) {}", "\x1b[31m{}\x1b[0m")

_bent = st.builds(
    lambda line, one, two: line.format(one, two), *map(st.sampled_from, (_WITH_NUMBERS, _NUMBERS, _NUMBERS))
)
_nested = st.builds(
    lambda opening, times: opening * times, st.sampled_from(["[", '{"a":']), st.sampled_from([1, 10, 2000])
)
_line = st.one_of(
    st.sampled_from(_LINES), st.sampled_from(_HEALTHY), _bent, _nested, st.text(max_size=60)
)  # fmt: skip
_whole = st.builds(lambda line, wrap: wrap.format(line).encode(errors="replace"), _line, st.sampled_from(_WRAPPED))
_end = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r", b"", b"\n\n"])
logs = st.lists(st.one_of(st.builds(bytes.__add__, _whole, _end), st.binary(max_size=60)), max_size=14).map(b"".join)
"""A log: what vLLM writes, what it never would, and what no program would."""


@st.composite
def cut_logs(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Return a log, and the same in pieces."""
    log = draw(logs)
    places = sorted(draw(st.lists(st.integers(0, len(log)), max_size=6)))
    return log, [log[start:end] for start, end in zip([0, *places], [*places, len(log)], strict=True)]
