"""What vLLM printed at a start that got ready: it replaces the estimates, for the same model, arguments and GPU."""

from dataclasses import dataclass
from typing import NamedTuple

from vllm_supervisor.domain.startup.figures import StartupFigures
from vllm_supervisor.domain.units import GIB, version

MAX_KEPT = 64
"""Starts remembered, the oldest go."""


class Key(NamedTuple):
    """What makes two starts alike. `arguments` is a digest of the command, `gpu` what the cards are called."""

    model: str
    arguments: str
    vllm_version: str | None
    gpu: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes on one GPU, and vLLM's own count of tokens and requests of `request_tokens`; None where not printed."""

    weights: int | None = None
    kv_cache: int | None = None
    graphs: int | None = None
    tokens: int | None = None
    concurrency: float | None = None
    request_tokens: int | None = None

    @property
    def useful(self) -> bool:
        """Whether there is anything in it that replaces an estimate."""
        return self.weights is not None or self.kv_cache is not None or self.tokens is not None


def measured(figures: StartupFigures) -> Measured:
    """Return what a start's figures say about memory."""
    return Measured(
        weights=_bytes(figures.weights_gib),
        kv_cache=_bytes(figures.kv_cache_gib),
        graphs=_bytes(figures.graph_gib),
        tokens=figures.kv_cache_tokens,
        concurrency=figures.max_concurrency,
        request_tokens=figures.request_tokens,
    )


def _bytes(gib: float | None) -> int | None:
    return None if gib is None or gib < 0 else int(gib * GIB)


def gpu_key(names: tuple[str, ...]) -> str:
    """Return what the cards of a host are called, in one word for a key: each kind with its number; `none`."""
    kinds = sorted(set(names))
    return ", ".join(f"{names.count(kind)} {kind}" for kind in kinds) or "none"


@dataclass(frozen=True, slots=True)
class Memory:
    """The starts of this host that got ready: the last of each kind, oldest first."""

    starts: tuple[tuple[Key, Measured], ...] = ()

    def with_start(self, key: Key, figures: Measured) -> "Memory":
        """Return the memory after one more start. It replaces the last one like it."""
        kept = [one for one in self.starts if one[0] != key]
        return Memory((*kept, (key, figures))[-MAX_KEPT:])

    def latest(
        self, model: str, arguments: str, gpu: str, vllm_version: str | None = None
    ) -> tuple[Key, Measured] | None:
        """Return the last start like this one, of `vllm_version` where that is known, else of any."""
        for key, figures in reversed(self.starts):
            alike = (key.model, key.arguments, key.gpu) == (model, arguments, gpu)
            # An installed `0.32.0+cpu` prints itself as 0.32.0.
            if alike and (vllm_version is None or version(vllm_version) == version(key.vllm_version)):
                return key, figures
        return None
