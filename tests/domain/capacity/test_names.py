"""One thing under its many names, and what a configuration that leaves it out means."""

from typing import Any

import pytest

from tests.domain.capacity.test_shapes import told
from vllm_supervisor.domain.capacity.architecture import Architecture
from vllm_supervisor.domain.capacity.families import FAMILIES
from vllm_supervisor.domain.capacity.fields import Fields
from vllm_supervisor.domain.capacity.mixers import mixers
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.domain.capacity.vision import beside, encoder
from vllm_supervisor.errors import BadInputError

PLAIN: dict[str, Any] = {
    "architectures": ["SomethingForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "n_shared_experts": 3,
    "first_k_dense_replace": 2,
    "decoder_sparse_step": 2,
    "sliding_window": 128,
    "sliding_window_pattern": 3,
    "torch_dtype": "float32",
}


def whole(found: Architecture) -> tuple[object, ...]:
    return told(found), found.parameters, found.caches


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("hidden_size", "n_embd"),
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "n_layer"),
        ("num_hidden_layers", "num_layers"),
        ("num_hidden_layers", "n_layers"),
        ("num_attention_heads", "n_head"),
        ("num_attention_heads", "n_heads"),
        ("num_key_value_heads", "num_kv_heads"),
        ("num_key_value_heads", "n_head_kv"),
        ("num_key_value_heads", "multi_query_group_num"),
        ("head_dim", "attention_head_dim"),
        ("head_dim", "hidden_size_per_head"),
        ("head_dim", "kv_channels"),
        ("vocab_size", "padded_vocab_size"),
        ("max_position_embeddings", "n_positions"),
        ("max_position_embeddings", "max_seq_len"),
        ("max_position_embeddings", "seq_length"),
        ("max_position_embeddings", "model_max_length"),
        ("max_position_embeddings", "max_target_positions"),
        ("max_position_embeddings", "max_sequence_length"),
        ("max_position_embeddings", "max_seq_length"),
        ("max_position_embeddings", "seq_len"),
        ("num_experts", "num_local_experts"),
        ("num_experts", "n_routed_experts"),
        ("num_experts", "moe_num_experts"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("num_experts_per_tok", "moe_top_k"),
        ("num_experts_per_tok", "moe_topk"),
        ("num_experts_per_tok", "moe_k"),
        ("num_experts_per_tok", "top_k_experts"),
        ("moe_intermediate_size", "expert_ffn_hidden_size"),
        ("n_shared_experts", "moe_num_shared_experts"),
        ("first_k_dense_replace", "moe_layer_start_index"),
        ("decoder_sparse_step", "interleave_moe_layer_step"),
        ("sliding_window_pattern", "_sliding_window_pattern"),
        ("torch_dtype", "dtype"),
    ],
)
def test_another_name_says_the_same(name: str, also: str) -> None:
    """Families name one thing in many ways."""
    renamed = {also if key == name else key: value for key, value in PLAIN.items()}
    assert whole(read(renamed)) == whole(read(PLAIN))
    del renamed[also]
    assert answer(renamed) != whole(read(PLAIN)), "it matters"


def answer(config: dict[str, Any]) -> object:
    try:
        return whole(read(config))
    except BadInputError as error:
        return str(error)


DENSE = {
    key: value
    for key, value in PLAIN.items()
    if "expert" not in key and not key.startswith(("moe", "sliding", "first_k", "decoder"))
}


@pytest.mark.parametrize("also", ["n_inner", "ffn_dim", "ffn_hidden_size"])
def test_the_width_of_an_mlp_has_many_names(also: str) -> None:
    """As many parameters under each."""
    renamed = {also if key == "intermediate_size" else key: value for key, value in DENSE.items()}
    assert read(renamed).parameters == read(DENSE).parameters


@pytest.mark.parametrize(
    ("model_type", "flag", "more"),
    [
        ("llama", "attention_bias", 4 * (16 * 32 + 2 * 4 * 32 + 1024)),
        ("llama", "use_qkv_bias", 4 * (16 * 32 + 2 * 4 * 32)),
        ("llama", "qkv_bias", 4 * (16 * 32 + 2 * 4 * 32)),
        ("llama", "use_qk_norm", 4 * 2 * 32),
        ("llama", "qk_layernorm", 4 * 2 * 32),
        ("llama", "mlp_bias", 4 * (2 * 2048 + 1024)),
        ("llama", "use_bias", 4 * (2 * 2048 + 1024)),
        ("llama", "tie_word_embeddings", -1000 * 1024),
    ],
)
def test_a_flag_adds_what_it_says(model_type: str, flag: str, more: int) -> None:
    """Biases and norms of each of four layers; a tied head is none."""
    plain = {**DENSE, "model_type": model_type}
    assert read({**plain, flag: True}).total - read(plain).total == more


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, "full full full full full full full full"),
        ({"sliding_window": 8}, "sliding sliding sliding sliding sliding sliding sliding sliding"),
        ({"sliding_window": 8, "use_sliding_window": False}, "full full full full full full full full"),
        ({"sliding_window": 8, "max_window_layers": 2}, "full full sliding sliding sliding sliding sliding sliding"),
        (
            {"sliding_window": 8, "sliding_window_pattern": 4},
            "sliding sliding sliding full sliding sliding sliding full",
        ),
        ({"layer_types": ["sliding_attention", "full_attention"] * 4}, "full full full full full full full full"),
        (
            {"layer_types": ["sliding_attention", "attention"] * 4, "sliding_window": 8},
            "sliding full sliding full sliding full sliding full",
        ),
    ],
    ids=["none", "all", "off", "from a layer on", "pattern", "listed, no window", "listed"],
)
def test_which_layers_have_a_window(fields: dict[str, Any], kinds: str) -> None:
    """By a list, a pattern, a first layer, or all of them."""
    found = read({**DENSE, "num_hidden_layers": 8, "window_size": 8, **fields})
    assert " ".join(str(cache.keeps) for cache in found.caches) == kinds


@pytest.mark.parametrize(
    ("name", "fields", "kinds"),
    [
        ("jamba", {}, "state state state state full state state state"),
        ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 1}, "state full state state state full state state"),
        ("bamba", {"attn_layer_indices": [0, 7]}, "full state state state state state state full"),
        ("qwen3_next", {}, "state state state full state state state full"),
        ("qwen3_next", {"full_attention_interval": 2}, "state full state full state full state full"),
        ("mamba2", {}, "state state state state state state state state"),
        ("falcon_h1", {}, "both both both both both both both both"),
        ("lfm2", {"layer_types": ["conv", "hybrid"] * 4}, "convolution both " * 4),
        ("granitemoehybrid", {"layers_block_type": ["mamba", "attention"] * 4}, "state full " * 4),
    ],
)
def test_which_layers_of_a_hybrid_keep_a_state(name: str, fields: dict[str, Any], kinds: str) -> None:
    """By a period, places, an interval or a list; defaults are those of transformers."""
    found = mixers(Fields(fields), name, FAMILIES[name], 8)
    assert " ".join(map(str, found)) == kinds.strip()


SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "patch_size": 16,
    "image_size": 224,
}
PIXTRAL = {"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
QWEN = {"depth": 32, "hidden_size": 1280, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2}


@pytest.mark.parametrize(
    ("model_type", "vision"),
    [("gemma3", SIGLIP), ("llava", SIGLIP), ("mistral3", {**PIXTRAL, "patch_size": 16}), ("qwen3_vl", QWEN)],
)
def test_what_a_tower_leaves_out_is_its_default(model_type: str, vision: dict[str, Any]) -> None:
    """Of transformers' own classes."""
    for name, value in vision.items():
        if name != "model_type":
            left_out = {key: value for key, value in vision.items() if key != name} | {"num_heads": 16}
            other = {**vision, name: value * 2}
            count, without, changed = (
                encoder(Fields({"vision_config": each}), model_type, 4096) for each in (vision, left_out, other)
            )
            assert count == without, name
            assert count != changed, name


def test_towers_are_counted_as_published() -> None:
    """Qwen2-VL-7B has 675,759,104 parameters beside its text, Qwen3-VL-8B 576,388,336."""
    two = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "patch_size": 14}
    assert encoder(Fields({"vision_config": two}), "qwen2_vl", 3584) == 675_759_104
    three = {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "patch_size": 16,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    }
    assert encoder(Fields({"vision_config": three}), "qwen3_vl", 4096) == 576_388_336 + 5760
    assert encoder(Fields({"vision_config": SIGLIP}), "gemma3", 1024) == 85_797_120 + 786_432 + 768
    assert encoder(Fields({"vision_config": {"model_type": "other", "depth": 1}}), "llava", 1024) is None
    assert encoder(Fields({}), "llava", 1024) == 0


def test_what_is_beside_the_text_is_named_once() -> None:
    """By the sections of the configuration; an empty one is none."""
    sections = {key: {"a": 1} for key in ("vision_config", "audio_config", "audio_encoder_config", "speech_config")}
    sections |= {"talker_config": {"a": 1}, "code2wav_config": {"a": 1}}
    assert beside(Fields(sections)) == ("vision", "audio", "speech", "talker", "code2wav")
    assert beside(Fields({"vision_config": {}})) == ()
