"""The header of a safetensors file: what its tensors are called and weigh. A file may come from anywhere."""

import json
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from vllm_supervisor.config.regular import open_regular
from vllm_supervisor.errors import BadInputError

_MAX_HEADER = 100_000_000
"""The limit of the format itself."""
_AGAIN = "download the file again"
_BEGIN = 8
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Types of the format (safetensors 0.6) -> bits of an element."""


def tensors(shard: Path) -> dict[str, int]:
    """Return the bytes of each tensor.

    Raises BadInputError for a header that is broken, and for a file that is shorter than its header says.
    """
    header, length = _header(shard)
    spans: list[tuple[int, int, str]] = []
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(isinstance(at, int) for at in offsets):  # noqa: PLR2004
            raise BadInputError(str(shard), f"its header has no data_offsets for {name[:80]!r}", _AGAIN)
        if not 0 <= offsets[0] <= offsets[1]:
            raise BadInputError(str(shard), f"its header has no sense in data_offsets for {name[:80]!r}", _AGAIN)
        spans.append((offsets[0], offsets[1], name))
    missing = max((end for _, end, _ in spans), default=0) - length
    if missing > 0:
        raise BadInputError(str(shard), f"{missing} bytes are missing at its end", _AGAIN)
    _one_after_the_other(sorted(spans), shard)
    for begin, end, name in spans:
        _of_its_shape(header[name], end - begin, name, shard)
    return {name: end - begin for begin, end, name in spans}


def _one_after_the_other(spans: list[tuple[int, int, str]], shard: Path) -> None:
    at = 0
    for begin, end, name in spans:
        if begin != at:
            what = "overlaps another" if begin < at else "does not begin where another ends"
            raise BadInputError(str(shard), f"its tensor {name[:80]!r} {what}", _AGAIN)
        at = end


def _of_its_shape(tensor: dict[str, Any], size: int, name: str, shard: Path) -> None:
    kind, shape = tensor.get("dtype"), tensor.get("shape")
    bits = _BITS.get(kind) if isinstance(kind, str) else None
    if bits is None:
        remedy = "download the file again, or convert it to a type that vLLM loads"
        raise BadInputError(str(shard), f"its tensor {name[:80]!r} is of the unknown type {str(kind)[:40]!r}", remedy)
    whole = isinstance(shape, list) and all(isinstance(side, int) and side >= 0 for side in shape)
    if not whole or (prod(shape or ()) * bits + 7) // 8 != size:
        raise BadInputError(str(shard), f"its tensor {name[:80]!r} has not the size of its shape", _AGAIN)


def _header(shard: Path) -> tuple[dict[str, Any], int]:
    """Return the header, eight bytes of length and so much JSON, and how many bytes follow it."""
    try:
        with open_regular(shard) as file:
            length = _length(file, shard)
            text = file.read(length)
            behind = file.seek(0, 2) - _BEGIN - length
        if len(text) < length:
            raise BadInputError(str(shard), f"its header ends after {len(text)} of {length} bytes", _AGAIN)
        data = json.loads(text)
    except OSError as error:
        raise BadInputError(str(shard), (error.strerror or str(error)).lower(), "make it readable") from None
    except (ValueError, RecursionError):
        raise BadInputError(str(shard), "its header is no JSON", _AGAIN) from None
    if not isinstance(data, dict):
        raise BadInputError(str(shard), "its header is no JSON object", _AGAIN)
    return data, behind


def _length(file: BinaryIO, shard: Path) -> int:
    begin = file.read(_BEGIN)
    length = int.from_bytes(begin, "little")
    if len(begin) < _BEGIN or not 0 < length <= _MAX_HEADER:
        why = "it is cut off" if len(begin) < _BEGIN else f"its header would have {length} bytes"
        raise BadInputError(str(shard), f"it is no safetensors file: {why}", _AGAIN)
    return length
