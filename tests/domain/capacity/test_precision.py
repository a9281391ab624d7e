"""Number formats: what a matrix takes, counted in the tensors that checkpoints hold, and which parts are left alone."""

from typing import Any

import pytest

from tests.domain.capacity import models
from vllm_supervisor.domain.capacity.architecture import Part
from vllm_supervisor.domain.capacity.modules import LINEAR
from vllm_supervisor.domain.capacity.precision import Precision, converted, precision
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.domain.capacity.weights import Layout, weights
from vllm_supervisor.errors import BadInputError

SIDE = 4096
"""The matrix is square."""
NVFP4_GROUP = {"weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}}
W4A16_GROUP = {"weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}}
FP8_GROUP = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None}}
INT8_GROUP = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel", "group_size": None}}


@pytest.mark.parametrize(
    ("quantization", "tensors"),
    [
        ({"quant_method": "fp8"}, SIDE * SIDE),
        (models.FP8, SIDE * SIDE + (SIDE // 128) ** 2 * 4),
        # packed words, scales and zeros of each group of 128
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            SIDE * SIDE // 8 * 4 + SIDE // 128 * (SIDE * 2 + SIDE // 8 * 4),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
            SIDE * SIDE // 8 * 4 + SIDE // 128 * (SIDE * 2 + SIDE // 8 * 4),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": 32},
            SIDE * SIDE + SIDE // 32 * (SIDE * 2 + SIDE),
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, SIDE * SIDE // 2 + SIDE * SIDE // 16),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": NVFP4_GROUP}}, SIDE * SIDE * 9 // 16),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": W4A16_GROUP}, "format": "packed"},
            SIDE * SIDE // 2 + SIDE * SIDE // 128 * 2,
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": FP8_GROUP}}, SIDE * SIDE),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": INT8_GROUP}}, SIDE * SIDE),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, SIDE * SIDE // 2 + SIDE * SIDE // 64 * 4),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            SIDE * SIDE // 2 + SIDE * SIDE // 64 + SIDE * SIDE // 64 // 256 * 4,
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, SIDE * SIDE),
    ],
    ids=[
        "fp8", "fp8 blocks", "awq", "gptq", "gptq 8 bit", "nvfp4", "ct nvfp4", "ct w4a16", "ct fp8", "ct int8", "bnb",
        "bnb double", "bnb 8 bit",
    ],
)  # fmt: skip
def test_a_matrix_takes_what_its_tensors_take(quantization: dict[str, Any], tensors: int) -> None:
    """Scales and zeros are counted with the numbers."""
    found = precision({"quantization_config": quantization})
    assert SIDE * SIDE * found.of(Part.MLP, 16) / 8 == pytest.approx(tensors, rel=1e-3)


def test_embeddings_head_norms_and_routers_stay_as_they_are() -> None:
    """FP8 halves the linear layers and nothing else: Qwen3-32B is 34.3 GB then, of which 3.1 are in 16 bit."""
    stored = precision(models.QWEN_3_32B_FP8)
    assert {part for part in Part if stored.of(part, 16) == 16} == {
        Part.EMBEDDING,
        Part.HEAD,
        Part.NORM,
        Part.ROUTER,
        Part.ENCODER,
        Part.DRAFT,
    }
    assert weights(read(models.QWEN_3_32B_FP8), Layout(), stored=stored, loaded=stored).whole == pytest.approx(
        34.33e9, rel=1e-3
    )


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (["lm_head"], set()),
        (["model.layers.3.self_attn.q_proj"], set()),
        (["re:.*self_attn.*"], {Part.ATTENTION, Part.KEY_VALUE, Part.LATENT}),
        (["re:.*linear_attn.*", "lm_head"], {Part.MIXER}),
        (["model.layers.*.self_attn", "model.layers.*.mlp.router"], {Part.ATTENTION, Part.KEY_VALUE, Part.LATENT}),
    ],
    ids=["head", "one layer", "attention", "mixers", "gpt-oss"],
)
def test_what_a_checkpoint_leaves_alone_is_16_bit(names: list[str], left: set[Part]) -> None:
    """Whole kinds of matrices count, single layers do not."""
    found = precision(
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "ignore": names,
                "config_groups": {"g": FP8_GROUP},
            }
        }
    )
    whole = precision({"quantization_config": {"quant_method": "fp8"}}).parts
    assert whole - found.parts == left


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["mamba" * 200_000, "re:" + "(a|b)" * 60, "(" * 300, "a." * 150], ids=len)
def test_a_hostile_name_takes_no_time(name: str) -> None:
    """Names are matched, and a file may hold any."""
    assert precision({"quantization_config": {"quant_method": "fp8", "ignored_layers": [name]}}).of(Part.MLP, 16) == 8


EVERY = range(32)
LLAMA = models.LLAMA_3_8B


@pytest.mark.parametrize(
    ("quantization", "attention", "kv", "mlp"),
    [
        ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}, 8, 8, 8),
        (
            {
                "quant_method": "fbgemm_fp8",
                "modules_to_not_convert": [
                    *(f"model.layers.{at}.self_attn.{name}_proj" for at in EVERY for name in "qkvo"),
                    *(f"model.layers.{at}.mlp.{name}_proj" for at in (0, 31) for name in ("gate", "up", "down")),
                ],
            },
            16,
            16,
            8 + 8 * 2 / 32,
        ),
        ({"quant_method": "fp8", "ignored_layers": [f"model.layers.{at}.mlp" for at in range(8)]}, 8, 8, 10),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.0", "re:.*layers.(1|2|3).*"]}, 9, 9, 9),
        ({"quant_method": "fp8", "ignored_layers": ["re:.*self_attn.[qk]_proj$"]}, 12, 12, 8),
        ({"quant_method": "fp8", "ignored_layers": [f"model.visual.blocks.{at}.mlp" for at in EVERY]}, 8, 8, 8),
    ],
    ids=["head", "fbgemm", "some layers", "whole layers", "pattern", "another model"],
)
def test_layers_that_are_left_alone_are_counted(
    quantization: dict[str, Any], attention: float, kv: float, mlp: float
) -> None:
    """Modules by name: each with its share of its part."""
    found = precision({**LLAMA, "quantization_config": quantization})
    bits = [found.of(part, 16) for part in (Part.ATTENTION, Part.KEY_VALUE, Part.MLP)]
    assert bits == pytest.approx([attention, kv, mlp])


@pytest.mark.parametrize(
    ("groups", "attention", "mlp"),
    [
        ([(FP8_GROUP, ["re:.*self_attn.*"]), (NVFP4_GROUP, ["re:.*mlp.*"])], 8, 4.5),
        ([(NVFP4_GROUP, ["Linear"]), (FP8_GROUP, ["re:.*self_attn.(q|k|v|o)_proj"])], 8, 4.5),
        ([(NVFP4_GROUP, ["re:.*mlp.*"])], 16, 4.5),
        ([(NVFP4_GROUP, ["re:.*down_proj", "re:.*self_attn.*"]), (FP8_GROUP, ["Linear"])], 4.5, (4.5 + 16) / 3),
    ],
    ids=["two parts", "a class and a part", "one part", "one projection"],
)
def test_groups_count_for_what_they_target(
    groups: list[tuple[dict[str, Any], list[str]]], attention: float, mlp: float
) -> None:
    """compressed-tensors: each group's scheme for its own modules; what no group names stays in 16 bit."""
    named = {f"group_{at}": {**scheme, "targets": targets} for at, (scheme, targets) in enumerate(groups)}
    quantization = {"quant_method": "compressed-tensors", "config_groups": named, "ignore": ["lm_head"]}
    found = precision({**LLAMA, "quantization_config": quantization})
    assert [found.of(part, 16) for part in (Part.ATTENTION, Part.MLP)] == pytest.approx([attention, mlp])


def test_a_checkpoint_may_ask_for_an_fp8_cache() -> None:
    """`--kv-cache-dtype auto` then means FP8."""
    modelopt = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    assert precision({"quantization_config": modelopt}).kv_dtype == "fp8"
    scheme = {"type": "float", "num_bits": 8}
    packed = {"quant_method": "compressed-tensors", "config_groups": {"g": FP8_GROUP}, "kv_cache_scheme": scheme}
    assert precision({"quantization_config": packed}).kv_dtype == "fp8"


def test_what_is_not_known_is_refused_with_a_remedy() -> None:
    """Neither a method of a checkpoint nor one to convert with is guessed at."""
    with pytest.raises(BadInputError, match=r"config.json: its quantization method sparkle is not known here; name a"):
        precision({"quantization_config": {"quant_method": "sparkle"}})
    with pytest.raises(BadInputError, match=r"--quantization awq: it needs a checkpoint that is quantized so"):
        converted("awq")


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ("fp8", "quantization_config is no object"),
        ({"quant_method": "gptq", "bits": 0}, "quantization_config: bits is 0, not one of 2, 3, 4, 8"),
        ({"quant_method": "gptq", "bits": 5}, "quantization_config: bits is 5, not one of"),
        ({"quant_method": "gptq", "bits": "four"}, "quantization_config: bits is 'four', not a number"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 0},
            "quantization_config: group_size is 0, neither a size nor -1",
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": [128]},
            "quantization_config: group_size is '[128]', not a number",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [0, 128]},
            "quantization_config: weight_block_size is '[0, 128]'",
        ),
        ({"quant_method": "compressed-tensors"}, "quantization_config: it has no config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "quantization_config: it has no config_groups"),
    ],
    ids=["text", "none", "odd", "word", "no group", "list", "block", "no groups", "empty groups"],
)
def test_a_quantization_that_makes_no_sense_is_refused(quantization: object, words: str) -> None:
    """One line that names the file and what is wrong in it."""
    with pytest.raises(BadInputError) as error:
        precision({"quantization_config": quantization})
    assert str(error.value).startswith(f"config.json: {words}")


def test_a_16_bit_checkpoint_has_no_method() -> None:
    """Nothing is taken for quantized that does not say so."""
    assert precision(models.LLAMA_3_8B) == Precision()


EXPERTS = frozenset({Part.EXPERTS})
QUARK_FP8 = {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8"}}}
DOUBLE = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8"}, Precision("fp8", "FP8", 8, LINEAR)),
        (models.FP8, Precision("fp8", "FP8 in blocks of 128x128", 8 + 32 / 16384, LINEAR, block=128)),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, Precision("awq", "AWQ, 4 bit", 4 + 20 / 128, LINEAR)),
        ({"quant_method": "gptq", "bits": 3, "group_size": 64}, Precision("gptq", "GPTQ, 3 bit", 3 + 19 / 64, LINEAR)),
        ({"quant_method": "hqq", "bits": 8, "group_size": 64}, Precision("gptq", "GPTQ, 8 bit", 8 + 24 / 64, LINEAR)),
        (
            {"quant_method": "auto-round", "bits": 4, "group_size": 128},
            Precision("auto-round", "AutoRound, 4 bit", 4 + 20 / 128, LINEAR),
        ),
        (
            {"quant_method": "auto-round", "bits": 2, "group_size": 32},
            Precision("auto-round", "AutoRound, 2 bit", 2 + 18 / 32, LINEAR),
        ),
        ({"quant_method": "mxfp4"}, Precision("mxfp4", "MXFP4", 4.25, EXPERTS)),
        ({"quant_method": "modelopt"}, Precision("modelopt", "FP8", 8, LINEAR)),
        ({"quant_method": "modelopt_fp4"}, Precision("modelopt_fp4", "NVFP4", 4.5, LINEAR)),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "nvfp4"}},
            Precision("modelopt_fp4", "NVFP4", 4.5, LINEAR),
        ),
        ({"quantization": {"quant_algo": "NVFP4"}}, Precision("modelopt_fp4", "NVFP4", 4.5, LINEAR)),
        (
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            Precision("bitsandbytes", "bitsandbytes, 8 bit", 8, LINEAR),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            Precision("bitsandbytes", "bitsandbytes, 4 bit", 4.5, LINEAR),
        ),
        (DOUBLE, Precision("bitsandbytes", "bitsandbytes, 4 bit", 4 + 1 / 8 + 1 / 512, LINEAR)),
        ({"quant_method": "fbgemm_fp8"}, Precision("fbgemm_fp8", "FP8", 8, LINEAR)),
        ({"quant_method": "experts_int8"}, Precision("experts_int8", "INT8 experts", 8, EXPERTS)),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": [{"dtype": "fp4"}]}},
            Precision("quark", "Quark, fp4", 4.25, LINEAR),
        ),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4"}}},
            Precision("quark", "Quark, int4", 4.25, LINEAR),
        ),
        (QUARK_FP8, Precision("quark", "Quark, fp8", 8, LINEAR)),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"bits": 8}}},
            Precision("quark", "Quark, 8 bit", 8, LINEAR),
        ),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": "?"}},
            Precision("quark", "Quark, 8 bit", 8, LINEAR),
        ),
        (
            {"quant_method": "torchao", "quant_type": "int4_weight_only"},
            Precision("torchao", "torchao, 4 bit", 4.25, LINEAR),
        ),
        ({"quant_method": "torchao", "quant_type": "int8wo-64"}, Precision("torchao", "torchao, 8 bit", 8, LINEAR)),
        ({"quant_method": "torchao"}, Precision("torchao", "torchao, 8 bit", 8, LINEAR)),
        (
            {"quant_method": "gguf", "bits": 8},
            Precision("gguf", "GGUF, 8 bit", 8, LINEAR | {Part.EMBEDDING, Part.HEAD}),
        ),
        (
            {"quant_method": "gguf", "bits": 0},
            Precision("gguf", "GGUF, 4.85 bit", 4.85, LINEAR | {Part.EMBEDDING, Part.HEAD}),
        ),
        (
            {"quant_method": "gguf", "bits": 1},
            Precision("gguf", "GGUF, 1 bit", 1, LINEAR | {Part.EMBEDDING, Part.HEAD}),
        ),
    ],
    ids=lambda value: value.label if isinstance(value, Precision) else str(value),  # sets have no order
)
def test_what_a_checkpoint_says_is_read_to_the_last(quantization: dict[str, Any], expected: Precision) -> None:
    """vLLM's name decides which cards can, the label is what a user is shown, bits and parts what it takes."""
    assert precision({"quantization_config": quantization}) == expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("fp8", Precision("fp8", "fp8, converted while loading", 8, LINEAR)),
        ("bitsandbytes", Precision("bitsandbytes", "bitsandbytes, converted while loading", 4.5, LINEAR)),
        ("experts_int8", Precision("experts_int8", "experts_int8, converted while loading", 8, EXPERTS)),
    ],
)
def test_what_vllm_converts_while_it_loads(method: str, expected: Precision) -> None:
    """A 16-bit checkpoint becomes smaller on the card."""
    assert converted(method) == expected


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({}, None),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quantization": {"kv_cache_quant_algo": "fp8"}}, "fp8"),
        ({"kv_cache_quant_algo": "NVFP4"}, None),
        ({"kv_cache_scheme": {"type": "float", "num_bits": 8}}, "fp8"),
        ({"kv_cache_scheme": {"type": "int", "num_bits": 8}}, None),
        ({"kv_cache_scheme": {"type": "float", "num_bits": 4}}, None),
        ({"kv_cache_scheme": "fp8"}, None),
    ],
    ids=str,
)
def test_a_checkpoint_may_ask_for_its_cache(fields: dict[str, Any], dtype: str | None) -> None:
    """By ModelOpt's field, here or inside, or by the scheme of compressed-tensors."""
    assert precision({"quantization_config": {"quant_method": "fp8", **fields}}).kv_dtype == dtype


def test_a_head_may_be_quantized_too() -> None:
    """GPTQ says so in a field of its own; GGUF always does, with the embeddings."""
    plain = {"quant_method": "gptq", "bits": 4}
    assert Part.HEAD not in precision({"quantization_config": plain}).parts
    assert Part.HEAD in precision({"quantization_config": {**plain, "lm_head": True}}).parts
    assert {Part.HEAD, Part.EMBEDDING} <= precision({"quantization_config": {"quant_method": "gguf"}}).parts
