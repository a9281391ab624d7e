"""How to spread a model over several GPUs, where nobody said: one GPU while that is enough."""

from dataclasses import replace

from vllm_supervisor.domain.capacity.limits import NODE, sizes
from vllm_supervisor.domain.capacity.sizing import Ask, Gpus, Model, size
from vllm_supervisor.domain.capacity.weights import Layout


def spread(model: Model, ask: Ask, gpus: Gpus, *, use_all: bool) -> Layout:
    """Return the parallel sizes for `gpus`.

    A model that fits one GPU stays on one: several would wait for one another, where several copies would not. One that
    does not is divided by tensors within a node, by layers beyond it; by as few GPUs as it fits, or by all
    (`use_all`) where the operator said how many to take.
    """
    layouts = list(_layouts(model, ask, gpus.count))
    fitting = [layout for layout in layouts if size(model, replace(ask, layout=layout), gpus).fits]
    if not use_all and fitting:
        return fitting[0]
    return layouts[0] if layouts[0] in fitting else layouts[-1]


def _layouts(model: Model, ask: Ask, count: int) -> list[Layout]:
    """Return what could be, the fewest GPUs first."""
    tensors = sizes(model, ask, min(count, NODE))
    found = [Layout(tensor) for tensor in tensors]
    widest = tensors[-1]
    stages = range(2, min(count // widest, model.architecture.layers) + 1)
    return found + [Layout(widest, pipeline) for pipeline in stages]
