"""Does a model fit, and how many requests at once: weights, what is beside them, and the KV cache that is left."""

from dataclasses import dataclass, field, replace

from vllm_supervisor.domain.capacity.architecture import Architecture
from vllm_supervisor.domain.capacity.cards import GpuModel
from vllm_supervisor.domain.capacity.kv import Allocation, PerToken, Pool, Room, format_of, per_token, pool
from vllm_supervisor.domain.capacity.measured import Measured
from vllm_supervisor.domain.capacity.overhead import Batch, Overhead, overhead
from vllm_supervisor.domain.capacity.precision import Precision, converted
from vllm_supervisor.domain.capacity.rules import Rules, Version, rules
from vllm_supervisor.domain.capacity.weights import Layout, Weights, by_part, weights

SAFE = 0.9
"""Share of the KV cache that a steady load may fill: at the brim requests are preempted and computed again."""
_FAR = 3
"""A checkpoint so many times larger or smaller than counted is not the model of its configuration."""
_DEFAULT_LENGTH = 2048
"""What vLLM assumes where a configuration does not say how long a context may be."""
_FLOAT32 = 4
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
"""Values of `--dtype` (config/model.py, 0.32)."""
_BLOCK = 16
_REQUEST = (2048, 512)
"""Tokens in and out of a request, where nobody says what is realistic."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of a model: its architecture, how it is stored, and the bytes of its checkpoint where it is here.

    `found` are those of its tensors, less `draft` of layers that are not loaded.
    """

    architecture: Architecture
    stored: Precision = field(default_factory=Precision)
    found: int | None = None
    draft: int = 0


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs: bytes of one as CUDA reports them, how many there are, and which, where that is known."""

    memory: int
    count: int = 1
    model: GpuModel | None = None
    name: str = ""
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """vLLM's arguments, as far as they decide about memory; None where the choice is vLLM's.

    `context` and `output` are the tokens of a realistic request, without and with its answer.
    """

    layout: Layout = field(default_factory=Layout)
    utilization: float | None = None
    max_model_len: int | None = None
    """-1 for the longest that fits."""
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    dtype: str = "auto"
    kv_cache_memory: int | None = None
    block_size: int | None = None
    batched_tokens: int | None = None
    sequences: int | None = None
    eager: bool = False
    keeps_all: bool = False
    """`--disable-hybrid-kv-cache-manager`."""
    prefix_caching: bool | None = None
    allows_long: bool = False
    """VLLM_ALLOW_LONG_MAX_MODEL_LEN: a context beyond the model's own limit is no error."""
    context: int | None = None
    output: int | None = None
    version: Version | None = None


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer. Bytes are those of one GPU, the one that holds most."""

    model: Model
    ask: Ask
    gpus: Gpus
    rules: Rules
    loaded: Precision
    utilization: float
    requested: int
    """What vLLM takes in all: its share of the memory."""
    weights: Weights
    overhead: Overhead
    budget: int
    """What is left for the KV cache; below 0 where something is missing."""
    budget_range: tuple[int, int]
    max_len: int
    kv_dtype: str
    per_token: PerToken | None
    pool: Pool | None
    room: Room | None
    measured: Measured | None = None

    @property
    def fits(self) -> bool:
        """Whether the engine would start."""
        return (self.room.fits if self.room is not None else self.budget >= 0) and not self.beyond

    @property
    def beyond(self) -> int:
        """Bytes that a cache of given size takes beyond the card, with the weights and what is beside them; else 0.

        vLLM takes such a cache without looking whether there is room, and runs out of memory.
        """
        return self._beyond(self.overhead.likely)

    def _beyond(self, beside: int) -> int:
        given = self.ask.kv_cache_memory
        if given is None or not self.gpus.memory or self.measured is not None:
            return 0
        return max(0, self.weights.rank + beside + (given if self.pool is not None else 0) - self.gpus.memory)

    @property
    def doubtful(self) -> tuple[int, int] | None:
        """Bytes of the checkpoint and those that the configuration counts, where they are not of one model."""
        found = self.model.found
        if found is None:
            return None
        counted = sum(
            by_part(self.model.architecture, self.model.stored, 8 * self.model.architecture.dtype_bytes).values()
        )
        return None if found <= counted * _FAR and counted <= found * _FAR else (found, counted)

    @property
    def tight(self) -> bool:
        """Whether it depends on how much is really taken beside the weights."""
        if (self._beyond(self.overhead.least) > 0) != (self._beyond(self.overhead.most) > 0):
            return True
        if self.pool is None:
            return (self.budget_range[0] >= 0) != (self.budget_range[1] >= 0)
        least, most = (self.pool.room(max(0, budget), self.max_len).fits for budget in self.budget_range)
        return least != most

    @property
    def request(self) -> tuple[int, int]:
        """The realistic request, tokens in and out: as asked for, else `_REQUEST`, if the context allows."""
        given_in, given_out = self.ask.context, self.ask.output
        context = given_in if given_in is not None else min(_REQUEST[0], self.max_len * 3 // 4)
        output = given_out if given_out is not None else min(_REQUEST[1], self.max_len - context)
        return context, max(0, output)

    @property
    def at_once(self) -> int | None:
        """Realistic requests at once: as many as fill `SAFE` of the cache, and no more than `--max-num-seqs`."""
        if self.pool is None:
            return None
        blocks = self.pool.blocks(max(0, self.budget))
        return min(int(blocks * SAFE / self.pool.needed(max(1, sum(self.request)))), self.sequences)

    @property
    def sequences(self) -> int:
        """`--max-num-seqs`."""
        return self.ask.sequences or self.rules.sequences

    @property
    def request_bytes(self) -> int | None:
        """What one request at the full context takes."""
        return None if self.pool is None else self.pool.needed(self.max_len) * self.pool.block_bytes


def size(model: Model, ask: Ask, gpus: Gpus, measured: Measured | None = None) -> Sizing:
    """Work it out. `measured` are the figures of an earlier start with these arguments: they replace the estimates.

    Raises BadInputError for a cache type or a quantization that is not known here; whether the arguments make sense
    for this model and these GPUs, `limits.problems` says.
    """
    architecture = model.architecture
    known = rules(ask.version, gpus.memory, gpus.model.name if gpus.model else "")
    plain = _FLOAT32 if ask.dtype in ("float32", "float") else 2
    loaded = _loaded(model, ask)
    taken = weights(architecture, ask.layout, stored=model.stored, loaded=loaded, plain_bytes=plain, found=model.found)
    if model.found is not None:
        taken = replace(taken, stored=model.found + model.draft, draft=model.draft)
    batch = Batch(ask.batched_tokens or known.batched_tokens, ask.sequences or known.sequences)
    graphs = not ask.eager and (known.graphs_inside or ask.kv_cache_memory is not None)
    beside = overhead(architecture, batch, tensor=ask.layout.tensor, ranks=ask.layout.ranks, plain_bytes=plain,
                      graphs=graphs)  # fmt: skip
    share = known.utilization if ask.utilization is None else ask.utilization
    requested = int(gpus.memory * share)
    if measured is not None and measured.weights is not None:
        taken = replace(taken, rank=measured.weights, source="measured")
    budget, spread = _budget(requested - taken.rank, beside, ask, measured)
    limit = architecture.max_len or _DEFAULT_LENGTH
    kv_dtype = ask.kv_cache_dtype
    if kv_dtype == "auto" and model.stored.kv_dtype:
        kv_dtype = model.stored.kv_dtype
    form = format_of(kv_dtype, plain)
    in_flight = known.batches_in_flight * batch.tokens
    caches_states = known.caches_states if ask.prefix_caching is None else ask.prefix_caching
    how = Allocation(known, ask.block_size or _BLOCK, in_flight, known.forgets and not ask.keeps_all, caches_states)
    blocks = pool(architecture, ask.layout.tensor, ask.layout.pipeline, form, how)
    length = ask.max_model_len or limit
    if length < 0:
        length = max(1, blocks.longest(budget, limit)) if blocks else limit
    return Sizing(
        model=model,
        ask=ask,
        gpus=gpus,
        rules=known,
        loaded=loaded,
        utilization=share,
        requested=requested,
        weights=taken,
        overhead=beside,
        budget=budget,
        budget_range=spread,
        max_len=length,
        kv_dtype=kv_dtype,
        per_token=per_token(architecture, ask.layout.tensor, ask.layout.pipeline, form),
        pool=blocks,
        room=_room(blocks, budget, length, measured),
        measured=measured,
    )


def _room(blocks: Pool | None, budget: int, length: int, measured: Measured | None) -> Room | None:
    """Return what fits into the cache; vLLM's own count, where it counted for requests of this length."""
    if blocks is None:
        return None
    found = blocks.room(budget, length)
    if measured is None or measured.request_tokens != length or None in (measured.tokens, measured.concurrency):
        return found
    return replace(found, tokens=measured.tokens or 0, concurrency=measured.concurrency or 0.0, fits=True)


def _loaded(model: Model, ask: Ask) -> Precision:
    """Return how the weights will be in memory. A quantization that the checkpoint has already is not applied again."""
    asked = ask.quantization
    if asked is None or asked == "auto" or model.stored.method is not None:
        return model.stored
    return converted(asked)


def _budget(left: int, beside: Overhead, ask: Ask, measured: Measured | None) -> tuple[int, tuple[int, int]]:
    """Return the bytes for the KV cache, and their range: as given, as measured, or what is left."""
    if ask.kv_cache_memory is not None:
        return ask.kv_cache_memory, (ask.kv_cache_memory, ask.kv_cache_memory)
    if measured is not None and measured.kv_cache is not None:
        return measured.kv_cache, (measured.kv_cache, measured.kv_cache)
    return left - beside.likely, (left - beside.most, left - beside.least)
