"""How many tokens and requests a KV cache of given size holds, counted as vLLM counts (v1/core/kv_cache_utils.py)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_supervisor.domain.capacity.architecture import Architecture, Cache, Keeps
from vllm_supervisor.domain.capacity.rules import Rules
from vllm_supervisor.errors import BadInputError

_SCALE = 4
"""Bytes of the scale that comes with each head and token in the `per_token_head` types."""
_DS_MLA = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes a token in the packed layouts of sparse latent attention."""
_ELEMENT = {"float32": 4.0, "float16": 2.0, "half": 2.0, "bfloat16": 2.0, "nvfp4": 0.5 + 1 / 16}
TYPES = (
    "auto", "bfloat16", "float16", "half", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head",
    "int8_per_token_head", "int4_per_token_head", "nvfp4", *_DS_MLA,
)  # fmt: skip
"""Values of `--kv-cache-dtype` whose size is known here."""


@dataclass(frozen=True, slots=True)
class Format:
    """How keys and values are stored: `--kv-cache-dtype`, and the bytes of an element where that is `auto`."""

    kind: str
    model_bytes: int

    @property
    def element(self) -> float:
        """Bytes of an element."""
        if self.kind == "auto":
            return float(self.model_bytes)
        if self.kind.startswith("int4"):
            return 0.5
        return _ELEMENT.get(self.kind, 1.0)

    @property
    def scale(self) -> int:
        """Bytes beside the elements, for each head, token, and for keys and values each."""
        return _SCALE if self.kind.endswith("per_token_head") else 0


def format_of(kind: str, model_bytes: int) -> Format:
    """Return the format called `kind`. Raises BadInputError for one that is not known here."""
    if kind not in TYPES:
        raise BadInputError(f"--kv-cache-dtype {kind}", "it is not known here", f"use one of {', '.join(TYPES)}")
    return Format(kind, model_bytes)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a table of blocks: what they keep, and how many tokens a block of theirs has."""

    keeps: Keeps
    window: int
    block: int


@dataclass(frozen=True, slots=True)
class Pool:
    """The blocks of a KV cache on one rank: a request takes some for each group, all from one pool."""

    groups: tuple[Group, ...]
    block_bytes: int
    """Bytes of a block, of all layers of a group."""
    block: int
    """Tokens of a block, as vLLM says them."""
    in_flight: int
    """Tokens that a window may hold beyond itself: scheduled, and not done with."""
    rules: Rules
    state_blocks: int = 1
    """Blocks that a request takes for a state: two with prefix caching (mamba_cache_mode `align`), else one."""

    def needed(self, tokens: int) -> int:
        """Return the blocks of one request with `tokens`."""
        return sum(self._of(group, tokens) for group in self.groups)

    def _of(self, group: Group, tokens: int) -> int:
        match group.keeps:
            case Keeps.SLIDING:
                # One more, because a window need not begin where a block does.
                return _up(min(group.window - 1 + self.in_flight, tokens), group.block) + 1
            case Keeps.CHUNKED:
                return _up(min(group.window + self.in_flight, tokens), group.block)
            case Keeps.STATE:
                return self.state_blocks
            case _:
                return _up(tokens, group.block)

    def blocks(self, budget: int) -> int:
        """Return the blocks that `budget` bytes hold."""
        return max(0, budget) // self.block_bytes

    def room(self, budget: int, tokens: int) -> "Room":
        """Return what `budget` bytes hold, for requests of `tokens`, in the figures that vLLM prints."""
        blocks = self.blocks(budget)
        by_blocks = self.rules.counts_blocks
        concurrency = blocks / self.needed(tokens) if by_blocks else blocks * self.block / tokens
        if self.rules.derives_tokens:
            held = int(concurrency * tokens)
        else:
            held = blocks // (len(self.groups) if self.rules.forgets else 1) * self.block
        return Room(blocks, held, concurrency, blocks - self.rules.reserved_blocks >= self.needed(tokens))

    def longest(self, budget: int, limit: int) -> int:
        """Return the longest request, up to `limit` tokens, that `budget` bytes hold; 0 where none."""
        usable, low, high = self.blocks(budget) - self.rules.reserved_blocks, 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.needed(middle) <= usable else (low, middle - 1)
        return low


@dataclass(frozen=True, slots=True)
class Room:
    """What a pool holds: `tokens` and `concurrency` are the figures of vLLM's own line."""

    blocks: int
    tokens: int
    concurrency: float
    fits: bool
    """Whether one request fits, without which vLLM does not start."""


def _up(count: int, by: int) -> int:
    return -(-count // by)


def token_bytes(cache: Cache, tensor: int, form: Format) -> int:
    """Return what one layer keeps of one token, on one rank."""
    if cache.keeps is Keeps.LATENT:
        return _DS_MLA.get(form.kind, int(cache.k_size * form.element)) + cache.raw_bytes
    heads = _up(cache.heads, tensor)  # fewer heads than ranks: each rank holds one, repeated
    return int(heads * ((cache.k_size + cache.v_size) * form.element + 2 * form.scale))


@dataclass(frozen=True, slots=True)
class PerToken:
    """Bytes of one token on the rank that keeps most. `ever` is what stays however long the request grows."""

    ever: int
    at_first: int
    """What it takes while all windows see it."""


def per_token(architecture: Architecture, tensor: int, pipeline: int, form: Format) -> PerToken | None:
    """Return the bytes of a token; None where there is no such figure, because some layers keep a state instead."""
    if architecture.recurrent or not architecture.caches:
        return None
    layers = [(cache.keeps, token_bytes(cache, tensor, form)) for cache in _stage(architecture.caches, pipeline)]
    at_first = sum(size for _, size in layers)
    ever = sum(size for keeps, size in layers if keeps in (Keeps.FULL, Keeps.LATENT))
    return PerToken(ever or at_first, at_first)


def _stage(caches: tuple[Cache, ...], pipeline: int) -> tuple[Cache, ...]:
    """Return the layers of the stage that keeps most: of each kind its share, rounded up."""
    if pipeline == 1:
        return caches
    return tuple(cache for cache, count in Counter(caches).items() for _ in range(_up(count, pipeline)))


@dataclass(frozen=True, slots=True)
class Allocation:
    """How the engine divides its cache. `block` is `--block-size`, `in_flight` tokens are scheduled and not done with.

    Without `forgets` (`--disable-hybrid-kv-cache-manager`, or a version that has none) layers with a window keep
    everything, where others do. `caches_states`: prefix caching, which keeps one more state.
    """

    rules: Rules
    block: int
    in_flight: int
    forgets: bool
    caches_states: bool


def pool(architecture: Architecture, tensor: int, pipeline: int, form: Format, how: Allocation) -> Pool | None:
    """Return the blocks that requests will share; None for a model that keeps nothing."""
    caches = _stage(architecture.caches, pipeline)
    if not caches:
        return None
    kinds = Counter((cache.keeps, cache.window) for cache in caches)
    if not how.forgets and len(kinds) > 1:
        kinds = Counter(
            (Keeps.FULL, 0) if keeps in (Keeps.SLIDING, Keeps.CHUNKED) else (keeps, window)
            for keeps, window in kinds.elements()
        )
    states = [cache.state.size(tensor, form.model_bytes) for cache in caches if cache.state is not None]
    sizes = [token_bytes(cache, tensor, form) for cache in caches if cache.state is None]
    block = how.block
    if len(kinds) == 1:
        groups: Iterable[tuple[Keeps, int]] = kinds
        whole = sum(states) if not sizes else block * sum(sizes)
    else:
        token = max(sizes, default=1)
        if states:
            # A block of attention is made as large as a state, and a state padded to it: they share one pool.
            block *= _up(max(states), block * token)
        layers, groups = _grouped(kinds)
        whole = layers * block * token
    made = tuple(Group(keeps, window, block) for keeps, window in groups)
    return Pool(made, whole, block, how.in_flight, how.rules, 2 if how.caches_states else 1)


def _grouped(kinds: Counter[tuple[Keeps, int]]) -> tuple[int, Iterable[tuple[Keeps, int]]]:
    """Split the layers into groups of one size: that of the rarest kind, unless the kinds are nearly as many."""
    least, most = min(kinds.values()), max(kinds.values())
    size = most if most < least * 1.5 else least
    return size, [kind for kind, count in kinds.items() for _ in range(_up(count, size))]
