"""Arguments that vLLM would refuse for this model on these GPUs, each with what to do instead."""

from collections.abc import Iterator
from math import gcd

from vllm_supervisor.domain.capacity.architecture import Architecture, Part
from vllm_supervisor.domain.capacity.capability import LEAST
from vllm_supervisor.domain.capacity.rules import NEWEST
from vllm_supervisor.domain.capacity.sizing import Ask, Gpus, Model
from vllm_supervisor.errors import BadInputError

_VOLTA, _AMPERE = (7, 0), (8, 0)
_NVIDIA_ONLY = frozenset({"modelopt_fp4"})
_AN_MLP, _AN_EXPERT = "an MLP", "an expert"
_FINER_BLOCKS, _FINEST = (0, 32), 32
NODE = 8
"""GPUs that one node has at most; tensor parallelism does not go beyond it."""


def problems(model: Model, ask: Ask, gpus: Gpus) -> Iterator[BadInputError]:
    """Yield what is wrong with the arguments."""
    architecture, layout = model.architecture, ask.layout
    if why := not_divided(architecture, layout.tensor):
        fits = ", ".join(map(str, sizes(model, ask)))
        yield BadInputError(f"--tensor-parallel-size {layout.tensor}", why, f"use one of {fits}")
    elif why := _cuts_blocks(model, ask, layout.tensor):
        fits = ", ".join(map(str, sizes(model, ask)))
        also = ", or --enable-expert-parallel" if why.startswith(_AN_EXPERT) else ""
        yield BadInputError(f"--tensor-parallel-size {layout.tensor}", why, f"use one of {fits}{also}")
    if layout.pipeline > architecture.layers:
        why = f"the model has {architecture.layers} layers"
        yield BadInputError(f"--pipeline-parallel-size {layout.pipeline}", why, "use fewer stages than layers")
    if layout.ranks > gpus.count:
        needs = f"{layout.tensor} x {layout.pipeline} x {layout.data} (tensor x pipeline x data)"
        why = f"{layout.ranks} GPUs are needed, {needs}, and there are {gpus.count}"
        yield BadInputError("GPUs", why, "give --gpus, or smaller parallel sizes")
    if ask.utilization is not None and not 0 < ask.utilization <= 1:
        yield BadInputError("--gpu-memory-utilization", f"{ask.utilization:g} is no share", "use one such as 0.90")
    yield from _length(architecture, ask)
    yield from _formats(model, ask, gpus)


def _length(architecture: Architecture, ask: Ask) -> Iterator[BadInputError]:
    own, asked = architecture.max_len, ask.max_model_len
    if asked is not None and own is not None and asked > own and not ask.allows_long:
        why = f"the model was made for {own} tokens"
        yield BadInputError(f"--max-model-len {asked}", why, f"use {own} or less")
    limit = asked if asked is not None and asked > 0 else own
    request = (ask.context or 0) + (ask.output or 0)
    if limit is not None and request > limit:
        why = f"{request} tokens are more than the context of {limit}"
        yield BadInputError("--context and --output", why, "give a request that fits, or raise --max-model-len")


def _formats(model: Model, ask: Ask, gpus: Gpus) -> Iterator[BadInputError]:
    """Yield number formats that the card does not have."""
    has = gpus.capability
    method = model.stored.method or (ask.quantization if ask.quantization != "auto" else None)
    named = ask.quantization
    if named and model.stored.method and _family(named) != _family(model.stored.method):
        why = f"the checkpoint is {model.stored.label}"
        yield BadInputError(f"--quantization {named}", why, "leave --quantization away, or name another checkpoint")
        return
    if gpus.model is not None and has is None and method in _NVIDIA_ONLY:
        yield BadInputError(f"quantization {method}", f"{gpus.name} has no NVFP4", "choose an FP8 or MXFP4 checkpoint")
    if has is None:
        return
    card = f"{gpus.name or 'the card'} has compute capability {has[0]}.{has[1]}"
    if has < _VOLTA:
        yield BadInputError("GPU", f"{card}, vLLM needs 7.0", "use another GPU")
    elif method is not None and has < (least := model.stored.needs or LEAST.get(method, _VOLTA)):
        why = f"{card}, {model.stored.label if model.stored.needs else 'it'} needs {least[0]}.{least[1]}"
        yield BadInputError(
            f"quantization {method}", why, "choose a checkpoint in another quantization, or another GPU"
        )
    elif ask.dtype == "bfloat16" and has < _AMPERE:
        yield BadInputError("--dtype bfloat16", f"{card}, it needs 8.0", "use --dtype half")


def _family(method: str) -> str:
    """Return what several methods of vLLM read alike: `awq_marlin` is `awq`."""
    return method.lower().replace("-", "_").removeprefix("auto_").removesuffix("_marlin").removeprefix("gpt_oss_")


def not_divided(architecture: Architecture, tensor: int) -> str:
    """Say what does not divide by a tensor-parallel size; nothing where all does."""
    if tensor == 1:
        return ""
    if architecture.heads % tensor:
        return f"{architecture.heads} attention heads do not divide by it"
    kv = architecture.kv_heads
    if kv and (kv % tensor if kv >= tensor else tensor % kv):
        return f"{kv} KV heads neither divide by it nor into it"
    return next((f"{count} ({what}) do not divide by it" for what, count in architecture.divided if count % tensor), "")


def sizes(model: Model, ask: Ask, most: int = NODE) -> list[int]:
    """Return the tensor-parallel sizes that divide the model, up to `most`."""
    every = range(1, most + 1)
    return [size for size in every if not not_divided(model.architecture, size) and not _cuts_blocks(model, ask, size)]


def _cuts_blocks(model: Model, ask: Ask, tensor: int) -> str:
    """Say which matrix a tensor-parallel size cuts through blocks that share a scale; nothing where none.

    vLLM 0.32 refuses that (`validate_fp8_block_shape`), but takes smaller blocks for experts; before it did not.
    """
    architecture, block = model.architecture, model.stored.block
    if tensor == 1 or not block:
        return ""
    spread = ask.layout.expert_parallel
    for_experts = block if (ask.version or NEWEST) < _FINER_BLOCKS else gcd(block, _FINEST)
    expert = 0 if spread else architecture.expert_inner
    found = ((_AN_MLP, Part.MLP, architecture.inner, block), (_AN_EXPERT, Part.EXPERTS, expert, for_experts))
    return next(
        (
            f"{what} is {width} wide, and 1/{tensor} of that is not made of blocks of {side}"
            for what, part, width, side in found
            if width % (tensor * side) and part in model.stored.parts
        ),
        "",
    )
