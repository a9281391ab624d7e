"""The groups of a compressed-tensors checkpoint: which scheme its modules are in, and what that needs of a card."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_supervisor.domain.capacity.architecture import Part
from vllm_supervisor.domain.capacity.modules import LINEAR, Reach, shares
from vllm_supervisor.domain.capacity.quantfields import number, section, weights_only


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups: the bits of the widest scheme, what all are called, and the compute capability that all need.

    `mixed` has, for each part, the mean bits that its quantized modules add, and the share that no group targets.
    """

    bits: float
    label: str
    needs: tuple[int, int]
    mixed: Mapping[Part, tuple[float, float]]


def read_groups(found: Mapping[str, Any], reach: Reach) -> Groups:
    """Read compressed-tensors: each group's scheme, for the modules that it targets."""
    groups = [group for group in section(found, "config_groups").values() if isinstance(group, Mapping)]
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
    widest = max(scheme.bits for scheme, _ in schemes)
    label = " and ".join(dict.fromkeys(scheme.label for scheme, _ in sorted(schemes, key=lambda one: -one[0].bits)))
    mixed = {part: (packed[part], free[part]) for part in LINEAR}
    return Groups(widest, label, max(scheme.needs for scheme, _ in schemes), mixed)


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
    weights, inputs = group.get("weights"), section(group, "input_activations")
    if not isinstance(weights, Mapping):
        return _Scheme(16.0, "16 bit", (7, 0))
    bits, size = number(weights, "num_bits", default=8), number(weights, "group_size", default=0)
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
