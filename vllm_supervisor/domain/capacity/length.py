"""How long a context a model was made for, as vLLM derives it (config/model.py, 0.32)."""

from vllm_supervisor.domain.capacity.fields import Fields

_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_SCALED_ALREADY = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default"})
"""Kinds of rotary scaling whose factor `max_position_embeddings` has in it."""


def own_limit(fields: Fields) -> int | None:
    """Return the tokens of a context at most; None where the configuration does not say."""
    given = [length for key in _KEYS if (length := fields.optional(key))]
    if not given:
        return None
    limit = fields.optional("model_max_length") or min(given)
    rope = fields.part("rope_scaling")
    rope = rope if rope.values else fields.part("rope_parameters")
    kind, factor = rope.text("rope_type") or rope.text("type") or "default", rope.values.get("factor")
    if "gemma3" not in fields.text("model_type") and kind not in _SCALED_ALREADY and isinstance(factor, int | float):
        return int(limit * factor)
    return limit
