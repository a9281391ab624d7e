"""Arguments that do not suit the model or the card, and what is advised when a model does not fit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.domain.capacity import models
from tests.domain.capacity.test_known import sized
from vllm_supervisor.domain.capacity.cards import GPUS, gpu
from vllm_supervisor.domain.capacity.limits import problems, sizes
from vllm_supervisor.domain.capacity.precision import precision
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.domain.capacity.remedies import remedies
from vllm_supervisor.domain.capacity.sizing import Ask, Gpus, Model, size
from vllm_supervisor.domain.capacity.weights import Layout

Found = Callable[[], list[str]]
"""Tables hold these, so that what is tested runs in the test and not while the table is read."""


def complaints(config: models.Config, card: str = "H100", count: int = 64, **ask: Any) -> list[str]:
    """What is wrong with these arguments."""
    kind = gpu(card)
    assert kind is not None
    gpus = Gpus(kind.memory, count, kind, kind.name, kind.capability)
    return [str(problem) for problem in problems(Model(read(config), precision(config)), Ask(**ask), gpus)]


AWQ = {**models.LLAMA_3_8B, "quantization_config": {"quant_method": "awq", "bits": 4}}
NVFP4 = {**models.LLAMA_3_8B, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            partial(complaints, models.QWEN_25_7B, layout=Layout(8)),
            "--tensor-parallel-size 8: 28 attention heads do not divide by it; use one of 1, 2, 4",
        ),
        (
            partial(complaints, models.QWEN_35_27B, layout=Layout(6)),
            "--tensor-parallel-size 6: 4 KV heads neither divide by it nor into it; use one of 1, 2, 4, 8",
        ),
        (
            partial(complaints, models.LLAMA_3_8B, count=2, layout=Layout(4)),
            (
                "GPUs: 4 GPUs are needed, 4 x 1 x 1 (tensor x pipeline x data), and there "
                "are 2; give --gpus, or smaller parallel sizes"
            ),
        ),
        (
            partial(complaints, models.LLAMA_3_8B, layout=Layout(1, 64)),
            "--pipeline-parallel-size 64: the model has 32 layers; use fewer stages than layers",
        ),
        (
            partial(complaints, models.LLAMA_3_8B, max_model_len=9000),
            "--max-model-len 9000: the model was made for 8192 tokens; use 8192 or less",
        ),
        (
            partial(complaints, models.LLAMA_3_8B, context=8000, output=500),
            (
                "--context and --output: 8500 tokens are more than the context of 8192; "
                "give a request that fits, or raise --max-model-len"
            ),
        ),
        (
            partial(complaints, models.LLAMA_3_8B, utilization=1.5),
            "--gpu-memory-utilization: 1.5 is no share; use one such as 0.90",
        ),
        (
            partial(complaints, AWQ, "V100 32"),
            (
                "quantization awq: V100 32 has compute capability 7.0, it needs 7.5; "
                "choose a checkpoint in another quantization, or another GPU"
            ),
        ),
        (
            partial(complaints, AWQ, quantization="fp8"),
            "--quantization fp8: the checkpoint is AWQ, 4 bit; leave --quantization away, or name another checkpoint",
        ),
        (
            partial(complaints, NVFP4, "MI300X"),
            "quantization modelopt_fp4: MI300X has no NVFP4; choose an FP8 or MXFP4 checkpoint",
        ),
        (
            partial(complaints, models.LLAMA_3_8B, "T4", dtype="bfloat16"),
            "--dtype bfloat16: T4 has compute capability 7.5, it needs 8.0; use --dtype half",
        ),
    ],
    ids=["heads", "kv heads", "gpus", "stages", "length", "request", "share", "old", "two methods", "amd", "bfloat16"],
)
def test_what_vllm_would_refuse_is_said_with_the_remedy(found: Found, words: str) -> None:
    """One complaint each, and the way out in it."""
    assert found() == [words]


FP8_MOE = {**models.QWEN_3_30B_A3B, "quantization_config": models.FP8}
FP8_DENSE = {**models.QWEN_25_7B, "quantization_config": models.FP8, "num_key_value_heads": 28}
OLD = (0, 24)


def packed(weights: dict[str, Any], **inputs: Any) -> models.Config:
    """Llama 3 in compressed-tensors."""
    group = {"weights": weights, "targets": ["Linear"], "input_activations": inputs or None}
    return {
        **models.LLAMA_3_8B,
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": group}},
    }


INT8, INT4 = {"num_bits": 8, "type": "int"}, {"num_bits": 4, "type": "int", "group_size": 128}
MXFP4 = {"num_bits": 4, "type": "float", "group_size": 32}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            partial(complaints, FP8_MOE, layout=Layout(4), version=OLD),
            "an expert is 768 wide, and 1/4 of that is not made of blocks of 128; use one of 1, 2, or --enable",
        ),
        (
            partial(complaints, FP8_DENSE, layout=Layout(7)),
            "an MLP is 18944 wide, and 1/7 of that is not made of blocks of 128",
        ),
        (
            partial(complaints, packed(INT8, num_bits=8, type="int"), "V100 32"),
            "7.0, compressed-tensors, INT8 needs 7.5; choose",
        ),
        (partial(complaints, packed(MXFP4), "T4"), "7.5, compressed-tensors, MXFP4 needs 8.0"),
        (
            partial(complaints, packed(INT4, num_bits=8, type="float"), "RTX 4090"),
            "8.9, compressed-tensors, INT4 needs 9.0",
        ),
    ],
    ids=["experts", "mlp", "w8a8", "mxfp4", "w4a8"],
)
def test_what_a_scheme_needs_is_said(found: Found, words: str) -> None:
    """Blocks of FP8 are not cut; a scheme of compressed-tensors needs its own compute capability."""
    (complaint,) = found()
    assert words in complaint


def test_blocks_are_not_cut_by_what_is_offered() -> None:
    """Qwen3-30B in FP8 goes on two GPUs before 0.32; on more with its experts spread, or with finer blocks."""
    model = Model(read(FP8_MOE), precision(FP8_MOE))
    assert sizes(model, Ask(version=OLD)) == [1, 2]
    assert sizes(model, Ask(version=OLD, layout=Layout(expert_parallel=True))) == [1, 2, 4, 8]
    assert sizes(model, Ask(version=(0, 32))) == [1, 2, 4, 8]


@pytest.mark.parametrize(
    "found",
    [
        partial(complaints, models.LLAMA_3_8B, layout=Layout(8)),
        partial(complaints, models.QWEN_3_NEXT, layout=Layout(4)),
        partial(complaints, AWQ, "T4", quantization="awq_marlin"),
        partial(complaints, models.LLAMA_3_8B, max_model_len=9000, allows_long=True),
        partial(complaints, models.LLAMA_3_8B, max_model_len=-1),
    ],
    ids=["divides", "heads repeated", "marlin is awq", "long by choice", "auto"],
)
def test_what_vllm_takes_is_taken(found: Found) -> None:
    """No complaint."""
    assert found() == []


def test_only_sizes_that_divide_are_offered() -> None:
    """Qwen2.5-7B has 28 heads and 4 KV heads."""
    assert sizes(Model(read(models.QWEN_25_7B)), Ask()) == [1, 2, 4]


def test_what_helps_is_told_with_its_figures() -> None:
    """70B in 16 bit does not fit one H100: fewer bits and more GPUs do, each with what it leads to."""
    now = sized(models.LLAMA_3_70B, Ask(utilization=0.9))
    assert not now.fits
    found = {remedy.change: remedy.sizing for remedy in remedies(now)}
    four = found["a 4-bit checkpoint (AWQ or GPTQ)"]
    assert four.fits
    assert four.weights.rank < now.weights.rank / 3
    two = found["--tensor-parallel-size 2"]
    assert two.weights.rank == pytest.approx(now.weights.rank / 2, rel=0.01)
    assert all(change.partition(" ")[0] != "--max-model-len" for change in found)


def test_what_fits_comes_first_and_the_largest_effect_before_the_smaller() -> None:
    """The order is that of use."""
    found = remedies(sized(models.LLAMA_3_70B, Ask(utilization=0.9)))
    assert [remedy.sizing.fits for remedy in found] == sorted((remedy.sizing.fits for remedy in found), reverse=True)
    fitting = [remedy.effect for remedy in found if remedy.sizing.fits]
    assert fitting == sorted(fitting, reverse=True)


def test_a_context_that_is_too_long_is_shortened_to_what_fits() -> None:
    """The length offered is one that vLLM starts with, and 1024 more is not."""
    now = sized(models.LLAMA_3_8B, Ask(max_model_len=131072, allows_long=True, utilization=0.92), "L4")
    found = next(one for one in remedies(now) if one.change.startswith("--max-model-len"))
    assert not now.fits
    assert found.sizing.fits
    longer = replace(now.ask, max_model_len=found.sizing.max_len + 1024)
    assert not sized(models.LLAMA_3_8B, longer, "L4").fits


def test_more_than_a_node_goes_by_stages() -> None:
    """DeepSeek-V3 on H100: eight are not enough; the second node gets layers, not heads."""
    now = sized(models.DEEPSEEK_V3, Ask(layout=Layout(8)))
    assert not now.fits
    assert "2 nodes: --tensor-parallel-size 8 --pipeline-parallel-size 2" in [one.change for one in remedies(now)]


def test_fp8_is_marked_where_the_card_does_not_compute_in_it() -> None:
    """An A100 stores FP8 and computes in 16 bit; an RTX 4090 does both."""
    slow, quick = (
        next(one for one in remedies(sized(models.LLAMA_3_70B, Ask(), card)) if "fp8" in one.change)
        for card in ("A100 80", "H200")
    )
    assert slow.note == "before Ada (8.9) it saves memory, not time"
    assert quick.note == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA A100-SXM4-80GB", "A100 80"),
        ("NVIDIA A100-PCIE-40GB", "A100 40"),
        ("A100 40", "A100 40"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB10", "GB10"),
        ("DGX Spark", "GB10"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Voodoo 2", None),
    ],
)
def test_cards_are_known_as_drivers_and_people_call_them(text: str, name: str | None) -> None:
    """One table, many spellings."""
    found = gpu(text)
    assert (found.name if found else None) == name


def test_every_card_is_found_by_its_own_name() -> None:
    """No name in the table hides another."""
    assert [found.name for card in GPUS if (found := gpu(card.name)) is not None] == [card.name for card in GPUS]


def test_a_cache_of_given_size_must_fit_beside_the_weights() -> None:
    """`--kv-cache-memory-bytes` is taken as it is: with the weights it may be more than the card has."""
    ask = Ask(kv_cache_memory=30 << 30)
    now = sized(models.LLAMA_3_8B, ask, "L40S")
    assert not now.fits
    assert now.beyond == now.weights.rank + now.overhead.likely + (30 << 30) - now.gpus.memory
    smaller = next(one for one in remedies(now) if one.change.startswith("--kv-cache-memory-bytes"))
    assert smaller.sizing.fits
    assert not smaller.sizing.beyond
    assert any(one.sizing.fits for one in remedies(now) if "fp8" in one.change)
    assert sized(models.LLAMA_3_8B, replace(ask, kv_cache_memory=20 << 30), "L40S").fits
    large = sized(models.LLAMA_3_70B, Ask(kv_cache_memory=1 << 30))
    assert not large.fits
    assert not [one.change for one in remedies(large) if "--kv-cache-memory-bytes" in one.change], "nothing is left"
    assert not sized({**models.BERT, "num_hidden_layers": 4000}, Ask(kv_cache_memory=1 << 20), "L4").fits


def test_a_card_that_is_too_old_is_refused() -> None:
    """Pascal is older than anything that vLLM runs on."""
    model = Model(read(models.LLAMA_3_8B), precision(models.LLAMA_3_8B))
    (problem,) = problems(model, Ask(), Gpus(16 << 30, 1, None, "P100", (6, 0)))
    assert str(problem) == "GPU: P100 has compute capability 6.0, vLLM needs 7.0; use another GPU"


TENSORS = ["--tensor-parallel-size 2", "--tensor-parallel-size 4", "--tensor-parallel-size 8"]
BITS = ["--quantization fp8, or an FP8 checkpoint", "a 4-bit checkpoint (AWQ or GPTQ)"]
FOUR_OF_FOUR = "4 nodes: --tensor-parallel-size 4 --pipeline-parallel-size 4"
NODES = [
    "2 nodes: --tensor-parallel-size 8 --pipeline-parallel-size 2",
    "4 nodes: --tensor-parallel-size 8 --pipeline-parallel-size 4",
]


@pytest.mark.parametrize(
    ("config", "ask", "card", "changes"),
    [
        (models.LLAMA_3_70B, Ask(), "V100 32", TENSORS),
        (models.LLAMA_3_70B, Ask(layout=Layout(2)), "L4", [*BITS, *TENSORS[1:]]),
        (models.DEEPSEEK_V3, Ask(layout=Layout(8)), "L4", NODES),
        (
            {**models.QWEN_25_7B, "num_hidden_layers": 560}, Ask(), "T4",
            [*BITS, *TENSORS[:2], FOUR_OF_FOUR, f"{BITS[1]} and {FOUR_OF_FOUR}"],
        ),
        (models.LLAMA_3_70B, Ask(kv_cache_dtype="fp8", utilization=0.9), "H100", [*BITS, TENSORS[0]]),
        ({**models.BERT, "num_hidden_layers": 4000}, Ask(), "L4", [*BITS, *TENSORS[:2]]),
    ],
    ids=["a card without FP8 and AWQ", "wider than it is", "nothing is enough", "heads that divide by four",
         "the cache is in FP8 already", "an encoder"],
)  # fmt: skip
def test_only_what_could_help_is_offered(config: models.Config, ask: Ask, card: str, changes: list[str]) -> None:
    """Not what the card cannot, what is so already, nor more GPUs once it fits."""
    assert sorted(one.change for one in remedies(sized(config, ask, card))) == sorted(changes)


def test_two_changes_together_where_none_is_enough_alone() -> None:
    """70B at 128k tokens on one card of 48 GB: four bits make room for weights, a shorter context for requests."""
    now = sized(models.LLAMA_3_70B, Ask(max_model_len=131072, allows_long=True), "L40S")
    alone = replace(now, gpus=replace(now.gpus, count=1))
    found = remedies(alone)
    fitting = [one for one in found if one.sizing.fits and one.sizing.ask.layout.ranks == 1]
    assert fitting
    assert all(one.change.startswith("a 4-bit checkpoint (AWQ or GPTQ) and --max-model-len ") for one in fitting)
    assert fitting[0].sizing.weights.rank < now.weights.rank / 3
    longer = replace(fitting[0].sizing.ask, max_model_len=fitting[0].sizing.max_len + 1024)
    assert not size(fitting[0].sizing.model, longer, alone.gpus).fits


def test_two_changes_are_not_offered_where_one_does() -> None:
    """The smaller advice is the better."""
    now = sized(models.LLAMA_3_70B, Ask(utilization=0.9))
    assert not [one.change for one in remedies(now) if " and " in one.change]
