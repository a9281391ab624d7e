"""What the weights take: all of them, and on the rank that has most."""

from dataclasses import dataclass
from math import ceil

from vllm_supervisor.domain.capacity.architecture import Architecture, Part
from vllm_supervisor.domain.capacity.modules import LINEAR
from vllm_supervisor.domain.capacity.precision import Precision

_WHOLE = frozenset({Part.NORM, Part.ROUTER, Part.LATENT})
"""What every tensor-parallel rank holds all of."""
_BY_LAYER = LINEAR | {Part.NORM, Part.ROUTER}
"""What pipeline parallelism divides."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the model is spread: tensor, pipeline and data parallel sizes."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert_parallel: bool = False
    """Whether experts are spread over the data-parallel ranks as well."""

    @property
    def ranks(self) -> int:
        """The GPUs that it takes."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the weights. `whole` are those of the model once, as loaded; `stored` those in the checkpoint.

    `rank` are those on the GPU that has most of them. `source` says where the figures come from.
    """

    whole: int
    stored: int
    rank: int
    source: str
    draft: int = 0
    """Those among `stored` that are not loaded."""


def by_part(architecture: Architecture, precision: Precision, plain_bits: float) -> dict[Part, int]:
    """Return the bytes of each part."""
    return {
        part: ceil(count * precision.of(part, plain_bits) / 8)
        for part, count in architecture.parameters.items()
        if count
    }


def weights(
    architecture: Architecture,
    layout: Layout,
    *,
    stored: Precision,
    loaded: Precision,
    plain_bytes: int = 2,
    found: int | None = None,
) -> Weights:
    """Return what the weights take.

    `stored` is how the checkpoint has them, `loaded` how the engine will: another where it quantizes them itself.
    `plain_bytes` is what a parameter takes that is not quantized, once loaded. `found` are the bytes of the tensors in
    a checkpoint (less what is not loaded): where they are known, they count, and the configuration only divides them.
    """
    in_memory = {
        part: size for part, size in by_part(architecture, loaded, 8 * plain_bytes).items() if part is not Part.DRAFT
    }
    on_disk = by_part(architecture, stored, 8 * architecture.dtype_bytes)
    scale = 1.0
    if found is not None:
        scale = found / sum(size for part, size in on_disk.items() if part is not Part.DRAFT)
    rank = sum(size * _share(part, architecture, layout) for part, size in in_memory.items())
    return Weights(
        whole=round(sum(in_memory.values()) * scale),
        stored=found if found is not None else sum(_with_draft(architecture, stored, on_disk).values()),
        rank=ceil(rank * scale),
        source="configuration" if found is None else "checkpoint",
        draft=0 if found is not None else _with_draft(architecture, stored, on_disk).get(Part.DRAFT, 0),
    )


def _with_draft(architecture: Architecture, precision: Precision, sizes: dict[Part, int]) -> dict[Part, int]:
    """Store layers that predict further tokens as most of the model is; their copies of embeddings and head plainly."""
    draft = architecture.parameters.get(Part.DRAFT, 0)
    if not draft or not precision.parts:
        return sizes
    copies = min(draft, 2 * architecture.vocabulary * architecture.hidden)
    bits = (draft - copies) * precision.bits + copies * 8 * architecture.dtype_bytes
    return {**sizes, Part.DRAFT: ceil(bits / 8)}


def _share(part: Part, architecture: Architecture, layout: Layout) -> float:
    """Return the share of a part on the rank that has most of it."""
    stages = layout.pipeline
    layers = -(-architecture.layers // stages) / architecture.layers if part in _BY_LAYER else 1.0
    if part in _WHOLE:
        return layers
    if part is Part.KEY_VALUE and architecture.kv_heads:
        return layers * -(-architecture.kv_heads // layout.tensor) / architecture.kv_heads
    if part is Part.EXPERTS and layout.expert_parallel:
        return layers / (layout.tensor * layout.data)
    # The first stage has the embeddings, the last one the head, and both are of one size: of two halves one is whole.
    if part in (Part.HEAD, Part.EMBEDDING) and stages > 1:
        return (0.5 if architecture.parameters.get(Part.HEAD) else 1.0) / layout.tensor
    return layers / layout.tensor
