"""How a checkpoint's numbers are stored: which parts are quantized, and what a parameter then takes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_supervisor.domain.capacity.architecture import Part
from vllm_supervisor.domain.capacity.groups import read_groups
from vllm_supervisor.domain.capacity.modules import LINEAR, Reach, reach, shares
from vllm_supervisor.domain.capacity.quantfields import group_size, number, section, weights_only, width
from vllm_supervisor.errors import BadInputError

_ALL = 0.999
"""A share from which all of a part is meant: names of modules add up with the last digits wrong."""
_COMPLETE = "name a model's own, complete config.json"
_CONVERTS_ON_LOAD = {"fp8": ("fp8", 8.0), "bitsandbytes": ("bitsandbytes", 4.5), "experts_int8": ("experts_int8", 8.0)}
"""`--quantization` that vLLM applies to a 16-bit checkpoint while it loads -> bits a parameter."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bits that a parameter of the quantized parts takes, scales included; the others take those of the model's type.

    `method` is vLLM's name; None for a checkpoint that is not quantized. `label` is for the user.
    """

    method: str | None = None
    label: str = "16 bit"
    bits: float = 16.0
    parts: frozenset[Part] = frozenset()
    kv_dtype: str | None = None
    """The type of the KV cache that the checkpoint asks for."""
    mixed: Mapping[Part, tuple[float, float]] = field(default_factory=dict)
    """Parts whose modules differ: the mean bits that the quantized ones add, and the share that is left as it was."""
    needs: tuple[int, int] | None = None
    """Compute capability, where it is the scheme's and not the method's."""
    block: int = 0
    """Side of the blocks that have a scale each: what tensor parallelism leaves on a GPU must be made of such."""

    def of(self, part: Part, plain_bits: float) -> float:
        """Return the bits of a parameter of `part`."""
        if part in self.parts and part in self.mixed:
            packed, plain = self.mixed[part]
            return packed + plain * plain_bits
        return self.bits if part in self.parts else plain_bits


def precision(config: Mapping[str, Any], where: str = "config.json") -> Precision:
    """Read a `config.json`'s quantization. Raises BadInputError for a method that is not known here."""
    found = _quantization(config, where)
    if found is None:
        return Precision()
    method = str(found.get("quant_method") or section(found, "quantization").get("quant_algo") or "").lower()
    method = method.replace("compressed_tensors", "compressed-tensors").replace("_", "-") if method else ""
    read = _READERS.get(method)
    if read is None:
        why = f"its quantization method {method or 'without a name'} is not known here"
        remedy = "name a checkpoint in FP8, AWQ, GPTQ, MXFP4, NVFP4, compressed-tensors or bitsandbytes"
        raise BadInputError(where, why, remedy)
    try:
        reaches = reach(config)
        read_one = _compressed(found, reaches) if method == "compressed-tensors" else read(found)
    except ValueError as error:
        raise BadInputError(where, f"quantization_config: {error}", _COMPLETE) from None
    read_one = _left(read_one, shares(_ignored(found), reaches))
    parts = read_one.parts | ({Part.HEAD} if _quantizes_head(found) else frozenset())
    return replace(read_one, parts=parts, kv_dtype=_kv_dtype(found))


def converted(method: str, parts: Iterable[Part] = LINEAR) -> Precision:
    """Return what `--quantization METHOD` makes of a 16-bit checkpoint.

    Raises BadInputError for a method that needs a checkpoint of its own.
    """
    found = _CONVERTS_ON_LOAD.get(method)
    if found is None:
        known = ", ".join(sorted(_CONVERTS_ON_LOAD))
        why = "it needs a checkpoint that is quantized so, or is not known here"
        raise BadInputError(f"--quantization {method}", why, f"name such a checkpoint, or use {known} on this one")
    label, bits = found
    kept = frozenset({Part.EXPERTS}) if method == "experts_int8" else frozenset(parts)
    return Precision(method, f"{label}, converted while loading", bits, kept)


def _quantization(config: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
    for holder in (config, section(config, "text_config")):
        for key in ("quantization_config", "compression_config"):
            found = holder.get(key)
            if isinstance(found, Mapping):
                return found
            if found is not None:
                raise BadInputError(where, f"{key} is no object", _COMPLETE)
    return None


def _fp8(found: Mapping[str, Any]) -> Precision:
    block = found.get("weight_block_size")
    square = isinstance(block, list) and len(block) == 2 and all(isinstance(side, int) and side > 0 for side in block)  # noqa: PLR2004 - rows, columns
    if block is not None and not square:
        raise ValueError(f"weight_block_size is {str(block)[:40]!r}, not two sides")
    cells = block[0] * block[1] if square and isinstance(block, list) else 0
    bits = 8 + 32 / cells if cells else 8.0
    label = f"FP8 in blocks of {block[0]}x{block[1]}" if cells and block else "FP8"
    return Precision("fp8", label, bits, LINEAR, block=max(block) if cells and block else 0)


def _awq(found: Mapping[str, Any]) -> Precision:
    bits = width(found, "bits", "w_bit", known=(4, 8))
    group = group_size(found, "group_size", "q_group_size")
    return Precision("awq", f"AWQ, {bits} bit", weights_only(bits, group), LINEAR)


def _gptq(found: Mapping[str, Any]) -> Precision:
    bits = width(found, "bits", known=(2, 3, 4, 8))
    group = group_size(found, "group_size")
    return Precision("gptq", f"GPTQ, {bits} bit", weights_only(bits, group), LINEAR)


def _auto_round(found: Mapping[str, Any]) -> Precision:
    return replace(_gptq(found), method="auto-round", label=f"AutoRound, {number(found, 'bits', default=4)} bit")


def _mxfp4(found: Mapping[str, Any]) -> Precision:
    del found
    # gpt-oss leaves everything but the experts as it is.
    return Precision("mxfp4", "MXFP4", 4.25, frozenset({Part.EXPERTS}))


def _modelopt(found: Mapping[str, Any]) -> Precision:
    algorithm = str(found.get("quant_algo") or section(found, "quantization").get("quant_algo") or "")
    if "NVFP4" in algorithm.upper() or "FP4" in str(found.get("quant_method", "")).upper():
        return Precision("modelopt_fp4", "NVFP4", 4.5, LINEAR)
    return Precision("modelopt", "FP8", 8.0, LINEAR)


def _bitsandbytes(found: Mapping[str, Any]) -> Precision:
    if found.get("load_in_8bit"):
        return Precision("bitsandbytes", "bitsandbytes, 8 bit", 8.0, LINEAR)
    # A scale for each 64: in FP32, or in 8 bit with one in FP32 for each 256 of them.
    double = bool(found.get("bnb_4bit_use_double_quant"))
    bits = 4 + (8 / 64 + 32 / (64 * 256) if double else 32 / 64)
    return Precision("bitsandbytes", "bitsandbytes, 4 bit", bits, LINEAR)


def _compressed(found: Mapping[str, Any], reaches: Reach) -> Precision:
    groups = read_groups(found, reaches)
    parts = frozenset(part for part, (_, plain) in groups.mixed.items() if plain <= _ALL)
    label = f"compressed-tensors, {groups.label}"
    return Precision("compressed-tensors", label, groups.bits, parts, mixed=groups.mixed, needs=groups.needs)


def _plain8(label: str, method: str) -> Precision:
    return Precision(method, label, 8.0, LINEAR)


def _quark(found: Mapping[str, Any]) -> Precision:
    weight = section(found, "global_quant_config").get("weight") or {}
    weight = weight[0] if isinstance(weight, list) and weight else weight
    named = str(weight.get("dtype", "")) if isinstance(weight, Mapping) else ""
    if "fp4" in named or "int4" in named:
        return Precision("quark", f"Quark, {named}", 4.25, LINEAR)
    return _plain8(f"Quark, {named or '8 bit'}", "quark")


def _torchao(found: Mapping[str, Any]) -> Precision:
    four = "4" in re.sub(r"[^0-9]", " ", str(found.get("quant_type", ""))).split()
    return Precision("torchao", "torchao, 4 bit" if four else "torchao, 8 bit", 4.25 if four else 8.0, LINEAR)


def _gguf(found: Mapping[str, Any]) -> Precision:
    bits = found.get("bits")
    bits = float(bits) if isinstance(bits, int | float) and bits > 0 else 4.85
    return Precision("gguf", f"GGUF, {bits:.3g} bit", bits, LINEAR | {Part.EMBEDDING, Part.HEAD})


_READERS = {
    "gguf": _gguf,
    "fp8": _fp8,
    "fbgemm-fp8": lambda _: _plain8("FP8", "fbgemm_fp8"),
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "mxfp4": _mxfp4,
    "gpt-oss-mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "fp8-pb-wo": _modelopt,
    "nvfp4": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": lambda found: _compressed(found, Reach({}, 0)),
    "quark": _quark,
    "torchao": _torchao,
    "experts-int8": lambda _: Precision("experts_int8", "INT8 experts", 8.0, frozenset({Part.EXPERTS})),
    "hqq": _gptq,
}


def _ignored(found: Mapping[str, Any]) -> list[str]:
    """Return the names of what a checkpoint leaves as it is."""
    names: list[str] = []
    for holder in (found, section(found, "quantization")):
        for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules", "exclude"):  # noqa: E501 # fmt: skip
            value = holder.get(key)
            names += [str(name) for name in value] if isinstance(value, list) else []
    return names


def _left(read: Precision, shares: Mapping[Part, float]) -> Precision:
    """Return `read` with these shares of the parts left as they are."""
    whole = frozenset(part for part, share in shares.items() if share > _ALL)
    mixed = dict(read.mixed)
    for part, share in shares.items():
        if part in read.parts and part not in whole:
            packed, plain = mixed.get(part, (read.bits, 0.0))
            mixed[part] = (packed * (1 - share), plain + (1 - plain) * share)
    return replace(read, parts=read.parts - whole, mixed=mixed)


def _quantizes_head(found: Mapping[str, Any]) -> bool:
    return bool(found.get("lm_head")) or found.get("lm_head_quantized") is True


def _kv_dtype(found: Mapping[str, Any]) -> str | None:
    """Return the KV cache's type that the checkpoint asks for (ModelOpt's and compressed-tensors' own fields)."""
    algorithm = found.get("kv_cache_quant_algo") or section(found, "quantization").get("kv_cache_quant_algo")
    scheme = found.get("kv_cache_scheme")
    if isinstance(algorithm, str) and "FP8" in algorithm.upper():
        return "fp8"
    if isinstance(scheme, Mapping) and scheme.get("type") == "float" and scheme.get("num_bits") == 8:  # noqa: PLR2004
        return "fp8"
    return None
