"""Which build of torch, and which vLLM under it, suit the cards and the driver of a host.

torch is published once for each CUDA ("cu130" is CUDA 13.0), and vLLM's compiled extension must find the runtime of the
same major: `libcudart.so.13` or `libcudart.so.12`. Where the facts below come from:

- vLLM's wheel on the default index is built for CUDA 13 from 0.20 on and for CUDA 12 before (vllm-project: router pull
  154, vllm issue 44335; measured for 0.33.0). uv's `--torch-backend` selects torch only, never vLLM's wheel (measured
  with uv 0.13.9).
- CUDA 13.x runs on drivers from 580 on, any CUDA 12.x on drivers from 525 on (NVIDIA's minor version compatibility).
- CUDA 13 has no code for Volta, torch has it in its builds for 12.6 and 12.8 only (vllm pull 39878, torch 2.11).
"""

import re
from dataclasses import dataclass

Capability = tuple[int, int]
"""Compute capability of a card: (9, 0) is Hopper, (12, 0) Blackwell without NVLink."""
Cuda = tuple[int, int]

REMEDY_ARGS = "say in VLLM_PIP_ARGS what to install"

_OLDEST: Capability = (7, 0)
_OLDEST_ON_13: Capability = (7, 5)
_NEEDS_13: Capability = (12, 0)
_BLACKWELL: Capability = (10, 0)
_ON_13 = 13
_FIRST_ON_13 = (0, 20)
_NEWEST_ON_12 = "vllm<0.20"

_DRIVERS: tuple[tuple[int, Cuda], ...] = (
    (590, (13, 1)), (580, (13, 0)), (575, (12, 9)), (570, (12, 8)), (565, (12, 7)), (560, (12, 6)), (555, (12, 5)),
    (550, (12, 4)), (545, (12, 3)), (535, (12, 2)), (530, (12, 1)), (525, (12, 0)), (450, (11, 0)),
)  # fmt: skip
"""Branch of the driver and the CUDA that its first release offers (NVIDIA's CUDA release notes)."""

_ON_12: tuple[tuple[tuple[int, int], str], ...] = (((0, 11), "cu129"), ((0, 9), "cu128"), ((0, 6), "cu124"))
"""First vLLM whose pinned torch exists in that build: torch 2.8, 2.7 and 2.4."""
_ON_12_BEFORE = "cu121"
_VOLTA_ON_12 = "cu128"

_VERSION = re.compile(r"(\d+)\.(\d+)(?:[.\w]*)(?:\+cu(\d\d)\d)?")


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU. `capability` is None where the driver is too old to tell it."""

    name: str
    capability: Capability | None

    def __str__(self) -> str:
        told = "unknown" if self.capability is None else ".".join(map(str, self.capability))
        return f"{self.name} (compute capability {told})"


@dataclass(frozen=True, slots=True)
class Host:
    """What was found on a host. `cuda` is what the driver says that it offers; `trouble` why nothing was found."""

    cards: tuple[Card, ...] = ()
    driver: str = ""
    cuda: Cuda | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Build:
    """One environment to try: torch's build (empty where VLLM_PIP_ARGS decides), and the requirement for vLLM."""

    backend: str
    requirement: str

    def __str__(self) -> str:
        return f"{self.requirement} on torch for {self.backend}" if self.backend else self.requirement


@dataclass(frozen=True, slots=True)
class Choice:
    """Builds in the order in which to try them, and why."""

    builds: tuple[Build, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing can be installed. `driver` is the oldest branch that would do, None where no driver helps."""

    why: str
    remedy: str
    driver: int | None = None


def is_version(text: str) -> bool:
    """Say whether this can be a version of vLLM: 0.33.0, 0.20.1rc2, 0.25.1+cu129."""
    return _VERSION.fullmatch(text) is not None


def cuda_of_driver(driver: str) -> Cuda | None:
    """Return the CUDA that a driver of this branch offers at least; None for one that is unknown or ancient."""
    branch = driver.partition(".")[0]
    if not branch.isdecimal():
        return None
    return next((cuda for first, cuda in _DRIVERS if int(branch) >= first), None)


def choose(host: Host, version: str = "", pip_args: tuple[str, ...] = ()) -> Choice | Refusal:
    """Decide what to install. An empty version means the newest that suits; any VLLM_PIP_ARGS win over the choice."""
    requirement = f"vllm=={version}" if version else "vllm"
    if pip_args:
        return Choice((Build("", requirement),), ("VLLM_PIP_ARGS is set and decides",))
    cards = tuple(card for card in host.cards if _capability(card) >= _OLDEST)
    cuda = host.cuda or cuda_of_driver(host.driver)
    if not cards or cuda is None:
        return _nothing_to_go_by(host)
    newest, oldest = max(cards, key=_capability), min(cards, key=_capability)
    refusal = _driver_too_old(
        newest, host.driver, cuda, pinned_to_13=bool(version) and _published_for(version) >= _ON_13
    )
    if refusal is not None:
        return refusal
    reasons = [f"{newest}, driver {host.driver} offers CUDA {_dotted(cuda)}"]
    reasons += [f"left out: {card}; vLLM needs 7.0" for card in host.cards if card not in cards]
    chosen = _build(_capability(newest), _capability(oldest), cuda, version)
    if isinstance(chosen, Refusal):
        why = f"vLLM {version} is published for CUDA 13, and {newest} with driver {host.driver}: {chosen.why}"
        return Refusal(why, chosen.remedy, chosen.driver)
    builds, why = chosen
    reasons.append(why)
    if builds[0].backend == "cu130":
        reasons += [f"left out: {card}; CUDA 13 has no code for it" for card in cards if _is_volta(card)]
    return Choice(builds, tuple(reasons))


def _build(newest: Capability, oldest: Capability, cuda: Cuda, version: str) -> tuple[tuple[Build, ...], str] | Refusal:
    """Return the builds and why, or why there is none. The driver is known to suit the newest card."""
    requirement = f"vllm=={version}" if version else "vllm"
    on_13 = _published_for(version) >= _ON_13
    falling_back = (Build("cu130", requirement), Build("cu129", requirement if version else _NEWEST_ON_12))
    if newest >= _NEEDS_13:
        return falling_back, "compute capability 12.0 and up needs torch for CUDA 13"
    if not on_13:
        return (Build(_on_12(version, oldest), requirement),), f"vLLM {version} is published for CUDA 12"
    if newest < _OLDEST_ON_13:
        if version:
            return Refusal("CUDA 13 has no code for Volta", f"ask for a version before 0.20, or {REMEDY_ARGS}")
        return (Build(_on_12("", oldest), _NEWEST_ON_12),), "CUDA 13, and with it vLLM from 0.20 on, has no Volta"
    if cuda < (13, 0):
        if version:
            remedy = f"install NVIDIA driver 580 or later, ask for a version before 0.20, or {REMEDY_ARGS}"
            return Refusal(f"that offers CUDA {_dotted(cuda)}", remedy, 580)
        why = (
            "vLLM from 0.20 on is published for CUDA 13, which needs driver 580 or later: this is the newest before it"
        )
        return (Build(_on_12("", oldest), _NEWEST_ON_12),), why
    if oldest < _OLDEST_ON_13 and not version:
        return (Build(_on_12("", oldest), _NEWEST_ON_12),), "for CUDA 12, so that the older cards can be used too"
    return falling_back, "vLLM from 0.20 on is published for CUDA 13"


def _nothing_to_go_by(host: Host) -> Refusal:
    if host.trouble or not host.cards:
        why = host.trouble or "nvidia-smi lists no GPU"
        return Refusal(f"no NVIDIA GPU was found: {why}", f"install NVIDIA driver 580 or later, or {REMEDY_ARGS}", 580)
    if any(card.capability is None for card in host.cards) or cuda_of_driver(host.driver) is None:
        why = f"driver {host.driver or '(unknown)'} is too old to tell what {host.cards[0].name} can do"
        return Refusal(why, "install NVIDIA driver 580 or later", 580)
    best = max(host.cards, key=_capability)
    return Refusal(f"{best} is too old for vLLM, which needs 7.0 or higher", f"use a newer card, or {REMEDY_ARGS}")


def _driver_too_old(card: Card, driver: str, cuda: Cuda, *, pinned_to_13: bool) -> Refusal | None:
    """Compare with the first CUDA that knows the card at all, and with the oldest that any build here is made for."""
    if _capability(card) >= _NEEDS_13 or (_capability(card) >= _BLACKWELL and pinned_to_13):
        needed = (13, 0)
    elif _capability(card) >= _BLACKWELL:
        needed = (12, 8)
    else:
        needed = (12, 0)
    if cuda >= needed:
        return None
    branch = min(first for first, offered in _DRIVERS if offered >= needed)
    why = f"{card} needs a driver that offers CUDA {_dotted(needed)}, and driver {driver} offers {_dotted(cuda)}"
    better = "" if needed >= (_ON_13, 0) else " (580 or later for vLLM from 0.20 on)"
    return Refusal(why, f"install NVIDIA driver {branch} or later{better}", branch)


def _published_for(version: str) -> int:
    """Return the CUDA major of vLLM's wheel: what a local part (+cu129) says, else what the default index carries."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return _ON_13
    major, minor, local = found.groups()
    if local:
        return int(local)
    return _ON_13 if (int(major), int(minor)) >= _FIRST_ON_13 else 12


def _on_12(version: str, oldest: Capability) -> str:
    found = _VERSION.fullmatch(version)
    number = (int(found[1]), int(found[2])) if found else _FIRST_ON_13
    backend = next((name for first, name in _ON_12 if number >= first), _ON_12_BEFORE)
    return _VOLTA_ON_12 if oldest < _OLDEST_ON_13 and backend == "cu129" else backend


def _is_volta(card: Card) -> bool:
    return _capability(card) < _OLDEST_ON_13


def _capability(card: Card) -> Capability:
    return card.capability or (0, 0)


def _dotted(cuda: Cuda) -> str:
    return f"{cuda[0]}.{cuda[1]}"
