"""How a checkpoint's numbers are stored: which parts are quantized, and what a parameter then takes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_supervisor.domain.capacity.architecture import Part
from vllm_supervisor.domain.capacity.modules import LINEAR, Reach, shares
from vllm_supervisor.errors import BadInputError

_ALL = 0.999
"""A share from which all of a part is meant: names of modules add up with the last digits wrong."""
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_GROUP = 128
_MOST = 1 << 20
"""No group of numbers that share a scale is larger."""
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
    method = str(found.get("quant_method") or _part(found, "quantization").get("quant_algo") or "").lower()
    method = method.replace("compressed_tensors", "compressed-tensors").replace("_", "-") if method else ""
    read = _READERS.get(method)
    if read is None:
        why = f"its quantization method {method or 'without a name'} is not known here"
        remedy = "name a checkpoint in FP8, AWQ, GPTQ, MXFP4, NVFP4, compressed-tensors or bitsandbytes"
        raise BadInputError(where, why, remedy)
    try:
        reach = _reach(config)
        read_one = read_groups(found, reach) if method == "compressed-tensors" else read(found)
    except ValueError as error:
        raise BadInputError(where, f"quantization_config: {error}", _COMPLETE) from None
    read_one = _left(read_one, shares(_ignored(found), reach))
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


def weights_only(bits: float, group: int = _GROUP, *, zeros: bool = True) -> float:
    """Return the bits of a parameter with a 16-bit scale, and a zero of its own width, for each `group` of them."""
    return bits + (16 + (bits if zeros else 0)) / group if group > 0 else bits


def _quantization(config: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
    for holder in (config, _part(config, "text_config")):
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
    bits = _width(found, "bits", "w_bit", known=(4, 8))
    group = _group_size(found, "group_size", "q_group_size")
    return Precision("awq", f"AWQ, {bits} bit", weights_only(bits, group), LINEAR)


def _gptq(found: Mapping[str, Any]) -> Precision:
    bits = _width(found, "bits", known=(2, 3, 4, 8))
    group = _group_size(found, "group_size")
    return Precision("gptq", f"GPTQ, {bits} bit", weights_only(bits, group), LINEAR)


def _auto_round(found: Mapping[str, Any]) -> Precision:
    return replace(_gptq(found), method="auto-round", label=f"AutoRound, {_number(found, 'bits', default=4)} bit")


def _mxfp4(found: Mapping[str, Any]) -> Precision:
    del found
    # gpt-oss leaves everything but the experts as it is.
    return Precision("mxfp4", "MXFP4", 4.25, frozenset({Part.EXPERTS}))


def _modelopt(found: Mapping[str, Any]) -> Precision:
    algorithm = str(found.get("quant_algo") or _part(found, "quantization").get("quant_algo") or "")
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


def read_groups(found: Mapping[str, Any], reach: Reach) -> Precision:
    """Read compressed-tensors: each group's scheme, for the modules that it targets."""
    groups = [group for group in _part(found, "config_groups").values() if isinstance(group, Mapping)]
    if not groups:
        raise ValueError("it has no config_groups")
    schemes = [(_scheme(group, str(found.get("format", ""))), _targets(group)) for group in groups]
    packed: dict[Part, float] = dict.fromkeys(LINEAR, 0.0)
    free: dict[Part, float] = dict.fromkeys(LINEAR, 1.0)
    # A group for a class of modules has those that no group names.
    for scheme, targets in sorted(schemes, key=lambda one: "Linear" in one[1]):
        for part, share in shares(targets, reach).items():
            taken = min(share, free[part])
            packed[part] += taken * scheme.bits
            free[part] -= taken
    widest = max((scheme for scheme, _ in schemes), key=lambda one: one.bits)
    label = " and ".join(dict.fromkeys(scheme.label for scheme, _ in sorted(schemes, key=lambda one: -one[0].bits)))
    needs = max(scheme.needs for scheme, _ in schemes)
    mixed = {part: (packed[part], free[part]) for part in LINEAR if packed[part] != widest.bits}
    parts = frozenset(part for part in LINEAR if free[part] <= _ALL)
    return Precision("compressed-tensors", f"compressed-tensors, {label}", widest.bits, parts, None, mixed, needs)


def _targets(group: Mapping[str, Any]) -> list[str]:
    given = group.get("targets")
    return [str(name) for name in given] if isinstance(given, list) and given else ["Linear"]


@dataclass(frozen=True, slots=True)
class _Scheme:
    bits: float
    label: str
    needs: tuple[int, int]


def _scheme(group: Mapping[str, Any], layout: str) -> _Scheme:
    """Read what a group does; its needs are those of vLLM 0.32's `CompressedTensorsScheme`s."""
    weights, inputs = group.get("weights"), _part(group, "input_activations")
    if not isinstance(weights, Mapping):
        return _Scheme(16.0, "16 bit", (7, 0))
    bits, size = _number(weights, "num_bits", default=8), _number(weights, "group_size", default=0)
    layout = str(group.get("format") or layout)
    if not 0 < bits <= 16:  # noqa: PLR2004 - what is not quantized
        raise ValueError(f"num_bits is {bits}")
    if weights.get("type") == "float" and bits == 4:  # noqa: PLR2004 - FP4
        micro = "mxfp4" in layout or size == 32  # noqa: PLR2004 - the block of MXFP4
        return _Scheme(4.25, "MXFP4", (8, 0)) if micro else _Scheme(4.5, "NVFP4", (7, 5))
    kind = "FP" if weights.get("type") == "float" else "INT"
    scaled = weights_only(bits, size, zeros=not weights.get("symmetric", True)) if size > 0 else float(bits)
    hopper = kind == "INT" and inputs.get("type") == "float"  # FP8 activations on INT4 weights
    return _Scheme(scaled, f"{kind}{bits}", (9, 0) if hopper else (7, 5))


def _plain8(label: str, method: str) -> Precision:
    return Precision(method, label, 8.0, LINEAR)


def _quark(found: Mapping[str, Any]) -> Precision:
    weight = _part(found, "global_quant_config").get("weight") or {}
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
    "compressed-tensors": lambda found: read_groups(found, Reach({}, 0)),
    "quark": _quark,
    "torchao": _torchao,
    "experts-int8": lambda _: Precision("experts_int8", "INT8 experts", 8.0, frozenset({Part.EXPERTS})),
    "hqq": _gptq,
}


def _ignored(found: Mapping[str, Any]) -> list[str]:
    """Return the names of what a checkpoint leaves as it is."""
    names: list[str] = []
    for holder in (found, _part(found, "quantization")):
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


def _reach(config: Mapping[str, Any]) -> Reach:
    """Return how many layers have each part, as far as a configuration says it in the usual way."""
    inner = next((part for key in ("text_config", "llm_config") if (part := _part(config, key))), {})
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
    return next((value for value in found if isinstance(value, int) and 0 < value <= _MOST), 0)


def _quantizes_head(found: Mapping[str, Any]) -> bool:
    return bool(found.get("lm_head")) or found.get("lm_head_quantized") is True


def _kv_dtype(found: Mapping[str, Any]) -> str | None:
    """Return the KV cache's type that the checkpoint asks for (ModelOpt's and compressed-tensors' own fields)."""
    algorithm = found.get("kv_cache_quant_algo") or _part(found, "quantization").get("kv_cache_quant_algo")
    scheme = found.get("kv_cache_scheme")
    if isinstance(algorithm, str) and "FP8" in algorithm.upper():
        return "fp8"
    if isinstance(scheme, Mapping) and scheme.get("type") == "float" and scheme.get("num_bits") == 8:  # noqa: PLR2004
        return "fp8"
    return None


def _number(found: Mapping[str, Any], *names: str, default: int) -> int:
    """Return the first of `names` that is given. Raises ValueError where it is no whole number."""
    for name in names:
        value = found.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST:
            raise ValueError(f"{name} is {str(value)[:40]!r}, not a number")
        return value
    return default


def _width(found: Mapping[str, Any], *names: str, known: tuple[int, ...]) -> int:
    bits = _number(found, *names, default=4)
    if bits not in known:
        raise ValueError(f"{names[0]} is {bits}, not one of {', '.join(map(str, known))}")
    return bits


def _group_size(found: Mapping[str, Any], *names: str) -> int:
    """Return how many numbers share a scale; -1 where all of a channel do."""
    group = _number(found, *names, default=_GROUP)
    if group != -1 and group <= 0:
        raise ValueError(f"{names[0]} is {group}, neither a size nor -1")
    return group


def _part(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, Mapping) else {}
