"""From a model's `config.json` to its architecture."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vllm_supervisor.domain.capacity import counting, mixers, recurrent, vision
from vllm_supervisor.domain.capacity.architecture import Architecture, Cache, Keeps, Part
from vllm_supervisor.domain.capacity.defaults import TEXT
from vllm_supervisor.domain.capacity.families import Family, Shape, family
from vllm_supervisor.domain.capacity.fields import Fields
from vllm_supervisor.domain.capacity.length import own_limit
from vllm_supervisor.errors import BadInputError

MAX_LAYERS = 4096
"""More layers than any model has: a configuration that says so is nonsense, and would take memory to read."""
_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4, "float64": 8, "float8_e4m3fn": 1}
_REMEDY = "name a model's own, complete config.json"
_INDEXER_SCALE = 4
"""Bytes of the scale that comes with each 128 elements of a sparse indexer's keys (FP8)."""


def read(config: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """Return what `config` describes. `where` names it to the user.

    Raises BadInputError where it is not known here, or lacks what is needed.
    """
    whole = Fields(config, where)
    outer = whole.text("model_type")
    text = _text_part(whole)
    found = family(text.text("model_type")) or family(outer)
    if found is None:
        raise BadInputError(where, _unknown(whole, outer), "name a model of a known family, or say which it is like "
                            "with --like MODEL_TYPE (llama, qwen3_moe, deepseek_v3 …)")  # fmt: skip
    name, kind = found
    text = counting.adjusted(Fields({**text.values, "model_type": name}, where))
    read_one = _encoder if kind.shape is Shape.ENCODER else _decoder
    architecture_name = next((str(item) for item in whole.items("architectures")), outer)
    return read_one(whole, text, kind, architecture_name)


def _unknown(fields: Fields, model_type: str) -> str:
    named = next((str(item) for item in fields.items("architectures")), "")
    if not named and not model_type:
        return "it names no architecture and no model_type"
    return f"the architecture {named or model_type} (model_type {model_type or 'none'}) is not known here"


def _text_part(whole: Fields) -> Fields:
    """Return the configuration of the language model inside; what only the outer one says holds for it as well."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        inner = whole.part(key)
        if inner.values:
            deeper = inner.part("text_config")
            name = deeper.text("model_type") or inner.text("model_type")
            known = family(name) or family(whole.text("model_type"))
            defaults = TEXT.get(known[0], {}) if known else {}
            return Fields(
                {**defaults, **whole.values, **inner.values, **deeper.values, "model_type": name}, whole.where
            )
    return whole


def _decoder(whole: Fields, text: Fields, kind: Family, architecture: str) -> Architecture:
    name = text.text("model_type")
    hidden = text.count("hidden_size", "n_embd", "d_model")
    layers = _layers(text)
    attends = name not in ("mamba", "mamba2", "falcon_mamba")
    heads = _heads(text, kind, hidden) if attends else counting.Heads(hidden, 0, 0, 0, 0)
    kinds = mixers.mixers(text, name, kind, layers)
    counts, caches, divided = _stack(text, name, kind, heads, kinds)
    vocabulary = text.count("vocab_size", "padded_vocab_size")
    tied = whole.flag("tie_word_embeddings", default=text.flag("tie_word_embeddings", default=kind.tied))
    counts[Part.EMBEDDING] += vocabulary * hidden
    counts[Part.HEAD] += 0 if tied else vocabulary * hidden
    counts[Part.NORM] += hidden * (2 if kind.norm_bias else 1)
    if kind.positions:
        counts[Part.EMBEDDING] += text.count("max_position_embeddings", "n_positions", default=0) * hidden
    counts[Part.DRAFT] += _draft(text, name, kind, heads, vocabulary)
    outer = whole.text("model_type")
    seen = vision.encoder(whole, outer, hidden)
    counts[Part.ENCODER] += seen or 0
    beside = vision.beside(whole)
    moe = counting.experts_of(text)
    return Architecture(
        name=architecture,
        family=name,
        caches=tuple(caches),
        parameters=dict(counts),
        hidden=hidden,
        heads=heads.queries,
        kv_heads=heads.kv,
        vocabulary=vocabulary,
        layers=layers,
        widest=_widest(text, hidden, moe),
        experts=moe.experts if moe else 0,
        active_experts=moe.active if moe else 0,
        max_len=own_limit(text),
        dtype_bytes=_dtype(whole, text),
        tied=tied,
        beside=beside,
        uncounted=tuple(part for part in beside if seen is None or part != "vision"),
        divided=divided,
        inner=_dense_width(text, name, moe, layers),
        expert_inner=moe.inner if moe else 0,
    )


def _layers(text: Fields) -> int:
    layers = text.count("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if layers > MAX_LAYERS:
        raise BadInputError(text.where, f"num_hidden_layers is {layers}", _REMEDY)
    return layers


def _heads(text: Fields, kind: Family, hidden: int) -> counting.Heads:
    queries = text.count("num_attention_heads", "n_head", "n_heads")
    if kind.shape is Shape.LATENT:
        size = text.count("kv_lora_rank") + text.count("qk_rope_head_dim")
        return counting.Heads(hidden, queries, 1, size, 0)
    size = text.optional("head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels") or hidden // queries
    kv = text.optional("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    if text.text("model_type") == "falcon" and not text.flag("new_decoder_architecture"):
        kv = 1 if text.flag("multi_query", default=True) else queries
    elif text.flag("multi_query") and kv is None:
        kv = 1
    if not size:
        raise BadInputError(text.where, f"hidden_size {hidden} makes no {queries} heads", _REMEDY)
    if kv is not None and (not kv or queries % kv):
        why = f"num_key_value_heads is {kv}, by which {queries} attention heads do not divide"
        raise BadInputError(text.where, why, _REMEDY)
    return counting.Heads(hidden, queries, kv or queries, size, text.optional("v_head_dim") or size)


def _stack(
    text: Fields, name: str, kind: Family, heads: counting.Heads, kinds: tuple[str, ...]
) -> tuple[Counter[Part], list[Cache], tuple[tuple[str, int], ...]]:
    """Count all layers, and say what each keeps."""
    hidden = heads.hidden
    counts: Counter[Part] = Counter()
    caches: list[Cache] = []
    divided: dict[str, int] = {}
    for at, (mixes, expert) in enumerate(zip(kinds, counting.has_experts(text, len(kinds)), strict=True)):
        counts[Part.NORM] += kind.norms * hidden * (2 if kind.norm_bias else 1)
        if mixes in (Keeps.STATE, mixers.BOTH, mixers.CONVOLUTION):
            short = mixes == mixers.CONVOLUTION
            one = recurrent.convolution(text, hidden) if short else recurrent.mixer(text, name, hidden)
            counts += one.parameters
            caches.append(Cache(Keeps.STATE, state=one.state))
            divided |= dict(one.divided)
        if mixes == Keeps.LATENT:
            counts += counting.latent_attention(text, hidden, heads.queries)
            caches.append(Cache(Keeps.LATENT, 1, heads.k_size, 0, raw_bytes=_indexer(text)))
        elif mixes in (Keeps.FULL, Keeps.SLIDING, Keeps.CHUNKED, mixers.BOTH):
            counts += counting.attention(heads, kind, text)
            keeps = Keeps.FULL if mixes == mixers.BOTH else mixes
            caches.append(mixers.attention(text, keeps, heads.kv, heads.k_size, heads.v_size))
        counts += _feed_forward(text, name, kind, hidden, expert=expert, letter=_letter(text, name, at))
    return counts, caches, tuple(divided.items())


def _letter(text: Fields, name: str, at: int) -> str:
    return text.text("hybrid_override_pattern")[at] if name == "nemotron_h" else ""


def _feed_forward(
    text: Fields, name: str, kind: Family, hidden: int, *, expert: bool, letter: str = ""
) -> Counter[Part]:
    """Count what follows the mixer: experts, an MLP, or nothing."""
    if name in ("mamba", "mamba2", "falcon_mamba") or letter in ("M", "*"):
        return Counter()
    found = counting.experts_of(text)
    if found is not None and expert:
        return counting.moe(hidden, found, kind, name)
    if name == "granitemoehybrid":
        inner = text.count("shared_intermediate_size")
    elif name == "llama4_text":
        inner = text.count("intermediate_size_mlp", "intermediate_size")
    else:
        legacy = 4 * hidden
        own = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
        inner = text.count(*own, default=legacy if not kind.gated or kind.positions else None)
    return counting.mlp(hidden, inner, kind, text)


def _indexer(text: Fields) -> int:
    size = text.optional("index_head_dim") or 0
    return size + size // 128 * _INDEXER_SCALE if size else 0


def _draft(text: Fields, name: str, kind: Family, heads: counting.Heads, vocabulary: int) -> int:
    """Count the layers that predict further tokens, as DeepSeek and GLM store them."""
    layers = text.optional("num_nextn_predict_layers") or 0
    if not layers or kind.shape is Shape.HYBRID:
        return 0
    hidden = heads.hidden
    is_latent = kind.shape is Shape.LATENT
    attends = counting.latent_attention(text, hidden, heads.queries) if is_latent else None
    one = (attends or counting.attention(heads, kind, text)) + _feed_forward(text, name, kind, hidden, expert=True)
    return layers * (one.total() + 2 * hidden * hidden + 2 * vocabulary * hidden)


def _widest(text: Fields, hidden: int, moe: counting.Moe | None) -> int:
    """Return the width of a layer's largest intermediate: the MLP's, or that of all experts a token passes."""
    inner = text.optional("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
    return moe.active * moe.inner + moe.shared if moe else inner


def _dense_width(text: Fields, name: str, moe: counting.Moe | None, layers: int) -> int:
    """Return the width of the MLPs that are no experts, a shared expert among them."""
    if moe is None or not all(counting.has_experts(text, layers)):
        own = (
            ("shared_intermediate_size",)
            if name == "granitemoehybrid"
            else ("intermediate_size_mlp", "intermediate_size")
        )
        return text.optional(*own) or 0
    return moe.shared


def _dtype(whole: Fields, text: Fields) -> int:
    """Return how many bytes a parameter has in the checkpoint: 16 bits where nothing is said."""
    given = [fields.values.get(key) for fields in (text, whole) for key in ("dtype", "torch_dtype")]
    named = next((value for value in given if value is not None), "bfloat16")
    found = _DTYPES.get(named.removeprefix("torch.")) if isinstance(named, str) else None
    if named != "auto" and found is None:
        raise BadInputError(whole.where, f"its torch_dtype {named!r:.40} is not known", _REMEDY)
    return found or 2


def _encoder(whole: Fields, text: Fields, kind: Family, architecture: str) -> Architecture:
    """Read an encoder: BERT and its kin."""
    hidden, layers = text.count("hidden_size", "dim", "n_embd"), _layers(text)
    heads = text.count("num_attention_heads", "n_heads")
    inner = text.count("intermediate_size", "hidden_dim")
    vocabulary, positions = text.count("vocab_size"), text.count("max_position_embeddings", default=512)
    one = counting.Heads(hidden, heads, heads, hidden // heads, hidden // heads)
    counts: Counter[Part] = Counter()
    for _ in range(layers):
        counts += counting.attention(one, kind, text) + counting.mlp(hidden, inner, kind, text)
        counts[Part.NORM] += kind.norms * hidden * (2 if kind.norm_bias else 1)
    counts[Part.EMBEDDING] += vocabulary * hidden
    counts[Part.NORM] += hidden * (2 if kind.norm_bias else 1)
    if kind.positions:
        kinds = text.optional("type_vocab_size") or 0
        counts[Part.EMBEDDING] += (positions + kinds) * hidden
        counts[Part.ATTENTION] += hidden * hidden if text.text("model_type") == "bert" else 0  # the pooler
    return Architecture(
        name=architecture,
        family=text.text("model_type"),
        caches=(),
        parameters=dict(counts),
        hidden=hidden,
        heads=heads,
        kv_heads=0,
        vocabulary=vocabulary,
        layers=layers,
        widest=inner,
        max_len=own_limit(text),
        dtype_bytes=_dtype(whole, text),
        pooling=True,
        tied=True,
    )
