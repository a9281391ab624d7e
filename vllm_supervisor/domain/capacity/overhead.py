"""What an engine takes beside weights and KV cache. It cannot be computed, so it is a range, and a figure to go by.

The figure is a fit to published starts (facts and sources: CUDA's context, activations of the largest batch against the
sampler's buffers, CUDA graphs); vLLM's own figures replace it as soon as it has started once.
"""

from dataclasses import dataclass

from vllm_supervisor.domain.capacity.architecture import Architecture
from vllm_supervisor.domain.units import GIB

_LEAST, _MOST = 0.6, 1.6
"""How far activations lie from the figure."""
_CONTEXT = (0.35, 0.45, 0.9)
"""GiB of CUDA's context, libraries and workspaces: least, likely, most."""
_COMMUNICATION = (0.15, 0.4, 1.2)
"""GiB of NCCL and the all-reduce buffers, where there is more than one rank."""
_GRAPHS = (0.12, 0.008)
"""GiB of CUDA graphs: at least, and for each layer."""
_GRAPHS_RANGE = (0.4, 2.2)
_ENCODER = 2.0
"""GiB at most for the activations of what reads images or sound."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """Bytes on one GPU: what to go by, and the range that it lies in."""

    likely: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step may hold: tokens and requests."""

    tokens: int
    sequences: int


def overhead(
    architecture: Architecture,
    batch: Batch,
    *,
    tensor: int,
    ranks: int,
    plain_bytes: int,
    graphs: bool,
) -> Overhead:
    """Return what is taken on one GPU. `graphs`: CUDA graphs are captured, and count."""
    hidden, width = architecture.hidden, architecture.widest
    activations = batch.tokens * (5 * hidden + 4 * width / tensor) * plain_bytes
    # The sampler's logits, twice in FP32 for each request of a step; never at the same time as the largest batch.
    sampler = 0 if architecture.pooling else batch.sequences * architecture.vocabulary * 8
    peak = max(activations, sampler) / GIB
    captured = _GRAPHS[0] + _GRAPHS[1] * architecture.layers if graphs and not architecture.pooling else 0.0
    joined = _COMMUNICATION if ranks > 1 else (0.0, 0.0, 0.0)
    seen = _ENCODER if architecture.beside else 0.0
    least = _CONTEXT[0] + _LEAST * peak + _GRAPHS_RANGE[0] * captured + joined[0]
    likely = _CONTEXT[1] + peak + captured + joined[1] + seen / 4
    most = _CONTEXT[2] + _MOST * peak + _GRAPHS_RANGE[1] * captured + joined[2] + seen
    return Overhead(int(likely * GIB), int(least * GIB), int(most * GIB))
