"""What `install-vllm` says of each card, driver and version, to the letter."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.domain.recorded import compare
from tests.domain.torchchoice_table import CARDS, DRIVERS, H100, V100, VERSIONS, host
from vllm_supervisor.domain.torchchoice import Card, Choice, Host, Refusal, choose

MORE = {
    "nothing found": Host(trouble="there is no nvidia-smi"),
    "no card": Host(),
    "a driver that tells no capability": Host((Card("Tesla K80", None),), "470.1"),
    "no driver told": Host((H100,), ""),
    "CUDA 11": Host((H100,), "470.1", (11, 4)),
    "a Volta and a driver for CUDA 13": Host((V100, H100), "590.1", (13, 1)),
}


def told(decided: Choice | Refusal) -> str:
    if isinstance(decided, Refusal):
        return f"no: {decided.why}; {decided.remedy} ({decided.driver})"
    return f"{', then '.join(map(str, decided.builds))}: {'; '.join(decided.reasons)}"


def lines() -> Iterator[str]:
    for name, cards in CARDS.items():
        for version in VERSIONS:
            yield f"{name}, {version or 'newest'}"
            answers = ((driver, told(choose(host(cards, driver), version))) for driver in DRIVERS)
            for answer, alike in groupby(answers, lambda one: one[1].replace(one[0], "DRIVER")):
                yield f"  {' '.join(driver.partition('.')[0] for driver, _ in alike)}: {answer}"
    for name, found in MORE.items():
        yield f"{name}: {told(choose(found))}"


def test_what_is_told() -> None:
    """Builds in their order and why, or why there is none and what to do."""
    compare(Path(__file__).with_name("torchchoice_told.txt"), lines())
