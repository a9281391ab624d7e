"""GPUs by name: the memory that CUDA reports, which is less than what they are sold as, and what they compute in."""

import re
from dataclasses import dataclass

from vllm_supervisor.domain.units import GIB

_FP8 = (8, 9)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One kind of GPU. `memory` is bytes as CUDA (or ROCm) reports them; `capability` None for AMD's."""

    name: str
    memory: int
    capability: tuple[int, int] | None
    nvlink: bool = False
    amd_fp8: bool = False

    @property
    def fp8(self) -> bool:
        """Whether it computes in FP8: Ada, Hopper and later; MI300 and later."""
        return self.amd_fp8 if self.capability is None else self.capability >= _FP8


def _gpu(name: str, gib: float, capability: tuple[int, int] | None, *, nvlink: bool = False) -> GpuModel:
    return GpuModel(name, int(gib * GIB), capability, nvlink, amd_fp8=capability is None)


GPUS = (
    _gpu("T4", 14.56, (7, 5)),
    _gpu("V100 16", 15.77, (7, 0), nvlink=True),
    _gpu("V100 32", 31.73, (7, 0), nvlink=True),
    _gpu("RTX 3090", 23.56, (8, 6)),
    _gpu("RTX 4090", 23.64, (8, 9)),
    _gpu("RTX 5090", 31.36, (12, 0)),
    _gpu("RTX A6000", 47.43, (8, 6)),
    _gpu("RTX 6000 Ada", 47.37, (8, 9)),
    _gpu("RTX PRO 6000 Blackwell", 94.97, (12, 0)),
    _gpu("A10", 22.06, (8, 6)),
    _gpu("A40", 44.34, (8, 6)),
    _gpu("L4", 22.03, (8, 9)),
    _gpu("L40", 44.39, (8, 9)),
    _gpu("L40S", 44.39, (8, 9)),
    _gpu("A100 40", 39.39, (8, 0), nvlink=True),
    _gpu("A100 80", 79.14, (8, 0), nvlink=True),
    _gpu("H20", 94.99, (9, 0), nvlink=True),
    _gpu("H100", 79.18, (9, 0), nvlink=True),
    _gpu("H100 NVL", 93.10, (9, 0), nvlink=True),
    _gpu("GH200", 94.50, (9, 0), nvlink=True),
    _gpu("H200", 139.80, (9, 0), nvlink=True),
    _gpu("B200", 178.35, (10, 0), nvlink=True),
    _gpu("GB200", 184.0, (10, 0), nvlink=True),
    _gpu("B300", 267.6, (10, 3), nvlink=True),
    _gpu("GB10", 119.61, (12, 1)),
    _gpu("MI250X", 63.98, None),
    _gpu("MI300X", 191.69, None, nvlink=True),
    _gpu("MI325X", 255.69, None, nvlink=True),
)
"""Memory: what PyTorch prints as total capacity, the lowest seen where drivers differ; nvidia-smi says more."""

_NOISE = re.compile(r"\b(?:nvidia|amd|geforce|instinct|tesla|graphics|edition|workstation|server|max-q|sxm\d?|pcie|"
                    r"hbm\d?e?|generation|accelerator|gpu)\b|\b(\d+)\s*g(?:i?b)?\b")  # fmt: skip
_ALIASES = {"dgx spark": "gb10", "a100": "a100 80", "v100": "v100 32", "h100 80": "h100", "h200 141": "h200",
            "rtx pro 6000": "rtx pro 6000 blackwell", "a10g": "a10", "rtx 6000 ada lovelace": "rtx 6000 ada",
            "gh200 480": "gh200", "rtx a6000 48": "rtx a6000", "4090": "rtx 4090", "5090": "rtx 5090",
            "3090": "rtx 3090", "h100 94": "h100 nvl", "h100 80 3": "h100"}  # fmt: skip


def gpu(text: str) -> GpuModel | None:
    """Return the GPU that `text` names, as people or drivers write it; None for one that is not in the table."""
    words = _plain(text)
    joined = _ALIASES.get(words, words).replace(" ", "")
    return next((card for card in GPUS if _plain(card.name).replace(" ", "") == joined), None)


def _plain(text: str) -> str:
    spaced = re.sub(r"[^a-z0-9]+", " ", text.lower())
    kept = _NOISE.sub(lambda found: f" {found[1]} " if found[1] else " ", spaced)
    return " ".join(kept.split())
