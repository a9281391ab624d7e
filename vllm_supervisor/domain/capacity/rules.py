"""What differs between versions of vLLM: defaults, and how it counts the room for requests.

Sources: engine/arg_utils.py, config/cache.py, v1/core/kv_cache_utils.py of the versions named.
"""

from dataclasses import dataclass

from vllm_supervisor.domain.units import GIB

Version = tuple[int, ...]
NEWEST: Version = (0, 33)
"""Taken where no version is known."""

_NEW_UTILIZATION = (0, 23)
_GRAPHS_INSIDE = (0, 21)
_HYBRID_ALLOCATOR = (0, 10)
_CONCURRENCY_BY_BLOCKS = (0, 11)
_TOKENS_BY_CONCURRENCY = (0, 23)
_RESERVES_A_BLOCK = (0, 32)
_LARGE, _HUGE = 70 * GIB, 160 * GIB


def default_utilization(version: Version | None) -> float:
    """Return the default of `--gpu-memory-utilization`: 0.92 since 0.23, 0.90 before."""
    return 0.90 if version and version < _NEW_UTILIZATION else 0.92


@dataclass(frozen=True, slots=True)
class Rules:
    """What one version does. `batched_tokens` and `sequences` are its defaults on the card in question."""

    version: Version
    batched_tokens: int
    sequences: int

    @property
    def utilization(self) -> float:
        """The default of `--gpu-memory-utilization`."""
        return default_utilization(self.version)

    @property
    def graphs_inside(self) -> bool:
        """Whether CUDA graphs are taken out of the budget (0.21), and not out of what lies beside it."""
        return self.version >= _GRAPHS_INSIDE

    @property
    def forgets(self) -> bool:
        """Whether layers with a window give back what they do not see any more, beside layers that see everything."""
        return self.version >= _HYBRID_ALLOCATOR

    @property
    def counts_blocks(self) -> bool:
        """Whether the concurrency is a number of blocks by those that a request needs (0.11), not of tokens."""
        return self.version >= _CONCURRENCY_BY_BLOCKS

    @property
    def derives_tokens(self) -> bool:
        """Whether the tokens printed are the concurrency by the length of a request (0.23)."""
        return self.version >= _TOKENS_BY_CONCURRENCY

    @property
    def reserved_blocks(self) -> int:
        """Blocks that a start must find beside those of one request: one in 0.32, not known before."""
        return 1 if self.version >= _RESERVES_A_BLOCK else 0

    @property
    def batches_in_flight(self) -> int:
        """Batches whose tokens a window may still hold: two since steps overlap (0.32)."""
        return 2 if self.version >= _RESERVES_A_BLOCK else 1

    @property
    def caches_states(self) -> bool:
        """Whether prefix caching is on for models that keep a state, where nothing is said: on in 0.32, off in 0.19."""
        return self.version >= _RESERVES_A_BLOCK


def rules(version: Version | None, memory: int, card: str = "") -> Rules:
    """Return what `version` does on a card of `memory` bytes; the newest version's rules where it is None."""
    known = version or NEWEST
    if known < (0, 8):
        return Rules(known, 2048, 256)
    roomy = memory >= _LARGE and not card.startswith("A100")
    if known < (0, 11):
        return Rules(known, 8192 if memory >= _LARGE else 2048, 1024 if roomy else 256)
    if known >= NEWEST:
        if memory >= _HUGE:
            return Rules(known, 16384, 1024)
        roomy = roomy and not card.startswith("GB10")
    return Rules(known, 8192 if roomy else 2048, 1024 if roomy else 256)
