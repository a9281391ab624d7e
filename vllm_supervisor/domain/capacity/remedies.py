"""What to change when a model does not fit: each change with the figures it leads to, those that do most first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from vllm_supervisor.domain.capacity.limits import NODE, sizes
from vllm_supervisor.domain.capacity.modules import LINEAR
from vllm_supervisor.domain.capacity.precision import Precision
from vllm_supervisor.domain.capacity.quantfields import weights_only
from vllm_supervisor.domain.capacity.sizing import Ask, Gpus, Model, Sizing, size
from vllm_supervisor.domain.capacity.weights import Layout
from vllm_supervisor.domain.units import MIB

_ROUND = 1024
"""A shorter context is given in steps of this, where it is longer."""
_PAIRS = 3
"""Two changes together are offered so often at most."""
_FOUR_BITS = 4
_ADA = (8, 9)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change and where it leads. `effect` is the bytes of KV cache that it wins on one GPU."""

    change: str
    sizing: Sizing
    effect: int
    note: str = ""


def remedies(now: Sizing) -> tuple[Remedy, ...]:
    """Return what would help: first what makes it fit, within that what wins most room for requests."""
    tried = [(at, remedy) for at, change in enumerate(_CHANGES) for remedy in change(now)]
    found = [remedy for _, remedy in tried if remedy.sizing.fits or remedy.effect > 0]
    here = now.gpus.count
    if not any(one.sizing.fits and one.sizing.ask.layout.ranks <= here for one in found):
        pairs = list(_pairs(now, tried))
        on_these = [one for one in pairs if one.sizing.ask.layout.ranks <= here]
        found += on_these[:_PAIRS] or ([] if any(one.sizing.fits for one in found) else pairs[:_PAIRS])
    return tuple(sorted(found, key=lambda one: (not one.sizing.fits, -one.effect)))


def _pairs(now: Sizing, tried: list[tuple[int, Remedy]]) -> list[Remedy]:
    """Return two changes together that make it fit, the smaller ones first: fewer GPUs, then the longer context."""
    found = []
    for at, first in tried:
        if first.sizing.fits:
            continue
        for change in _CHANGES[at + 1 :]:
            for second in change(first.sizing):
                if second.sizing.fits:
                    note = "; ".join(one for one in (first.note, second.note) if one)
                    effect = _requests(second.sizing) - _requests(now)
                    found.append(Remedy(f"{first.change} and {second.change}", second.sizing, effect, note))
    return sorted(found, key=lambda one: (one.sizing.ask.layout.ranks, -one.sizing.max_len, -one.effect))


def _changed(now: Sizing, change: str, *, ask: Ask | None = None, model: Model | None = None, gpus: Gpus | None = None,
             note: str = "") -> Remedy:  # fmt: skip
    # Measured figures are those of the arguments as they are.
    after = size(model or now.model, ask or now.ask, gpus or now.gpus)
    return Remedy(change, after, _requests(after) - _requests(now), note)


def _requests(sizing: Sizing) -> int:
    """Return the room in bytes, weighed by what a token takes: a smaller cache type wins room as well."""
    if sizing.pool is None or sizing.budget <= 0:
        return sizing.budget
    return int(sizing.budget / sizing.pool.block_bytes * 1000)


def _quantize(now: Sizing) -> Iterator[Remedy]:
    if now.loaded.method is not None or (now.ask.kv_cache_memory is not None and not now.beyond):
        return
    has = now.gpus.capability
    amd = now.gpus.model is not None and now.gpus.model.fp8
    if has is None or has >= (7, 5):
        slow = not amd and has is not None and has < _ADA
        note = "before Ada (8.9) it saves memory, not time" if slow else ""
        yield _changed(
            now, "--quantization fp8, or an FP8 checkpoint", ask=replace(now.ask, quantization="fp8"), note=note
        )
        four = Precision("awq", "4 bit", weights_only(_FOUR_BITS), LINEAR)
        stored = replace(now.model, stored=four, found=None)
        yield _changed(now, "a 4-bit checkpoint (AWQ or GPTQ)", model=stored, ask=replace(now.ask, quantization=None))


def _spread(now: Sizing) -> Iterator[Remedy]:
    layout = now.ask.layout
    last: Remedy | None = None
    allowed = sizes(now.model, now.ask)
    for tensor in allowed:
        if tensor <= layout.tensor or tensor & (tensor - 1):
            continue
        wider = replace(layout, tensor=tensor)
        last = _on(now, wider, f"--tensor-parallel-size {tensor}")
        yield last
        if last.sizing.fits:
            return
    best = max([layout.tensor, *allowed])
    for stages in (2, 4):
        wider = replace(layout, tensor=best, pipeline=layout.pipeline * stages)
        if wider.tensor * wider.pipeline > NODE:
            words = f"{wider.pipeline} nodes: --tensor-parallel-size {best} --pipeline-parallel-size {wider.pipeline}"
            last = _on(now, wider, words)
            yield last
            if last.sizing.fits:
                return


def _on(now: Sizing, layout: Layout, words: str) -> Remedy:
    gpus = replace(now.gpus, count=max(now.gpus.count, layout.ranks))
    short = layout.ranks - now.gpus.count
    note = f"{short} more of this GPU" if short > 0 else ""
    return _changed(now, words, ask=replace(now.ask, layout=layout), gpus=gpus, note=note)


def _cache(now: Sizing) -> Iterator[Remedy]:
    if now.pool is None or now.kv_dtype.startswith(("fp8", "int", "nvfp4")):
        return
    has = now.gpus.capability
    if has is None or has >= (8, 0):
        note = "before Ada (8.9) emulated" if has is not None and has < _ADA else "measure answers' quality"
        yield _changed(now, "--kv-cache-dtype fp8", ask=replace(now.ask, kv_cache_dtype="fp8"), note=note)


def _shorter(now: Sizing) -> Iterator[Remedy]:
    if now.pool is None:
        return
    longest = now.pool.longest(now.budget, now.max_len)
    longest -= longest % _ROUND if longest > _ROUND else longest % now.pool.block
    if 0 < longest < now.max_len:
        asked = replace(now.ask, max_model_len=longest, context=None, output=None)
        yield _changed(now, f"--max-model-len {longest}", ask=asked)


def _smaller_cache(now: Sizing) -> Iterator[Remedy]:
    """Offer what the card has left for a cache of given size."""
    given = now.ask.kv_cache_memory
    if given is None or not now.beyond or now.pool is None:
        return
    left = (given - now.beyond) // MIB * MIB
    if left > 0:
        yield _changed(now, f"--kv-cache-memory-bytes {left}", ask=replace(now.ask, kv_cache_memory=left))


_CHANGES: tuple[Callable[[Sizing], Iterator[Remedy]], ...] = (_quantize, _cache, _spread, _shorter, _smaller_cache)
"""A later one may come on top of an earlier one: what depends on how much is left comes last."""
