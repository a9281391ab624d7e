"""Figures that are known: totals of published checkpoints, KV bytes a token, lines that real starts printed."""

from dataclasses import replace

import pytest

from tests.domain.capacity import models
from tests.domain.capacity.models import PUBLISHED, Config, Published
from vllm_supervisor.domain.capacity.cards import gpu
from vllm_supervisor.domain.capacity.kv import format_of, per_token
from vllm_supervisor.domain.capacity.precision import precision
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.domain.capacity.rules import rules
from vllm_supervisor.domain.capacity.sizing import Ask, Gpus, Model, Sizing, size
from vllm_supervisor.domain.capacity.weights import Layout

GIB = 1 << 30
AUTO = format_of("auto", 2)


def sized(config: Config, ask: Ask, card: str = "H100", memory: int | None = None) -> Sizing:
    """Size a configuration on a card."""
    kind = gpu(card)
    assert kind is not None
    gpus = Gpus(memory or kind.memory, 8, kind, kind.name, kind.capability)
    return size(Model(read(config), precision(config)), ask, gpus)


@pytest.mark.parametrize("known", PUBLISHED.values(), ids=PUBLISHED)
def test_weights_are_those_of_the_checkpoint(known: Published) -> None:
    """The configuration alone gives the checkpoint's own total to the byte, or as near as is known of it."""
    assert abs(known.off) < known.total / 1000
    assert sized(known.config, Ask()).weights.stored == known.total + known.off


@pytest.mark.parametrize("known", PUBLISHED.values(), ids=PUBLISHED)
def test_a_token_takes_exactly_what_it_takes(known: Published) -> None:
    """KV bytes a token are exact; a model with states has no such figure, an encoder keeps nothing."""
    found = per_token(read(known.config), 1, 1, AUTO)
    assert (0 if found is None and known.per_token == 0 else found and found.ever) == known.per_token


@pytest.mark.parametrize(
    ("config", "tensor", "expected"),
    [
        (models.LLAMA_3_70B, 4, 80 << 10),
        (models.LLAMA_3_8B, 16, 16 << 10),
        (models.QWEN_25_7B, 7, 14 << 10),
        (models.DEEPSEEK_V3, 8, 61 * 1152),
        (models.DEEPSEEK_V3, 16, 61 * 1152),
    ],
    ids=["divided", "repeated", "rounded up", "latent", "latent on more"],
)
def test_tensor_parallelism_divides_heads_and_nothing_else(config: Config, tensor: int, expected: int) -> None:
    """KV heads are divided, at least one a rank; a latent is on every rank."""
    found = per_token(read(config), tensor, 1, AUTO)
    assert found is not None
    assert found.ever == expected


def test_windows_are_told_from_what_stays() -> None:
    """Of Gemma 3's layers one in six keeps everything, of gpt-oss's every other one."""
    gemma, oss = (per_token(read(config), 1, 1, AUTO) for config in (models.GEMMA_3_27B, models.GPT_OSS_20B))
    assert gemma is not None
    assert oss is not None
    assert (gemma.ever, gemma.at_first) == (10 * 8192, 62 * 8192)
    assert (oss.ever, oss.at_first) == (12 * 2048, 24 * 2048)


@pytest.mark.parametrize(
    ("config", "card", "weights_gib", "kv_gib"),
    [
        (models.GPT_OSS_20B, "RTX 5090", 13, 15),
        (models.QWEN_3_32B, "RTX PRO 6000 Blackwell", 64 / 1.073741824, 22),
        (models.QWEN_3_32B_FP8, "RTX PRO 6000 Blackwell", 33, 53),
    ],
    ids=["gpt-oss-20b", "Qwen3-32B", "Qwen3-32B-FP8"],
)
def test_the_rounded_figures_of_operators(config: Config, card: str, weights_gib: float, kv_gib: float) -> None:
    """What people quote for a card of 32 GB and one of 96 GB, within 5 %."""
    found = sized(config, Ask(utilization=0.90), card)
    assert found.weights.rank / GIB == pytest.approx(weights_gib, rel=0.05)
    assert found.budget / GIB == pytest.approx(kv_gib, rel=0.05)


@pytest.mark.parametrize(
    ("config", "ask", "blocks", "tokens", "concurrency"),
    [
        # vLLM 0.24 with prefix caching, FP8 cache of 5.98 GiB: its own line says 567,978 tokens and 4.33x
        (
            models.QWEN_35_35B_A3B,
            Ask(
                version=(0, 24),
                kv_cache_dtype="fp8",
                kv_cache_memory=int(5.98 * GIB),
                max_model_len=131072,
                prefix_caching=True,
            ),
            299,
            567_978,
            4.33,
        ),
        # vLLM 0.19 without, a cache of 1487 blocks: 290,864 tokens and 33.04x
        (
            models.QWEN_35_27B,
            Ask(version=(0, 19), kv_cache_memory=1487 * 16 * 784 * 4096, max_model_len=32768),
            1487,
            290_864,
            33.04,
        ),
        # vLLM 0.6 and Llama 3.1 8B: 1952 blocks, 1.56x of 20000
        (
            models.LLAMA_3_8B,
            Ask(version=(0, 6, 4), kv_cache_memory=1952 * 2 << 20, max_model_len=20000, allows_long=True),
            1952,
            31232,
            1.56,
        ),
    ],
    ids=["0.24 with states kept", "0.19 with states", "0.6"],
)
def test_what_real_starts_printed(config: Config, ask: Ask, blocks: int, tokens: int, concurrency: float) -> None:
    """Given the bytes that vLLM had for its cache, tokens and concurrency are those of its log line."""
    room = sized(config, ask).room
    assert room is not None
    assert (room.blocks, room.tokens, round(room.concurrency, 2)) == (blocks, tokens, concurrency)


@pytest.mark.parametrize(
    ("version", "tokens", "concurrency"),
    [((0, 6), 16000, 16000 / 8000), ((0, 8), 16000, 2.0), ((0, 11), 16000, 2.0), ((0, 33), 16000, 2.0)],
    ids=str,
)
def test_a_cache_of_given_size_is_rounded_to_blocks(version: tuple[int, ...], tokens: int, concurrency: float) -> None:
    """`--kv-cache-memory-bytes`: what does not fill a block is lost."""
    ask = Ask(version=version, kv_cache_memory=16000 * (128 << 10) + (2 << 20) - 1, max_model_len=8000)
    room = sized(models.LLAMA_3_8B, ask).room
    assert room is not None
    assert (room.tokens, room.concurrency) == (tokens, concurrency)


def test_the_newest_version_keeps_one_block_for_itself() -> None:
    """A cache of exactly one request does not start 0.32: a block is held back."""
    ask = Ask(version=(0, 32), kv_cache_memory=500 * (2 << 20), max_model_len=8000)
    assert not sized(models.LLAMA_3_8B, ask).fits
    assert sized(models.LLAMA_3_8B, replace(ask, kv_cache_memory=501 * (2 << 20))).fits


def test_graphs_come_out_of_the_budget_since_021() -> None:
    """The same flags leave less for the cache after an upgrade."""
    before, after = (sized(models.LLAMA_3_8B, Ask(version=(0, minor), utilization=0.9)) for minor in (19, 21))
    assert before.budget - after.budget == pytest.approx((0.12 + 0.008 * 32) * GIB, rel=0.01)


def test_pipeline_stages_share_layers_and_tensor_ranks_share_matrices() -> None:
    """70B on 2 x 2: each GPU has about a quarter of the weights, and 40 layers' halves of a token."""
    found = sized(models.LLAMA_3_70B, Ask(layout=Layout(tensor=2, pipeline=2)))
    assert found.weights.rank == pytest.approx(found.weights.whole / 4, rel=0.01)
    assert found.per_token is not None
    assert found.per_token.ever == 80 << 10


def test_all_experts_count_and_the_active_ones_are_told() -> None:
    """DeepSeek-V3: 671 billion parameters, 37.6 at work; its draft layer is stored, and not loaded."""
    architecture = read(models.DEEPSEEK_V3)
    assert architecture.total == pytest.approx(671.03e9, rel=1e-4)
    assert architecture.active == pytest.approx(37.55e9, rel=1e-3)
    found = sized(models.DEEPSEEK_V3, Ask())
    assert found.weights.stored - found.weights.whole > 10e9


def test_a_window_bounds_what_a_request_holds() -> None:
    """Mistral 7B v0.1: a request of 32768 tokens holds its window and what is in flight, not all of it."""
    found = sized(models.MISTRAL_7B_V01, Ask(version=(0, 32), batched_tokens=2048))
    assert found.pool is not None
    assert found.pool.needed(32768) == -(-(4095 + 2 * 2048) // 16) + 1
    assert found.pool.needed(100) == 8
    whole = sized(models.GEMMA_3_27B, Ask(version=(0, 32), keeps_all=True, max_model_len=8192)).pool
    assert whole is not None
    assert whole.needed(8192) == 512


def test_an_encoder_keeps_nothing() -> None:
    """BERT fits where its weights do, and has neither tokens nor concurrency."""
    found = sized(models.BERT, Ask())
    assert (found.fits, found.room, found.per_token) == (True, None, None)
    assert found.weights.whole == pytest.approx(2 * 109.5e6, rel=0.01)


def test_a_chunk_bounds_what_a_request_holds() -> None:
    """Llama 4's local layers: what is beyond the chunk and in flight is let go, and blocks begin where chunks do."""
    config = {
        **models.LLAMA_3_8B, "model_type": "llama4_text", "attention_chunk_size": 8192, "num_hidden_layers": 4,
        "max_position_embeddings": 1 << 20,
    }  # fmt: skip
    found = sized(config, Ask(version=(0, 32), batched_tokens=2048)).pool
    assert found is not None
    assert found.needed(1600) == 4 * 100
    assert found.needed(160_000) == 10_000 + 3 * (8192 + 2 * 2048) // 16


def test_an_encoder_that_just_fits_is_tight() -> None:
    """Whether it starts depends on what is beside the weights; it serves no number of requests at once."""
    roomy = sized(models.BERT, Ask(utilization=0.5))
    assert (roomy.tight, roomy.at_once, roomy.request_bytes) == (False, None, None)
    memory = 2 * (roomy.weights.rank + roomy.overhead.likely)
    assert sized(models.BERT, Ask(utilization=0.5), memory=memory).tight


def test_a_cache_of_given_size_that_just_fits_is_tight() -> None:
    """Whether it runs out of memory depends on what is beside the weights; with more room, or far too little, not."""
    ask = Ask(kv_cache_memory=4 << 30)
    roomy = sized(models.LLAMA_3_8B, ask)
    brim = roomy.weights.rank + roomy.overhead.likely + (4 << 30)
    assert [sized(models.LLAMA_3_8B, ask, memory=brim + more).tight for more in (-(8 << 30), 0, 8 << 30)] == [
        False,
        True,
        False,
    ]


def test_a_checkpoint_that_is_here_is_taken_at_its_word() -> None:
    """Its bytes count, and the configuration only divides them; what is not loaded is stored all the same."""
    kind = gpu("H100")
    assert kind is not None
    gpus = Gpus(kind.memory, 8, kind, kind.name, kind.capability)
    estimated = sized(models.LLAMA_3_8B, Ask())
    here = Model(read(models.LLAMA_3_8B), found=2 * estimated.weights.whole, draft=10**9)
    found = size(here, Ask(layout=Layout(2)), gpus).weights
    assert found.rank == pytest.approx(estimated.weights.rank, rel=0.001)
    assert (found.whole, found.draft, found.source) == (2 * estimated.weights.whole, 10**9, "checkpoint")
    assert found.stored == 2 * estimated.weights.whole + 10**9


def test_a_checkpoints_cache_type_holds_where_none_is_asked_for() -> None:
    """A token takes half then, and all of it where the flag says otherwise."""
    scheme = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    config = {**models.LLAMA_3_8B, "quantization_config": scheme}
    found, asked = sized(config, Ask()), sized(config, Ask(kv_cache_dtype="bfloat16"))
    assert (found.kv_dtype, asked.kv_dtype) == ("fp8", "bfloat16")
    assert found.per_token is not None
    assert asked.per_token is not None
    assert (found.per_token.ever, asked.per_token.ever) == (64 << 10, 128 << 10)


def test_the_longest_context_that_fits_is_found() -> None:
    """`--max-model-len -1`: the next block would not fit; where the model ends first, that is it."""
    ask = Ask(max_model_len=-1, kv_cache_memory=300 * (2 << 20))
    found = sized(models.LLAMA_3_8B, ask)
    assert found.fits
    assert 4000 < found.max_len < 8192
    assert not sized(models.LLAMA_3_8B, replace(ask, max_model_len=found.max_len + 16)).fits
    assert sized(models.LLAMA_3_8B, Ask(max_model_len=-1)).max_len == 8192
    assert sized(models.BERT, Ask(max_model_len=-1)).max_len == 512


def test_expert_parallelism_divides_experts_by_all_ranks() -> None:
    """Mixtral on 2 x 2: a quarter of the experts is on each GPU, and without it a half."""
    wide = sized(models.MIXTRAL_8X7B, Ask(layout=Layout(tensor=2, data=2)))
    parallel = sized(models.MIXTRAL_8X7B, Ask(layout=Layout(tensor=2, data=2, expert_parallel=True)))
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    assert wide.weights.rank - parallel.weights.rank == pytest.approx(experts / 4, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "element", "scale"),
    [("auto", 2.0, 0), ("float32", 4.0, 0), ("fp8", 1.0, 0), ("nvfp4", 0.5625, 0), ("int8_per_token_head", 1.0, 4),
     ("int4_per_token_head", 0.5, 4)],
)  # fmt: skip
def test_what_an_element_of_the_cache_takes(kind: str, element: float, scale: int) -> None:
    """Bytes, and those of the scales beside it."""
    found = format_of(kind, 2)
    assert (found.element, found.scale) == (element, scale)


@pytest.mark.parametrize(
    ("version", "gib", "card", "batched", "sequences"),
    [
        (None, 192, "B200", 16384, 1024),
        (None, 141, "H200", 8192, 1024),
        (None, 96, "GB10", 2048, 256),
        ((0, 32), 192, "B200", 8192, 1024),
        ((0, 32), 80, "A100 80", 2048, 256),
        ((0, 8), 80, "A100 80", 8192, 256),
        ((0, 6), 80, "H100", 2048, 256),
    ],
    ids=["newest, huge", "newest", "newest, shared memory", "huge, before", "A100", "0.8", "0.6"],
)
def test_the_batch_that_a_version_makes(
    version: tuple[int, ...] | None, gib: int, card: str, batched: int, sequences: int
) -> None:
    """By its memory and its name, as each version has it."""
    found = rules(version, gib << 30, card)
    assert (found.batched_tokens, found.sequences) == (batched, sequences)
