"""Configurations with junk in them: a figure or a refusal, and never anything else."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.domain.capacity import models
from vllm_supervisor.domain.capacity.cards import gpu
from vllm_supervisor.domain.capacity.limits import problems
from vllm_supervisor.domain.capacity.precision import precision
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.domain.capacity.remedies import remedies
from vllm_supervisor.domain.capacity.sizing import Ask, Gpus, Model, size
from vllm_supervisor.domain.capacity.weights import Layout
from vllm_supervisor.errors import BadInputError

JUNK: list[Any] = [None, -1, 0, 7, "x", [], {}, [1], [[]], [{}], {"a": 1}, True, 0.5, float("nan"), 10**30]
H100 = gpu("H100")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a configuration; of a list the first."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from places(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield (*path, 0)
        yield from places(value[0], (*path, 0))


def with_junk(config: dict[str, Any], path: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    """The configuration with junk at one place."""
    found = copy.deepcopy(config)
    inner: Any = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = junk
    return found


GROUP = {"weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}, "targets": ["Linear"]}
PACKED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": GROUP}, "ignore": ["lm_head"]}
CONFIGS: dict[str, dict[str, Any]] = {
    "windows": models.GPT_OSS_20B,
    "vision": models.QWEN_25_VL_7B,
    "text inside": models.GEMMA_3_27B,
    "latents": models.DEEPSEEK_V3,
    "delta": models.QWEN_3_NEXT,
    "mamba": models.JAMBA,
    "pattern": models.NEMOTRON_H_8B,
    "encoder": models.BERT,
    "packed": {**models.LLAMA_3_8B, "quantization_config": PACKED},
    "groups": {
        **models.LLAMA_3_8B,
        "quantization_config": {
            **PACKED,
            "config_groups": {"a": {**GROUP, "targets": ["re:.*mlp.*"]}, "b": {**GROUP, "format": "x"}},
        },
    },
    "left alone": {
        **models.QWEN_3_NEXT,
        "quantization_config": {**models.FP8, "modules_to_not_convert": ["model.layers.0.mlp.experts.0.up_proj"]},
    },
    "defaults": models.LLAVA_15_7B,
    "awq": {**models.LLAMA_3_8B, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_junk_anywhere_is_refused_or_sized(config: dict[str, Any]) -> None:
    """Whatever stands wherever."""
    assert H100 is not None
    gpus = Gpus(H100.memory, 1, H100, H100.name, H100.capability)
    surprises = []
    for path in places(config):
        for junk in JUNK:
            broken = with_junk(config, path, junk)
            try:
                model = Model(read(broken), precision(broken))
                list(problems(model, Ask(layout=Layout(2)), gpus))
                remedies(size(model, Ask(), gpus))
            except BadInputError:
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told with its place
                surprises.append((path, junk, repr(error)))
    assert surprises == []
