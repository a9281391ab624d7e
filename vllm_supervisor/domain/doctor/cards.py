"""Checks of the GPUs: enough of them, memory, who holds it, how they are joined."""

from collections.abc import Iterator

from vllm_supervisor.domain.capacity.rules import default_utilization
from vllm_supervisor.domain.doctor.facts import Card, Cards, Facts, Holder, Install, Unknown
from vllm_supervisor.domain.doctor.finding import Finding, fail, ok, skip, warn
from vllm_supervisor.domain.units import gib, version

_HIGH = 0.95
"""From here on CUDA's own context, fragmentation and a desktop do not fit beside the engine."""
_CHOOSE = "choose others with CUDA_VISIBLE_DEVICES in engine.vllm.env"


def visible(cards: Cards, devices: str | None) -> tuple[Card, ...] | Unknown:
    """Return the cards that CUDA shows under `CUDA_VISIBLE_DEVICES`, in its order.

    As CUDA does, the list ends at the first entry that names no card.
    """
    if devices is None:
        return cards.cards
    chosen: list[Card] = []
    for entry in (part.strip() for part in devices.split(",")):
        if entry.startswith("MIG-"):
            return Unknown(f"CUDA_VISIBLE_DEVICES={devices} names a part of a card (MIG), which is not looked at")
        named = [
            card
            for card in cards.cards
            if entry == str(card.index) or (entry.startswith("GPU-") and card.uuid.startswith(entry))
        ]
        if len(named) != 1:
            break
        chosen += named
    return tuple(chosen)


def used(facts: Facts) -> tuple[Card, ...] | Unknown:
    """Return the cards that the engine will take: the first ones that are visible, as many as it has ranks."""
    if isinstance(facts.cards, Unknown):
        return facts.cards
    seen = visible(facts.cards, facts.wanted.visible_devices)
    return seen if isinstance(seen, Unknown) else seen[: facts.wanted.ranks]


def utilization_of(facts: Facts) -> tuple[float, str]:
    """Return `--gpu-memory-utilization`, and where the number comes from."""
    if facts.wanted.utilization is not None:
        return facts.wanted.utilization, "--gpu-memory-utilization"
    installed = version(facts.install.vllm) if isinstance(facts.install, Install) else ()
    return default_utilization(installed or None), "vLLM's default"


def gpus(facts: Facts) -> Iterator[Finding]:
    """Say whether this build sees the GPUs that it needs."""
    name, cards, wanted = "gpus", facts.cards, facts.wanted
    nvidia = isinstance(facts.install, Install) and facts.install.needs_nvidia
    if isinstance(facts.install, Install) and not nvidia and isinstance(cards, Unknown):
        other = facts.install.torch_hip is not None
        yield skip(name, "AMD's cards are not looked at") if other else ok(name, "none, and this build needs none")
        return
    if isinstance(cards, Unknown):
        if nvidia and cards.absent:
            remedy = "install NVIDIA's driver, or pass the GPUs into this container (`docker run --gpus all`)"
            yield fail(name, f"this vLLM needs an NVIDIA GPU: {cards.why}", remedy)
        else:
            yield skip(name, cards.why)
        return
    seen = visible(cards, wanted.visible_devices)
    if isinstance(seen, Unknown):
        yield skip(name, seen.why)
    elif not seen:
        hidden = f"CUDA_VISIBLE_DEVICES={wanted.visible_devices} shows none of {len(cards.cards)}"
        why = hidden if cards.cards else f"driver {cards.driver} has no GPU"
        remedy = "correct CUDA_VISIBLE_DEVICES in engine.vllm.env" if cards.cards else "look at `nvidia-smi -L` as root"
        yield fail(name, why, remedy) if nvidia else ok(name, why)
    else:
        yield ok(name, "; ".join(_card(card) for card in seen))


def _card(card: Card) -> str:
    return f"GPU {card.index} {card.name}, {gib(card.total)}"


def utilization(facts: Facts) -> Iterator[Finding]:
    """Say whether the share of memory leaves room for what is outside it."""
    name = "utilization"
    share, source = utilization_of(facts)
    if isinstance(facts.install, Unknown):
        if facts.wanted.utilization is None:
            yield skip(name, facts.install.why)
            return
    elif not facts.install.needs_nvidia and facts.wanted.utilization is None:
        yield ok(name, "not needed: this build uses no GPU")
        return
    if not 0 < share <= 1:
        remedy = "set --gpu-memory-utilization in engine.vllm.extra_args to a number above 0 and up to 1, such as 0.90"
        yield fail(name, f"{source} is {share:g}", remedy)
    elif share >= _HIGH:
        why = f"{source} is {share:g}: {_HIGH:g} and up leaves too little for what CUDA takes beside it"
        yield warn(name, why, "set --gpu-memory-utilization 0.92 in engine.vllm.extra_args")
    else:
        yield ok(name, f"{share:g} ({source})")


def memory(facts: Facts) -> Iterator[Finding]:
    """Say whether the memory is free that vLLM demands when it starts: its share of all, not of what is free (0.9)."""
    name, cards = "gpu-memory", used(facts)
    if isinstance(cards, Unknown) or not cards:
        yield skip(name, cards.why if isinstance(cards, Unknown) else "no GPU is visible")
        return
    if not all(card.total for card in cards):
        yield skip(name, "the driver does not say how much memory there is (shared with the CPU)")
        return
    share, _ = utilization_of(facts)
    short = False
    for card in cards:
        own = sum(holder.bytes or 0 for holder in card.holders if holder.ours)
        free, wants = card.free + own, share * card.total
        if free < wants:
            short = True
            why = f"GPU {card.index}: {gib(free)} of {gib(card.total)} free, {gib(wants)} ({share:g}) wanted"
            fits = int(free / card.total * 100) / 100 - 0.01
            lower = f"set --gpu-memory-utilization {fits:.2f}" if fits > 0 else _CHOOSE
            yield fail(name, why, f"free it (see gpu-holders), or {lower}")
    if not short:
        least = min(card.free for card in cards)
        yield ok(name, f"{gib(least)} free on each, {share:g} of {gib(cards[0].total)} wanted")


def holders(facts: Facts) -> Iterator[Finding]:
    """Say who else holds memory on the cards that the engine takes."""
    name, cards = "gpu-holders", used(facts)
    if isinstance(cards, Unknown) or not cards:
        yield skip(name, cards.why if isinstance(cards, Unknown) else "no GPU is visible")
        return
    others = [(card, holder) for card in cards for holder in card.holders if not holder.ours]
    for card, holder in others:
        held = f" holds {gib(holder.bytes)}" if holder.bytes is not None else " holds memory"
        why = f"GPU {card.index}: pid {holder.pid} ({holder.name}){held}"
        yield warn(name, why, f"end it (`kill {holder.pid}`) if it should not be there, or {_CHOOSE}")
    if not others:
        yield ok(name, "nobody but this instance" if any(card.holders for card in cards) else "nobody")


def instances(facts: Facts) -> Iterator[Finding]:
    """Say whether the shares of all vLLM on a card fit into it."""
    name, cards = "other-instances", used(facts)
    if isinstance(cards, Unknown) or not cards:
        yield skip(name, cards.why if isinstance(cards, Unknown) else "no GPU is visible")
        return
    own, _ = utilization_of(facts)
    quiet = True
    for card in cards:
        others = _instances(card.holders)
        total = own + sum(others.values())
        if not others or total <= _HIGH:
            continue
        quiet = False
        listed = ", ".join(f"{share:g} of pid {pid}" for pid, share in sorted(others.items()))
        why = f"GPU {card.index}: {own:g} here and {listed} add up to {total:.2f}, above {_HIGH:g}"
        remedy = f"lower --gpu-memory-utilization so that all of them stay at or below {_HIGH:g}, or {_CHOOSE}"
        yield fail(name, why, remedy) if total > 1 else warn(name, why, remedy)
    if quiet:
        yield ok(name, "no other vLLM stands in the way")


def _instances(found: tuple[Holder, ...]) -> dict[int, float]:
    """Return each other instance's share; one that gives none has the default of current versions."""
    return {
        holder.instance: 0.92 if holder.utilization is None else holder.utilization
        for holder in found
        if holder.instance is not None and not holder.ours
    }


def alike(facts: Facts) -> Iterator[Finding]:
    """Say whether the cards of a tensor-parallel group are of one kind: the slowest and smallest decides."""
    name, cards = "gpu-models", used(facts)
    if isinstance(cards, Unknown):
        yield skip(name, cards.why)
    elif facts.wanted.tensor == 1:
        yield ok(name, "not needed: tensor-parallel size 1")
    elif len(kinds := sorted({card.name for card in cards})) > 1:
        why = f"different GPUs under one tensor-parallel group: {', '.join(kinds)}; the smallest decides"
        yield warn(name, why, "choose equal ones with CUDA_VISIBLE_DEVICES (and CUDA_DEVICE_ORDER: PCI_BUS_ID) in env")
    else:
        yield ok(name, kinds[0] if kinds else "no GPU is visible")


def links(facts: Facts) -> Iterator[Finding]:
    """Say whether NVLink joins the cards of a tensor-parallel group."""
    name, cards = "gpu-links", used(facts)
    if isinstance(cards, Unknown) or isinstance(facts.cards, Unknown):
        yield skip(name, cards.why if isinstance(cards, Unknown) else "no GPU was read")
        return
    if facts.wanted.tensor == 1:
        yield ok(name, "not needed: tensor-parallel size 1")
        return
    table = facts.cards.links
    if isinstance(table, Unknown):
        yield skip(name, table.why)
        return
    indices = sorted(card.index for card in cards)
    pairs = {(a, b): table.get((a, b), "?") for a in indices for b in indices if a < b}
    slow = [f"{a}-{b} {kind}" for (a, b), kind in pairs.items() if not kind.startswith("NV")]
    if slow:
        why = f"GPUs joined by PCIe, not by NVLink: {', '.join(slow)}; every layer waits for it"
        remedy = "choose GPUs that NVLink joins (`nvidia-smi topo -m`), or set --pipeline-parallel-size instead"
        yield warn(name, why, f"{remedy} of --tensor-parallel-size, or accept it")
    else:
        yield ok(name, "NVLink between all of them")


def tensor_parallel(facts: Facts) -> Iterator[Finding]:
    """Say whether there are as many cards as the parallel sizes ask for."""
    name, wanted = "tensor-parallel", facts.wanted
    if wanted.executor == "ray":
        yield skip(name, "Ray places the ranks")
        return
    seen: tuple[Card, ...] | Unknown = (
        facts.cards if isinstance(facts.cards, Unknown) else visible(facts.cards, wanted.visible_devices)
    )
    asked = f"tensor x pipeline x data = {wanted.tensor} x {wanted.pipeline} x {wanted.data}"
    if wanted.nodes > 1:
        asked += f" on {wanted.nodes} nodes"
    if isinstance(seen, Unknown):
        yield skip(name, seen.why)
    elif wanted.ranks > len(seen):
        fewer = f"set --tensor-parallel-size so that at most {len(seen)} are needed, or " if seen else ""
        remedy = f"{fewer}make more GPUs visible"
        yield fail(name, f"{wanted.ranks} GPUs are asked for here ({asked}), {len(seen)} visible", remedy)
    else:
        yield ok(name, f"{wanted.ranks} of {len(seen)} GPUs")
