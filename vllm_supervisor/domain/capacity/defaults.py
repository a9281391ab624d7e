"""What a model's text part has where its configuration does not say: transformers leaves out what is a class's default.

Only configurations of models with several parts are written so, and only those are read so: a plain `config.json` that
lacks a size is broken. Values are those of transformers' configuration classes (5.x); where a class computes one from
others (`head_dim`, KV heads as many as heads), it is not here.
"""

from collections.abc import Mapping
from typing import Any


def _sizes(
    vocabulary: int, hidden: int, inner: int, layers: int, heads: int, length: int, **more: int
) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": length,
        **more,
    }


def _kv(heads: int, size: int = 0) -> dict[str, int]:
    return {"num_key_value_heads": heads} | ({"head_dim": size} if size else {})


_NO_WINDOW = {"sliding_window": 4096, "use_sliding_window": False}
_QWEN_VL = {**_sizes(152064, 8192, 29568, 80, 64, 32768), **_kv(8), **_NO_WINDOW, "max_window_layers": 80}

TEXT: Mapping[str, Mapping[str, Any]] = {
    "llama": _sizes(32000, 4096, 11008, 32, 32, 2048),
    "mistral": _sizes(32000, 4096, 14336, 32, 32, 131072, sliding_window=4096, **_kv(8)),
    "ministral3": _sizes(131072, 4096, 14336, 34, 32, 262144, **_kv(8, 128)),
    "mixtral": _sizes(32000, 4096, 14336, 32, 32, 131072, num_local_experts=8, num_experts_per_tok=2, **_kv(8)),
    "gemma2": _sizes(256000, 2304, 9216, 26, 8, 8192, sliding_window=4096, **_kv(4, 256)),
    "gemma3_text": _sizes(262208, 2304, 9216, 26, 8, 131072, sliding_window=4096, **_kv(4, 256)),
    "cohere2": _sizes(256000, 8192, 22528, 40, 64, 8192, sliding_window=4096),
    "phi3": _sizes(32064, 3072, 8192, 32, 32, 4096),
    "qwen2": {**_sizes(151936, 4096, 22016, 32, 32, 32768), **_kv(32), **_NO_WINDOW},
    "qwen2_vl_text": _QWEN_VL,
    "qwen2_5_vl_text": _QWEN_VL,
    "qwen3": {**_sizes(151936, 4096, 22016, 32, 32, 32768), **_kv(32, 128), **_NO_WINDOW},
    "qwen3_vl_text": _sizes(151936, 4096, 22016, 32, 32, 128000, **_kv(32, 128)),
    "llama4_text": _sizes(
        202048, 5120, 8192, 48, 40, 131072, num_local_experts=16, num_experts_per_tok=1, intermediate_size_mlp=16384,
        attention_chunk_size=8192, **_kv(8, 128),
    ),
}  # fmt: skip
"""`model_type` of a text part -> its defaults."""
