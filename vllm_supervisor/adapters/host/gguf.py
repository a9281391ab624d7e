"""The header of a GGUF file (versions 2 and 3): its metadata, in the names of a `config.json`."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vllm_supervisor.config.regular import open_regular
from vllm_supervisor.errors import BadInputError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MOST = 1 << 24
"""Entries, dimensions, bytes of a text: none has more, and a broken file must not make us read for ever."""
_AGAIN = "download the file again"
_FAMILIES = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gemma3": "gemma3_text",
    "command-r": "cohere",
    "cohere2": "cohere2",
    "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v2",
    "qwen2vl": "qwen2",
    "qwen3vl": "qwen3",
    "mistral3": "mistral",
}
"""`general.architecture` -> `model_type`, where they differ."""
_NAMES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
}


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata (a list as its length), the names of the tensors, their elements, and where the data begin."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, int]
    begins: int


def read(path: Path) -> Header:
    """Return the header. Raises BadInputError for a file that has none, or only a part of it."""
    try:
        with open_regular(path) as file:
            if file.read(4) != _MAGIC or _one(file, "I") not in _VERSIONS:
                raise BadInputError(str(path), "it is no GGUF file of version 2 or 3", "name the model's folder")
            tensors, entries = _count(file), _count(file)
            metadata = {_text(file): _value(file) for _ in range(entries)}
            named = [_tensor(file) for _ in range(tensors)]
            begins, last = file.tell(), max((at for _, _, at in named), default=0)
            missing = begins + last - file.seek(0, 2)
            if missing > 0:
                raise BadInputError(str(path), f"at least {missing} bytes are missing at its end", _AGAIN)
            return Header(metadata, {name: elements for name, elements, _ in named}, begins)
    except OSError as error:
        raise BadInputError(str(path), (error.strerror or str(error)).lower(), "make it readable") from None
    except (struct.error, ValueError, EOFError):
        raise BadInputError(str(path), "its header is cut off or broken", _AGAIN) from None


def config(header: Header, size: int, where: str) -> dict[str, Any]:
    """Return the metadata as a `config.json` would say it. `size` are the bytes of the tensors."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise BadInputError(where, "it does not name its architecture", "name another file")
    prefix = f"{architecture}."
    found = {name: value for key, name in _NAMES.items() if (value := header.metadata.get(prefix + key)) is not None}
    found.setdefault("vocab_size", header.metadata.get("tokenizer.ggml.tokens"))
    if "kv_lora_rank" in found:
        rope = found.get("qk_rope_head_dim", 0)
        key = header.metadata.get(f"{prefix}attention.key_length_mla", found.pop("head_dim", 0))
        found["qk_nope_head_dim"] = key - rope
        found["v_head_dim"] = header.metadata.get(f"{prefix}attention.value_length_mla", found.get("v_head_dim"))
    parameters = sum(header.tensors.values())
    return {
        **found,
        "architectures": [f"{architecture} (GGUF)"],
        "model_type": _FAMILIES.get(architecture, architecture),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "quantization_config": {"quant_method": "gguf", "bits": 8 * size / parameters if parameters else 0},
    }


def _one(file: BinaryIO, kind: str) -> Any:
    size = struct.calcsize(f"<{kind}")
    return struct.unpack(f"<{kind}", file.read(size))[0]


def _count(file: BinaryIO) -> int:
    count = int(_one(file, "Q"))
    if count > _MOST:
        raise ValueError(count)
    return count


def _text(file: BinaryIO) -> str:
    length = _count(file)
    data = file.read(length)
    if len(data) < length:
        raise EOFError
    return data.decode("utf-8", "replace")


def _value(file: BinaryIO) -> Any:
    kind = _one(file, "I")
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        return _one(file, _scalar(kind))
    inner, length = _one(file, "I"), _count(file)
    if inner == _STRING:
        for _ in range(length):
            _text(file)
    elif inner == _ARRAY:
        raise ValueError(inner)
    else:
        values = file.read(length * struct.calcsize(f"<{_scalar(inner)}"))
        if length and inner in _SCALARS and _alike(values, length):
            return struct.unpack(f"<{_scalar(inner)}", values[: len(values) // length])[0]
    return length


def _alike(values: bytes, length: int) -> bool:
    """Say whether a list repeats one value: some write a number for each layer."""
    size = len(values) // length
    return values == values[:size] * length


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(kind)
    return _SCALARS[kind]


def _tensor(file: BinaryIO) -> tuple[str, int, int]:
    """Return the name, the elements, and where the data begin behind the header."""
    name, dimensions = _text(file), _one(file, "I")
    if dimensions > 8:  # noqa: PLR2004 - the format has four
        raise ValueError(dimensions)
    elements = 1
    for _ in range(dimensions):
        elements *= _one(file, "Q")
    _one(file, "I")
    return name, elements, int(_one(file, "Q"))
