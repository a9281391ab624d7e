"""The families of models that are known, by `model_type`, and where they differ from the plain transformer.

The plain one is Llama's: rotary positions, grouped queries, a gated MLP, two norms a layer, nothing with a bias unless
the configuration says so. Facts are those of transformers' modelling files and of vLLM 0.32's.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto


class Shape(Enum):
    """What the layers are made of."""

    DECODER = auto()
    LATENT = auto()
    """Multi-head latent attention."""
    HYBRID = auto()
    """Attention in some layers, recurrent mixers in the others."""
    ENCODER = auto()


@dataclass(frozen=True, slots=True)
class Family:
    """How a family differs. A bias that is None is what the configuration says of it."""

    shape: Shape = Shape.DECODER
    query_bias: bool | None = None
    output_bias: bool | None = None
    mlp_bias: bool | None = None
    gated: bool = True
    norms: int = 2
    """Norms in a layer."""
    norm_bias: bool = False
    query_norm: str = ""
    """`head`: a norm over each query and key head; `all`: over all of them."""
    tied: bool = False
    """Whether the output head is the embeddings where the configuration does not say."""
    positions: bool = False
    """Learnt positions."""
    sinks: bool = False
    gated_query: bool = False
    """The query projection also makes a gate."""
    alternates: int = 0
    """Without `layer_types` and a pattern: every so many-th layer sees everything, the others a window."""
    windows_by_layer_types_only: bool = False
    """A `sliding_window` without `layer_types` means nothing to vLLM."""


_PLAIN = Family()
_QWEN2 = replace(_PLAIN, query_bias=True, output_bias=False)
_QWEN3 = replace(_PLAIN, query_norm="head")
_GEMMA = replace(_PLAIN, tied=True)
_GEMMA2 = replace(_GEMMA, norms=4, alternates=2)
_GEMMA3 = replace(_GEMMA, norms=4, query_norm="head", alternates=6)
_GPT = replace(
    _PLAIN, query_bias=True, output_bias=True, mlp_bias=True, gated=False, norm_bias=True, tied=True, positions=True
)
_NEOX = replace(_GPT, tied=False, positions=False)
_COHERE = replace(_PLAIN, norms=1, tied=True)
_LATENT = Family(Shape.LATENT)
_HYBRID = Family(Shape.HYBRID)
_ENCODER = replace(_GPT, shape=Shape.ENCODER, tied=True)

FAMILIES: dict[str, Family] = {
    # Llama's own and what copies it
    **dict.fromkeys(
        (
            "llama", "mistral", "ministral", "ministral3", "mixtral", "granite", "granitemoe", "granitemoeshared",
            "smollm3", "exaone", "internlm3", "aquila", "yi", "baichuan", "arcee", "minicpm", "glm", "deepseek",
            "llama4_text", "phimoe", "ernie4_5", "ernie4_5_moe", "apertus", "hunyuan_v1_moe",
        ),
        _PLAIN,
    ),
    "phi3": replace(_PLAIN, windows_by_layer_types_only=True),
    "internlm2": _PLAIN,
    "olmo": _PLAIN,
    "olmoe": replace(_PLAIN, query_norm="all"),
    "olmo2": replace(_PLAIN, query_norm="all"),
    "olmo3": replace(_PLAIN, query_norm="all"),
    "exaone4": replace(_PLAIN, query_norm="head"),
    "hunyuan_v1_dense": replace(_PLAIN, query_norm="head"),
    "seed_oss": replace(_PLAIN, query_bias=True, output_bias=False),
    "chatglm": replace(_PLAIN, query_bias=True, output_bias=False),
    "glm4": replace(_PLAIN, norms=4),
    "glm4_moe": replace(_PLAIN, query_bias=None, output_bias=False),
    "dots1": replace(_PLAIN, query_norm="head"),
    "minimax_m2": replace(_PLAIN, query_norm="all"),
    "nemotron": replace(_PLAIN, gated=False, norm_bias=True),
    "stablelm": replace(_PLAIN, norm_bias=True),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_audio_text"), _QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text"), _QWEN3),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gpt_oss": replace(_PLAIN, query_bias=True, output_bias=True, sinks=True, alternates=2),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, alternates=4),
    "starcoder2": replace(_GPT, positions=False),
    # before Llama
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "opt": _GPT,
    "gpt_neox": _NEOX,
    "gptj": replace(_NEOX, norms=1, query_bias=False, output_bias=False),
    "phi": replace(_NEOX, norms=1),
    "bloom": replace(_GPT, positions=False),
    "falcon": replace(_PLAIN, gated=False, norm_bias=True, tied=True, query_bias=False, output_bias=False),
    "mpt": replace(_PLAIN, gated=False, tied=True, query_bias=False, output_bias=False),
    # multi-head latent attention: the list of vLLM 0.32's `is_deepseek_mla`, as far as counted here
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm4_moe_lite", "pangu_ultra_moe"),
        _LATENT,
    ),
    # hybrids
    "qwen3_next": replace(_HYBRID, query_norm="head", gated_query=True),
    "qwen3_5_text": replace(_HYBRID, query_norm="head", gated_query=True),
    "qwen3_5_moe_text": replace(_HYBRID, query_norm="head", gated_query=True),
    "jamba": replace(_HYBRID, tied=False),
    "bamba": _HYBRID,
    "granitemoehybrid": _HYBRID,
    "nemotron_h": replace(_HYBRID, gated=False, norms=1),
    "falcon_h1": _HYBRID,
    "mamba": replace(_HYBRID, norms=1, tied=True),
    "falcon_mamba": replace(_HYBRID, norms=1, tied=False),
    "mamba2": replace(_HYBRID, norms=1, tied=False),
    "lfm2": replace(_HYBRID, query_norm="head", tied=True),
    # encoders
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "electra"), _ENCODER),
    "modernbert": replace(
        _ENCODER, query_bias=False, output_bias=False, mlp_bias=False, norm_bias=False, gated=True, positions=False
    ),
}  # fmt: skip

_ALIASES = {
    "gemma3": "gemma3_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "mistral3": "mistral",
    "pixtral": "mistral",
    "internvl_chat": "qwen2",
    "idefics3": "llama",
    "aya_vision": "cohere2",
    "kimi_vl": "deepseek_v3",
    "deepseek_vl_v2": "deepseek_v2",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "Yi": "yi",
}
"""A model with several parts -> the family of its text part, where that does not name itself."""


def family(model_type: str) -> tuple[str, Family] | None:
    """Return the family's own name and how it differs; None for one that is not known here."""
    name = _ALIASES.get(model_type, model_type)
    found = FAMILIES.get(name)
    return None if found is None else (name, found)
