"""What of a model decides how much memory it takes: its matrices, and what its layers keep of a request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Keeps(StrEnum):
    """What a layer keeps of a request."""

    FULL = "full"
    SLIDING = "sliding"
    """Keys and values of the last `window` tokens."""
    CHUNKED = "chunked"
    """Keys and values of the chunk of `window` tokens that the last one is in."""
    LATENT = "latent"
    """One vector a token for all heads (multi-head latent attention): every tensor-parallel rank holds all of it."""
    STATE = "state"
    """A state of fixed size (Mamba, linear attention)."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a recurrent layer for one request, in elements, over all tensor-parallel ranks.

    `channels` of a convolution keep `taps` elements each, in the model's type; among them are `2 * group_size` for each
    of `groups`, which is raised to the ranks where it does not divide by them (vLLM's
    `MambaStateShapeCalculator`). `elements` is the recurrent state proper, `element_bytes` its type where that is not
    the model's.
    """

    channels: int
    taps: int
    elements: int
    groups: int = 0
    group_size: int = 0
    element_bytes: int | None = None

    def size(self, ranks: int, model_bytes: int) -> int:
        """Return the bytes on one of `ranks`."""
        extra = 0 if self.groups % ranks == 0 else ranks - self.groups
        channels = self.channels + 2 * extra * self.group_size
        return channels // ranks * self.taps * model_bytes + self.elements // ranks * (
            self.element_bytes or model_bytes
        )


@dataclass(frozen=True, slots=True)
class Cache:
    """What one layer keeps. `heads` are KV heads over all ranks, `k_size` and `v_size` elements a head and token.

    `raw_bytes` are kept for each token beside that, whatever the type of the cache (a sparse indexer's keys).
    """

    keeps: Keeps
    heads: int = 0
    k_size: int = 0
    v_size: int = 0
    window: int = 0
    raw_bytes: int = 0
    state: State | None = None


class Part(StrEnum):
    """The kinds of matrices, as far as they are stored or divided differently."""

    EMBEDDING = "embeddings"
    HEAD = "output head"
    NORM = "norms and biases"
    ATTENTION = "attention"
    KEY_VALUE = "keys and values"
    """Projections to KV heads: repeated where there are fewer heads than ranks."""
    LATENT = "latents"
    """Projections to latents, which every rank holds whole."""
    MLP = "MLP"
    EXPERTS = "experts"
    ROUTER = "routers"
    MIXER = "mixers"
    """Projections of Mamba and linear attention."""
    ENCODER = "encoder"
    """What reads images or sound."""
    DRAFT = "draft"
    """Layers that predict further tokens: in the checkpoint, loaded only for speculative decoding."""


Parameters = Mapping[Part, int]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model, as its configuration describes it. Counts are over all ranks."""

    name: str
    family: str
    """`model_type`."""
    caches: tuple[Cache, ...]
    parameters: Parameters
    hidden: int
    heads: int
    """Attention heads: what tensor parallelism has to divide. 0 for a model without attention."""
    kv_heads: int
    vocabulary: int
    layers: int
    widest: int
    """Elements that the largest intermediate result of a layer has for each token, over all ranks."""
    experts: int = 0
    active_experts: int = 0
    max_len: int | None = None
    """Tokens that the model was made for; None where the configuration does not say."""
    dtype_bytes: int = 2
    """Of what is not quantized, in the checkpoint."""
    pooling: bool = False
    """An encoder: it answers with vectors and keeps nothing of a request."""
    tied: bool = False
    """The output head is the embeddings."""
    beside: tuple[str, ...] = ()
    """Names of what the model has beside its text part."""
    uncounted: tuple[str, ...] = ()
    """Those among `beside` whose weights the configuration does not tell."""
    divided: tuple[tuple[str, int], ...] = field(default=())
    """Further counts that tensor parallelism has to divide: (name, count)."""
    inner: int = 0
    """Width of an MLP that is no expert, 0 where there is none."""
    expert_inner: int = 0
    """Width of an expert."""

    @property
    def total(self) -> int:
        """All parameters that are loaded."""
        return sum(count for part, count in self.parameters.items() if part is not Part.DRAFT)

    @property
    def active(self) -> int:
        """Parameters that take part in each token."""
        if not self.experts:
            return self.total
        idle = self.experts - self.active_experts
        return self.total - self.parameters.get(Part.EXPERTS, 0) * idle // self.experts

    @property
    def recurrent(self) -> bool:
        """Whether some layer keeps a state of fixed size."""
        return any(cache.keeps is Keeps.STATE for cache in self.caches)
