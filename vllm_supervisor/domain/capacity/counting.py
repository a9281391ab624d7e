"""How many parameters the pieces of a transformer have, by kind."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_supervisor.domain.capacity.architecture import Part
from vllm_supervisor.domain.capacity.families import Family
from vllm_supervisor.domain.capacity.fields import Fields

Counts = Counter[Part]


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of the attention."""

    hidden: int
    queries: int
    kv: int
    k_size: int
    v_size: int


@dataclass(frozen=True, slots=True)
class Moe:
    """The experts of a layer. `inner` is the width of one, `shared` that of what every token passes."""

    experts: int
    active: int
    inner: int
    shared: int


def attention(heads: Heads, family: Family, fields: Fields) -> Counts:
    """Count one attention layer."""
    hidden, queries = heads.hidden, heads.queries * heads.k_size
    keys, values = heads.kv * heads.k_size, heads.kv * heads.v_size
    given = fields.flag("attention_bias") or fields.flag("use_qkv_bias") or fields.flag("qkv_bias")
    query_bias = given if family.query_bias is None else family.query_bias
    output_bias = fields.flag("attention_bias") if family.output_bias is None else family.output_bias
    query_norm = family.query_norm or ("head" if fields.flag("use_qk_norm") or fields.flag("qk_layernorm") else "")
    small = (queries + keys + values if query_bias else 0) + (hidden if output_bias else 0)
    small += {"head": 2 * heads.k_size, "all": queries + keys}.get(query_norm, 0)
    small += heads.queries if family.sinks else 0
    return Counter(
        {
            Part.ATTENTION: hidden * queries * (2 if family.gated_query else 1) + heads.queries * heads.v_size * hidden,
            Part.KEY_VALUE: hidden * (keys + values),
            Part.NORM: small,
        }
    )


def latent_attention(fields: Fields, hidden: int, heads: int) -> Counts:
    """Count one layer of multi-head latent attention, with its indexer where it has one."""
    rank, rope = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    nope, v_size = fields.count("qk_nope_head_dim"), fields.count("v_head_dim")
    query = fields.optional("q_lora_rank") or 0
    queries = heads * (nope + rope)
    counts = Counter(
        {
            Part.LATENT: hidden * (query + rank + rope),
            Part.ATTENTION: (query or hidden) * queries + rank * heads * (nope + v_size) + heads * v_size * hidden,
            Part.NORM: query + rank,
        }
    )
    if indexers := fields.optional("index_n_heads"):
        size = fields.count("index_head_dim")
        counts[Part.LATENT] += (query or hidden) * indexers * size + hidden * (size + indexers)
        counts[Part.NORM] += 2 * size
    return counts


def mlp(hidden: int, inner: int, family: Family, fields: Fields) -> Counts:
    """Count one MLP."""
    matrices = 3 if family.gated else 2
    given = fields.flag("mlp_bias") or fields.flag("use_bias")
    bias = given if family.mlp_bias is None else family.mlp_bias
    return Counter({Part.MLP: matrices * hidden * inner, Part.NORM: (matrices - 1) * inner + hidden if bias else 0})


def adjusted(fields: Fields) -> Fields:
    """Return the fields with the width that LFM2's MLPs have: two thirds of what is written, rounded up (vLLM 0.32)."""
    if fields.text("model_type") != "lfm2":
        return fields
    width = fields.count("block_ff_dim", "intermediate_size")
    if fields.flag("block_auto_adjust_ff_dim", default=True):
        factor = fields.values.get("block_ffn_dim_multiplier")
        width = 2 * width // 3
        width = int(factor * width) if isinstance(factor, int | float) and 0 < factor < width else width
        step = fields.count("block_multiple_of", default=256)
        width = -(-width // step) * step
    return Fields({**fields.values, "intermediate_size": width}, fields.where)


def moe(hidden: int, experts: Moe, family: Family, name: str) -> Counts:
    """Count the experts of one layer, their router, and what every token passes."""
    matrices = 3 if family.gated else 2
    counts = Counter(
        {
            Part.EXPERTS: experts.experts * matrices * hidden * experts.inner,
            Part.ROUTER: hidden * experts.experts,
            Part.MLP: matrices * hidden * experts.shared,
        }
    )
    if name == "gpt_oss":
        counts[Part.NORM] += experts.experts * (2 * experts.inner + hidden + 1)
    if name.startswith(("qwen2", "qwen3")) and experts.shared:
        counts[Part.ROUTER] += hidden  # the gate of the shared expert
    return counts


def experts_of(fields: Fields) -> Moe | None:
    """Return the experts that the configuration tells of; None for a dense model."""
    count = fields.optional("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") or 0
    if count <= 1:
        return None
    own = fields.optional("moe_intermediate_size", "expert_ffn_hidden_size")
    inner = own or fields.count("intermediate_size")
    shared = fields.optional("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    shared = shared or fields.optional("shared_intermediate_size") or 0
    if not shared:
        shared = (fields.optional("n_shared_experts", "moe_num_shared_experts") or 0) * inner
    if fields.text("model_type") == "llama4_text":
        shared = inner
    active = fields.count(
        "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts", default=1
    )
    return Moe(count, min(active, count), inner, shared)


def has_experts(fields: Fields, layers: int) -> Iterator[bool]:
    """Say of each layer whether it has experts instead of an MLP."""
    name = fields.text("model_type")
    first = fields.optional("first_k_dense_replace", "moe_layer_start_index") or 0
    dense = fields.places("mlp_only_layers")
    step = fields.count("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    period, offset = fields.count("expert_layer_period", default=1), fields.optional("expert_layer_offset") or 0
    pattern = fields.text("hybrid_override_pattern")
    for at in range(layers):
        if name == "nemotron_h":
            yield pattern[at] == "E"
        elif name == "jamba":
            yield at % period == offset
        else:
            yield at >= first and at not in dense and (at + 1) % step == 0
