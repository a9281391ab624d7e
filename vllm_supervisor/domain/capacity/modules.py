"""Which part of a model the name of a module means, and how much of it: checkpoints list names, or patterns of them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vllm_supervisor.domain.capacity.architecture import Part

LINEAR = frozenset({Part.ATTENTION, Part.KEY_VALUE, Part.LATENT, Part.MLP, Part.EXPERTS, Part.MIXER})
"""What quantization methods convert unless told otherwise. Embeddings, the head, norms and routers stay as they are."""
_ATTENTION = {Part.ATTENTION: 1.0, Part.KEY_VALUE: 1.0, Part.LATENT: 1.0}
_THIRD = 1 / 3
_SHARES: tuple[tuple[re.Pattern[str], Mapping[Part, float]], ...] = tuple(
    (re.compile(pattern), shares)
    for pattern, shares in (
        (r"(?:linear_attn|mamba|mixer).*in_proj", {Part.MIXER: 2 * _THIRD}),
        (r"(?:linear_attn|mamba|mixer).*out_proj", {Part.MIXER: _THIRD}),
        (r"linear_attn|mamba|mixer", {Part.MIXER: 1.0}),
        (r"shared_experts?.*gate_up_proj", {Part.MLP: 2 * _THIRD}),
        (r"shared_experts?.*(?:gate|up|down)_proj", {Part.MLP: _THIRD}),
        (r"shared_expert", {Part.MLP: 1.0}),
        (r"experts.*gate_up_proj", {Part.EXPERTS: 2 * _THIRD}),
        (r"experts.*(?:(?:gate|up|down)_proj|\bw[123])$", {Part.EXPERTS: _THIRD}),
        (r"experts|MoE", {Part.EXPERTS: 1.0}),
        (r"qkv_a_proj", {Part.LATENT: 1.0}),
        (r"qkv|query_key_value|c_attn", {Part.ATTENTION: 0.5, Part.KEY_VALUE: 1.0}),
        (r"(?:q|kv)_a_proj", {Part.LATENT: 0.5}),
        (r"(?:q|kv)_b_proj", {Part.ATTENTION: _THIRD}),
        (r"[qo]_proj", {Part.ATTENTION: 0.5}),
        (r"[kv]_proj", {Part.KEY_VALUE: 0.5}),
        (r"att(?:n|ention)", _ATTENTION),
        (r"gate_up_proj", {Part.MLP: 2 * _THIRD, Part.EXPERTS: 2 * _THIRD}),
        (r"(?:gate|up|down)_proj", {Part.MLP: _THIRD, Part.EXPERTS: _THIRD}),
        (r"mlp|feed_forward|ffn|block_sparse_moe", {Part.MLP: 1.0, Part.EXPERTS: 1.0}),
        (r"^Linear$|^model$|^$", dict.fromkeys(LINEAR, 1.0)),
    )
)
"""What is in a module's name -> the share of each part that it is. The first one counts."""
_ELSE = re.compile(
    r"visual|vision|audio|multi_modal|\bmtp\b|embed|lm_head|norm|router|conv1d|\bgate$|_gate$|in_proj_(?:ba?|a)$"
)
"""Not the text part, or too small to count."""
_LAYER = re.compile(r"(?:^|.*[.*])(?:layers|blocks|h)\.(\d+)(?:\.|$)")
_EXPERT = re.compile(r"experts\.\d+")
_CHOICE = re.compile(r"\((?:\?:)?([\w.|]+)\)|\[([a-z]+)\](?![*+])")
_MOST_CHOICES = 512
_LONGEST, _MOST_NAMES = 400, 1 << 18
"""No model has longer names of modules, nor more of them: a broken file must not make us match for ever."""
_INSIDE = ("text_config", "llm_config")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_MOST_LAYERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a name reaches: how many layers have each part, and how many experts a layer has."""

    layers: Mapping[Part, int]
    experts: int


def shares(names: Iterable[str], reach: Reach) -> dict[Part, float]:
    """Return the share of each part that `names` reach: one layer where a name has its number, else all."""
    layers, experts = reach.layers, reach.experts
    found: dict[Part, float] = defaultdict(float)
    every = (one for given in names if len(given) <= _LONGEST for one in _expanded(given))
    for name in dict.fromkeys(islice(every, _MOST_NAMES)):
        if _ELSE.search(name):
            continue
        layer = _LAYER.match(name)
        tail = name[layer.end() :] if layer else name
        part_of = next((share for pattern, share in _SHARES if pattern.search(tail)), {})
        if layer and int(layer[1]) >= max(layers.values(), default=0):
            continue
        for part, share in part_of.items():
            one = share / max(1, layers.get(part, 1)) if layer else share
            found[part] += one / experts if experts and _EXPERT.search(tail) else one
    return {part: min(1.0, share) for part, share in found.items()}


def reach(config: Mapping[str, Any]) -> Reach:
    """Return how many layers have each part, as far as a configuration says it in the usual way."""
    inner = next((part for key in _INSIDE if isinstance(part := config.get(key), Mapping)), {})
    text = {**config, **inner}
    layers, experts = (_whole(text, *names) for names in (_LAYERS, _EXPERTS))
    kinds = text.get("layer_types")
    every = _whole(text, "full_attention_interval")
    attending = layers // every if every else layers
    if isinstance(kinds, list) and kinds:
        attending = sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds)
    routed = max(0, layers - _whole(text, "first_k_dense_replace"))
    counts = dict.fromkeys((Part.ATTENTION, Part.KEY_VALUE, Part.LATENT), attending)
    mixing = layers - attending
    return Reach({**counts, Part.MLP: layers, Part.EXPERTS: routed, Part.MIXER: mixing or layers}, experts)


def _whole(text: Mapping[str, Any], *names: str) -> int:
    found = (text.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and 0 < value <= _MOST_LAYERS), 0)


def _expanded(name: str) -> list[str]:
    """Return a name without what makes it a pattern; one for each choice in it."""
    plain = name.removeprefix("re:").replace("\\.", ".").strip("^$").removesuffix("*").removesuffix(".")
    todo, done = [plain], list[str]()
    while todo and len(done) + len(todo) < _MOST_CHOICES:
        one = todo.pop()
        choice = _CHOICE.search(one)
        if choice is None:
            done.append(one)
            continue
        choices = choice[1].split("|") if choice[1] else choice[2]
        todo += [one[: choice.start()] + each + one[choice.end() :] for each in islice(choices, _MOST_CHOICES)]
    return done + todo
