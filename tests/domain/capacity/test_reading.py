"""Reading a configuration: what families have in common and where they differ, and what is refused."""

from typing import Any

import pytest

from tests.domain.capacity import models
from vllm_supervisor.domain.capacity.architecture import Keeps, Part
from vllm_supervisor.domain.capacity.families import FAMILIES, Shape
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.errors import BadInputError

SMALL: dict[str, Any] = {
    "architectures": ["SomethingForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize("name", [name for name, kind in FAMILIES.items() if kind.shape is Shape.DECODER])
def test_every_decoder_family_is_read(name: str) -> None:
    """A configuration with what all have in common is enough, and gives KV for each layer."""
    found = read({**SMALL, "model_type": name})
    assert len(found.caches) == 4
    assert found.total > 4 * (1024 * 1024)


@pytest.mark.parametrize(
    ("config", "states", "full"),
    [
        (models.QWEN_3_NEXT, 36, 12),
        (models.JAMBA, 28, 4),
        (models.BAMBA_9B, 29, 3),
        (models.GRANITE_4_H_SMALL, 36, 4),
        (models.NEMOTRON_H_8B, 24, 4),
    ],
    ids=["Qwen3-Next", "Jamba", "Bamba", "Granite 4", "Nemotron-H"],
)
def test_hybrids_have_states_and_attention(config: models.Config, states: int, full: int) -> None:
    """Which layers attend is in the configuration, in a different way for each family."""
    kinds = [cache.keeps for cache in read(config).caches]
    assert (kinds.count(Keeps.STATE), kinds.count(Keeps.FULL)) == (states, full)


@pytest.mark.parametrize(
    ("config", "ranks", "size"),
    [
        (models.QWEN_3_NEXT, 1, 3 * 8192 * 2 + 32 * 128 * 128 * 2),
        (models.QWEN_3_NEXT, 4, (3 * 8192 * 2 + 32 * 128 * 128 * 2) // 4),
        (models.QWEN_35_27B, 1, 3 * 10240 * 2 + 48 * 128 * 128 * 4),
        (models.JAMBA, 2, 4096 * 3 * 2 + 4096 * 16 * 2),
        # one group of 128 states is repeated on each rank
        (models.BAMBA_9B, 4, (8192 + 4 * 2 * 128) // 4 * 3 * 2 + 32 * 64 * 128 * 2),
        (models.NEMOTRON_H_8B, 1, (8192 + 8 * 2 * 128) * 3 * 2 + 128 * 64 * 128 * 4),
    ],
    ids=["delta", "delta on four", "delta in float32", "mamba on two", "mamba2 with one group", "nemotron in float32"],
)
def test_a_state_has_the_size_that_vllm_gives_it(config: models.Config, ranks: int, size: int) -> None:
    """The shapes are those of vLLM 0.32's MambaStateShapeCalculator."""
    state = next(cache.state for cache in read(config).caches if cache.state is not None)
    assert state.size(ranks, 2) == size


def test_keys_and_values_may_differ_in_size() -> None:
    """`v_head_dim` beside `head_dim`."""
    cache = read({**SMALL, "model_type": "llama", "head_dim": 192, "v_head_dim": 128, "num_key_value_heads": 4}).caches[
        0
    ]
    assert (cache.heads, cache.k_size, cache.v_size) == (4, 192, 128)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"model_type": "gemma2", "sliding_window": 64}, "sliding full sliding full"),
        ({"model_type": "cohere2", "sliding_window": 64}, "sliding sliding sliding full"),
        ({"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 2}, "sliding full sliding full"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding sliding sliding sliding"),
        ({"model_type": "mistral", "sliding_window": None}, "full full full full"),
        ({"model_type": "phi3", "sliding_window": 64}, "full full full full"),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, "full full full full"),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
            "full full full sliding",
        ),
        (
            {"model_type": "llama4_text", "attention_chunk_size": 128},
            "chunked chunked chunked full",
        ),
        (
            {
                "model_type": "llama",
                "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2,
                "sliding_window": 8,
            },
            "full full sliding sliding",
        ),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_windows_are_found_in_every_spelling(changes: dict[str, Any], kinds: str) -> None:
    """By layer, by a pattern, by the family's habit, or for all layers; and not where they are off."""
    assert " ".join(cache.keeps for cache in read({**SMALL, **changes}).caches) == kinds


def test_falcon_shares_one_head_and_gpt2_has_many() -> None:
    """Multi-query attention, and keys of old configurations."""
    assert read({**SMALL, "model_type": "falcon"}).caches[0].heads == 1
    old = {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257, "model_type": "gpt2"}
    found = read(old)
    assert (found.total, found.caches[0].heads, found.max_len) == (124_439_808, 12, 1024)


def test_what_is_beside_the_text_is_named() -> None:
    """The vision tower of Gemma 3 is counted; one of an unknown make is named as not counted."""
    known = read(models.GEMMA_3_27B)
    assert (known.beside, known.uncounted) == (("vision",), ())
    other = read({**models.GEMMA_3_27B, "vision_config": {"model_type": "something"}, "audio_config": {"a": 1}})
    assert other.uncounted == ("vision", "audio")


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, 512),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 2048),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 512),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 512),
        ({"model_max_length": 131072}, 131072),
        ({"seq_length": 256}, 256),
        ({"max_position_embeddings": None}, None),
    ],
    ids=str,
)
def test_the_models_own_limit_is_vllms(changes: dict[str, Any], limit: int | None) -> None:
    """Rotary scaling multiplies it only where it is not in it already."""
    assert read({**SMALL, "model_type": "llama", **changes}).max_len == limit


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "it names no architecture and no model_type"),
        ({**SMALL, "model_type": "sparkle"}, "the architecture SomethingForCausalLM (model_type sparkle) is not known"),
        ({"model_type": "llama"}, "it has no hidden_size or n_embd or d_model"),
        ({**SMALL, "model_type": "llama", "hidden_size": "wide"}, "hidden_size is 'wide', not a count"),
        ({**SMALL, "model_type": "llama", "hidden_size": -3}, "hidden_size is -3, not a count"),
        ({**SMALL, "model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({**SMALL, "model_type": "llama", "num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({**SMALL, "model_type": "llama", "layer_types": ["magic"] * 4}, "its layer_types name 'magic'"),
        ({**SMALL, "model_type": "llama", "layer_types": ["full_attention"]}, "its layer_types are 1, for 4 layers"),
        ({**models.NEMOTRON_H_8B, "hybrid_override_pattern": "MMX"}, "does not describe 52 layers"),
        ({**models.QWEN_3_NEXT, "linear_num_value_heads": None}, "it has no linear_num_value_heads"),
        ({**SMALL, "model_type": "llama", "num_key_value_heads": 3}, "num_key_value_heads is 3, by which 16 attention"),
        (
            {**SMALL, "model_type": "llama", "num_key_value_heads": 32},
            "num_key_value_heads is 32, by which 16 attention",
        ),
        ({**SMALL, "model_type": "llama", "num_key_value_heads": 0}, "num_key_value_heads is 0, by which 16 attention"),
        ({**SMALL, "model_type": "llama", "hidden_size": [1024]}, "hidden_size is [1024], not a count"),
        ({**SMALL, "model_type": "llama", "torch_dtype": "int3"}, "its torch_dtype 'int3' is not known"),
        ({**SMALL, "model_type": "llama", "torch_dtype": 16}, "its torch_dtype 16 is not known"),
        ({**SMALL, "model_type": "llama", "text_config": "x"}, "text_config is 'x', not an object"),
        ({**SMALL, "model_type": "llama", "vision_config": [1]}, "vision_config is [1], not an object"),
        ({**SMALL, "model_type": "llama", "rope_scaling": 3}, "rope_scaling is 3, not an object"),
        ({**SMALL, "model_type": "llama", "layer_types": "full"}, "layer_types is 'full', not a list"),
        ({**SMALL, "model_type": "llama", "attention_bias": "no"}, "attention_bias is 'no', not true or false"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_makes_no_sense_is_one_clear_line(config: dict[str, Any], words: str) -> None:
    """The line names the file, the problem and what to do."""
    with pytest.raises(BadInputError) as error:
        read(config, "m/config.json")
    assert words in str(error.value)
    assert str(error.value).startswith("m/config.json: ")
    assert "\n" not in str(error.value)
    assert error.value.remedy


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"model_type": "mamba", "state_size": 16, "conv_kernel": 4, "expand": 2, "time_step_rank": 64}, ["state"] * 4),
        (
            {"model_type": "falcon_h1", "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128,
             "mamba_n_groups": 1, "mamba_n_heads": 32, "mamba_d_ssm": 2048},
            ["state", "full"] * 4,
        ),
        ({"model_type": "lfm2", "full_attn_idxs": [1, 3]}, ["state", "full"] * 2),
    ],
    ids=["states only", "both in each layer", "convolutions and attention"],
)  # fmt: skip
def test_hybrids_that_say_it_otherwise(changes: dict[str, Any], kinds: list[str]) -> None:
    """Each layer keeps what its mixer needs; one with both keeps both."""
    assert [cache.keeps for cache in read({**SMALL, **changes}).caches] == kinds


def test_a_short_convolution_keeps_the_taps_before_the_last() -> None:
    """LFM2: three matrices in, one out, and a filter of three taps for each channel; no state beside these."""
    found = read({**SMALL, "model_type": "lfm2", "full_attn_idxs": [1, 3], "conv_L_cache": 3})
    state = found.caches[0].state
    assert state is not None
    assert state.size(1, 2) == 2 * 1024 * 2
    assert found.parameters[Part.MIXER] == 2 * 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("changes", "part", "count"),
    [
        # one head of 64 for keys and one for values, in each of four layers
        ({"model_type": "gpt_bigcode", "multi_query": True}, Part.KEY_VALUE, 4 * 2 * 1024 * 64),
        (
            {"model_type": "granitemoehybrid", "layer_types": ["attention"] * 4, "shared_intermediate_size": 512},
            Part.MLP,
            4 * 3 * 1024 * 512,
        ),
        (
            {"model_type": "llama4_text", "num_local_experts": 4, "interleave_moe_layer_step": 1},
            Part.MLP,
            4 * 3 * 1024 * 2048,
        ),
        ({"model_type": "llama", "hidden_size": 1024.0}, Part.EMBEDDING, 1000 * 1024),
        ({"model_type": "modernbert", "architectures": ["ModernBertModel"]}, Part.EMBEDDING, 1000 * 1024),
    ],
    ids=[
        "multi-query",
        "no experts after all",
        "each token passes one expert",
        "a float that is whole",
        "rotary encoder",
    ],
)
def test_parts_are_counted(changes: dict[str, Any], part: Part, count: int) -> None:
    """What a family has of its own, by the shapes of its matrices."""
    assert read({**SMALL, **changes}).parameters[part] == count


def test_an_indexer_is_counted_with_the_latents() -> None:
    """DeepSeek-V3.2: 64 heads of 128 from the query's latent, one key and a weight for each head, and a norm."""
    before = read(models.DEEPSEEK_V3)
    after = read({**models.DEEPSEEK_V3, "index_n_heads": 64, "index_head_dim": 128})
    more = {part: after.parameters[part] - before.parameters[part] for part in (Part.LATENT, Part.NORM, Part.ATTENTION)}
    assert more == {
        Part.LATENT: 61 * (1536 * 64 * 128 + 7168 * 128 + 7168 * 64), Part.NORM: 61 * 2 * 128, Part.ATTENTION: 0,
    }  # fmt: skip


def test_the_vision_tower_of_pixtral_has_400_million() -> None:
    """As its page says; what joins it to the text comes on top."""
    tower = {"model_type": "pixtral", "hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096}
    text = {**models.MISTRAL_7B_V01, "hidden_size": 5120}
    found = read({"model_type": "llava", "text_config": text, "vision_config": {**tower, "patch_size": 16}})
    assert found.parameters[Part.ENCODER] == pytest.approx(400e6 + 1024 * 5120 + 5120 * 5120, rel=0.02)
    assert found.uncounted == ()
