"""How a model is spread over GPUs where nobody said."""

import pytest

from tests.domain.capacity import models
from vllm_supervisor.domain.capacity.cards import gpu
from vllm_supervisor.domain.capacity.choice import spread
from vllm_supervisor.domain.capacity.precision import precision
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.domain.capacity.sizing import Ask, Gpus, Model
from vllm_supervisor.domain.capacity.weights import Layout


@pytest.mark.parametrize(
    ("config", "count", "use_all", "layout"),
    [
        (models.LLAMA_3_8B, 8, False, Layout(1)),
        (models.LLAMA_3_8B, 8, True, Layout(1)),
        (models.LLAMA_3_70B, 8, False, Layout(2)),
        (models.LLAMA_3_70B, 8, True, Layout(8)),
        (models.LLAMA_3_70B, 1, False, Layout(1)),
        (models.QWEN_25_7B, 8, True, Layout(1)),
        (models.DEEPSEEK_V3, 16, False, Layout(8, 2)),
        (models.DEEPSEEK_V3, 8, False, Layout(8)),
    ],
    ids=["fits one", "one is enough, whatever was said", "two", "all", "one, and does not fit", "copies", "two nodes",
         "a node, and does not fit"],
)  # fmt: skip
def test_one_gpu_while_that_is_enough(config: models.Config, count: int, use_all: bool, layout: Layout) -> None:
    """As few as it fits, or all that were given; by tensors within a node, by layers beyond it."""
    card = gpu("H100")
    assert card is not None
    gpus = Gpus(card.memory, count, card, card.name, card.capability)
    assert spread(Model(read(config), precision(config)), Ask(), gpus, use_all=use_all) == layout
