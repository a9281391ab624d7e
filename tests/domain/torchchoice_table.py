"""Print what is chosen for cards, drivers and versions: `python -m tests.domain.torchchoice_table`."""

import sys

from vllm_supervisor.domain.torchchoice import Card, Choice, Host, Refusal, choose, cuda_of_driver

T4 = Card("Tesla T4", (7, 5))
V100 = Card("Tesla V100", (7, 0))
A100 = Card("A100", (8, 0))
L4 = Card("L4", (8, 9))
RTX_4090 = Card("RTX 4090", (8, 9))
H100 = Card("H100", (9, 0))
B200 = Card("B200", (10, 0))
RTX_5090 = Card("RTX 5090", (12, 0))
PRO_6000 = Card("RTX PRO 6000 Blackwell", (12, 0))
GB10 = Card("GB10", (12, 1))
P40 = Card("Tesla P40", (6, 1))

CARDS: dict[str, tuple[Card, ...]] = {
    **{card.name: (card,) for card in (T4, V100, A100, L4, RTX_4090, H100, B200, RTX_5090, PRO_6000, GB10, P40)},
    "V100 + H100": (V100, H100),
    "A100 + RTX 5090": (A100, RTX_5090),
    "V100 + RTX 5090": (V100, RTX_5090),
    "P40 + RTX 5090": (P40, RTX_5090),
    "no GPU": (),
}
DRIVERS = ("535.183.01", "550.144.03", "570.172.08", "575.57.08", "580.65.06", "590.44.01")
VERSIONS = ("", "0.33.0", "0.19.1", "0.10.2")


def host(cards: tuple[Card, ...], driver: str) -> Host:
    """Return a host that has these cards and a driver of this branch."""
    return Host(cards, driver if cards else "", cuda_of_driver(driver) if cards else None)


def short(decided: Choice | Refusal) -> str:
    """Return a cell of the table: the builds in order, or the driver that is needed."""
    if isinstance(decided, Refusal):
        return f"no: driver {decided.driver}" if decided.driver else "no"
    return ", then ".join(f"{build.backend} {build.requirement}" for build in decided.builds)


def table(version: str) -> str:
    """Return the table for a version, in Markdown."""
    lines = [
        f"| card | {' | '.join(driver.partition('.')[0] for driver in DRIVERS)} |",
        f"|---{'|---' * len(DRIVERS)}|",
    ]
    for name, cards in CARDS.items():
        cells = [short(choose(host(cards, driver), version)) for driver in DRIVERS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print a table for each version."""
    for version in VERSIONS:
        sys.stdout.write(f"### {f'--version {version}' if version else 'no --version'}\n\n{table(version)}\n\n")


if __name__ == "__main__":
    main()
