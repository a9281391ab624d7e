"""What the layers of a model do with the tokens before: which layer sees everything, which a window, which a state."""

from vllm_supervisor.domain.capacity.architecture import Cache, Keeps
from vllm_supervisor.domain.capacity.families import Family, Shape
from vllm_supervisor.domain.capacity.fields import Fields
from vllm_supervisor.errors import BadInputError

NOTHING = "nothing"
"""A layer that is an MLP and nothing else."""
BOTH = "both"
"""Attention and a state side by side (Falcon-H1)."""
CONVOLUTION = "convolution"
_REMEDY = "name a model's own, complete config.json"
_NAMES = {
    "full_attention": Keeps.FULL,
    "attention": Keeps.FULL,
    "sliding_attention": Keeps.SLIDING,
    "chunked_attention": Keeps.CHUNKED,
    "linear_attention": Keeps.STATE,
    "mamba": Keeps.STATE,
    "mamba2": Keeps.STATE,
    "conv": CONVOLUTION,
    "hybrid": BOTH,
}
_PATTERN = {"M": Keeps.STATE, "*": Keeps.FULL, "-": NOTHING, "E": NOTHING}
"""Nemotron-H's `hybrid_override_pattern`."""
_EVERY_FOURTH = 4


def mixers(fields: Fields, name: str, family: Family, layers: int) -> tuple[str, ...]:
    """Return what each layer keeps: a `Keeps`, NOTHING, BOTH or CONVOLUTION. Raises BadInputError."""
    if family.shape is Shape.LATENT:
        return (Keeps.LATENT,) * layers
    if family.shape is Shape.HYBRID:
        return _hybrid(fields, name, layers)
    found = _windows(fields, name, family, layers)
    return tuple(Keeps.FULL if kind == Keeps.SLIDING and not fields.has("sliding_window") else kind for kind in found)


def window(fields: Fields, kind: str) -> int:
    """Return the tokens that a layer of this kind looks back."""
    if kind == Keeps.SLIDING:
        return fields.count("sliding_window", "window_size")
    return fields.count("attention_chunk_size") if kind == Keeps.CHUNKED else 0


def _windows(fields: Fields, name: str, family: Family, layers: int) -> tuple[str, ...]:
    if listed := _listed(fields, layers):
        return listed
    if name == "llama4_text" and fields.has("attention_chunk_size"):
        # Every fourth layer has no positions, and looks at everything.
        every = fields.count("no_rope_layer_interval", default=_EVERY_FOURTH)
        return tuple(Keeps.FULL if (at + 1) % every == 0 else Keeps.CHUNKED for at in range(layers))
    if not fields.optional("sliding_window") or not fields.flag("use_sliding_window", default=True):
        return (Keeps.FULL,) * layers
    pattern = fields.optional("sliding_window_pattern", "_sliding_window_pattern") or family.alternates
    if pattern:
        return tuple(Keeps.FULL if (at + 1) % pattern == 0 else Keeps.SLIDING for at in range(layers))
    if family.windows_by_layer_types_only:
        return (Keeps.FULL,) * layers
    if fields.has("max_window_layers"):
        first = fields.optional("max_window_layers") or 0
        return tuple(Keeps.FULL if at < first else Keeps.SLIDING for at in range(layers))
    return (Keeps.SLIDING,) * layers


def _hybrid(fields: Fields, name: str, layers: int) -> tuple[str, ...]:
    if name in ("mamba", "falcon_mamba", "mamba2"):
        return (Keeps.STATE,) * layers
    if name == "falcon_h1":
        return (BOTH,) * layers
    if name == "nemotron_h":
        return _pattern(fields, layers)
    if name == "jamba":
        period, offset = fields.count("attn_layer_period", default=8), fields.optional("attn_layer_offset")
        offset = 4 if offset is None else offset
        return tuple(Keeps.FULL if at % period == offset else Keeps.STATE for at in range(layers))
    if name == "bamba":
        full = fields.places("attn_layer_indices")
        return tuple(Keeps.FULL if at in full else Keeps.STATE for at in range(layers))
    if name == "lfm2" and fields.has("full_attn_idxs"):
        full = fields.places("full_attn_idxs")
        return tuple(Keeps.FULL if at in full else CONVOLUTION for at in range(layers))
    if listed := _listed(fields, layers):
        return listed
    every = fields.count("full_attention_interval", default=_EVERY_FOURTH)
    return tuple(Keeps.FULL if (at + 1) % every == 0 else Keeps.STATE for at in range(layers))


def _pattern(fields: Fields, layers: int) -> tuple[str, ...]:
    pattern = fields.text("hybrid_override_pattern")
    if len(pattern) != layers or set(pattern) - set(_PATTERN):
        why = f"its hybrid_override_pattern does not describe {layers} layers with the letters {''.join(_PATTERN)}"
        raise BadInputError(fields.where, why, _REMEDY)
    return tuple(_PATTERN[letter] for letter in pattern)


def _listed(fields: Fields, layers: int) -> tuple[str, ...]:
    given = fields.words("layer_types") or fields.words("layers_block_type")
    if not given:
        return ()
    if len(given) < layers or any(kind not in _NAMES for kind in given[:layers]):
        odd = [kind for kind in given[:layers] if kind not in _NAMES]
        why = f"its layer_types name {odd[0]!r}, which is not known" if odd else f"its layer_types are {len(given)}"
        raise BadInputError(fields.where, f"{why}, for {layers} layers", _REMEDY)
    return tuple(_NAMES[kind] for kind in given[:layers])


def attention(fields: Fields, kind: str, heads: int, k_size: int, v_size: int) -> Cache:
    """Return what an attention layer of this kind keeps."""
    return Cache(Keeps(kind), heads, k_size, v_size, window(fields, kind))
