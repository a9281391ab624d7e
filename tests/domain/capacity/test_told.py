"""What `size` makes of each known model, and of arguments that change it, to the byte."""

from collections.abc import Iterator
from pathlib import Path

from tests.domain.capacity import models
from tests.domain.capacity.models import Config
from tests.domain.capacity.test_known import sized
from tests.domain.capacity.test_shapes import CONFIGS
from tests.domain.recorded import compare
from vllm_supervisor.domain.capacity.remedies import remedies
from vllm_supervisor.domain.capacity.sizing import Ask, Sizing
from vllm_supervisor.domain.capacity.weights import Layout

Case = tuple[str, Config, Ask, str]
GIB = 1 << 30
AWQ = {**models.LLAMA_3_8B, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
KV_FP8 = {**models.LLAMA_3_8B, "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}
ASKS: list[Case] = [
    ("two GPUs", models.LLAMA_3_70B, Ask(layout=Layout(2)), "H100"),
    ("stages", models.LLAMA_3_70B, Ask(layout=Layout(2, 3)), "L40S"),
    ("experts spread", models.QWEN_3_30B_A3B, Ask(layout=Layout(2, 1, 2, expert_parallel=True)), "L40S"),
    ("latents on eight", models.DEEPSEEK_V3, Ask(layout=Layout(8)), "H200"),
    ("more ranks than KV heads", models.QWEN_3_30B_A3B, Ask(layout=Layout(8)), "L4"),
    ("states on four", models.QWEN_3_NEXT, Ask(layout=Layout(4)), "H100"),
    ("FP8 in blocks", models.QWEN_3_32B_FP8, Ask(), "RTX 5090"),
    ("AWQ", AWQ, Ask(), "T4"),
    ("converted", models.LLAMA_3_8B, Ask(quantization="fp8"), "L4"),
    ("the checkpoint's cache type", KV_FP8, Ask(), "L4"),
    ("cache in FP8", models.LLAMA_3_8B, Ask(kv_cache_dtype="fp8"), "L4"),
    ("cache of given size", models.LLAMA_3_8B, Ask(kv_cache_memory=4 * GIB), "L4"),
    ("cache too large", models.LLAMA_3_8B, Ask(kv_cache_memory=30 * GIB), "L40S"),
    ("32 bit", models.LLAMA_3_8B, Ask(dtype="float32"), "L40S"),
    ("eager", models.LLAMA_3_8B, Ask(eager=True), "L4"),
    ("small batch", models.LLAMA_3_8B, Ask(batched_tokens=512, sequences=16), "L4"),
    ("large blocks", models.LLAMA_3_8B, Ask(block_size=128), "L4"),
    ("longest that fits", models.LLAMA_3_8B, Ask(max_model_len=-1, utilization=0.75), "L4"),
    ("a long context", models.LLAMA_3_8B, Ask(max_model_len=131072, allows_long=True), "L4"),
    ("a realistic request", models.LLAMA_3_8B, Ask(context=1000, output=100), "L4"),
    ("windows kept", models.GEMMA_3_27B, Ask(keeps_all=True), "H100"),
    ("windows at a length", models.GEMMA_3_27B, Ask(max_model_len=16384), "H100"),
    ("prefix caching with states", models.QWEN_35_27B, Ask(prefix_caching=True), "H100"),
    ("no prefix caching with states", models.QWEN_35_27B, Ask(prefix_caching=False), "H100"),
    ("vLLM 0.6", models.LLAMA_3_8B, Ask(version=(0, 6, 4)), "L4"),
    ("vLLM 0.10", models.GPT_OSS_20B, Ask(version=(0, 10, 2)), "RTX 4090"),
    ("vLLM 0.20", models.GEMMA_3_27B, Ask(version=(0, 20)), "H100"),
    ("vLLM 0.22", models.QWEN_35_27B, Ask(version=(0, 22)), "H100"),
    ("vLLM 0.30", models.GPT_OSS_20B, Ask(version=(0, 30)), "RTX 4090"),
    ("no room at all", models.LLAMA_3_70B, Ask(utilization=0.9), "T4"),
    ("two changes", models.LLAMA_3_70B, Ask(max_model_len=131072, allows_long=True), "L40S"),
]
CASES: list[Case] = [*((name, config, Ask(), "H100") for name, config in CONFIGS.items()), *ASKS]


def told(found: Sizing) -> Iterator[str]:
    """Yield all that a sizing comes to."""
    weights, beside = found.weights, found.overhead
    yield f"  fits {found.fits}, tight {found.tight}, beyond {found.beyond}, requested {found.requested}"
    yield f"  weights {weights.rank} of {weights.whole} ({weights.source}), stored {weights.stored} + {weights.draft}"
    yield f"  beside {beside.likely} ({beside.least} to {beside.most}), budget {found.budget} {found.budget_range}"
    yield f"  length {found.max_len}, cache {found.kv_dtype}, a token {found.per_token}, all {found.request_bytes}"
    yield f"  room {found.room}, at once {found.at_once} of {found.sequences} with {found.request}"


def test_what_is_told() -> None:
    """Of each known model on an H100; then of arguments, cards and versions, with what is offered instead."""
    lines: list[str] = []
    for name, config, ask, card in CASES:
        found = sized(config, ask, card)
        lines += [f"{name} on {card}", *told(found)]
        if (name, config, ask, card) in ASKS:
            lines += [
                f"  - {one.change}: {one.effect} to {one.sizing.budget}, fits {one.sizing.fits} {one.note}".rstrip()
                for one in remedies(found)
            ]
    compare(Path(__file__).with_name("told.txt"), lines)
