"""What is installed on which cards and drivers. `python -m tests.domain.torchchoice_table` prints the table."""

import itertools

import pytest

from tests.domain.torchchoice_table import (
    A100,
    B200,
    CARDS,
    DRIVERS,
    GB10,
    H100,
    L4,
    P40,
    PRO_6000,
    RTX_4090,
    RTX_5090,
    T4,
    V100,
    VERSIONS,
    host,
    short,
)  # fmt: skip
from vllm_supervisor.domain.torchcheck import Finding, fault
from vllm_supervisor.domain.torchchoice import Build, Card, Choice, Host, Refusal, choose, cuda_of_driver, is_version

BOTH = "cu130 vllm, then cu129 vllm<0.20"
ON_12 = "cu129 vllm<0.20"
PINNED = "cu130 vllm==0.33.0, then cu129 vllm==0.33.0"


@pytest.mark.parametrize(
    ("cards", "version", "by_driver"),
    [
        # driver:                     535             550             570             575             580     590
        ((T4,), "", (ON_12, ON_12, ON_12, ON_12, BOTH, BOTH)),
        ((A100,), "", (ON_12, ON_12, ON_12, ON_12, BOTH, BOTH)),
        ((L4,), "", (ON_12, ON_12, ON_12, ON_12, BOTH, BOTH)),
        ((RTX_4090,), "", (ON_12, ON_12, ON_12, ON_12, BOTH, BOTH)),
        ((H100,), "", (ON_12, ON_12, ON_12, ON_12, BOTH, BOTH)),
        ((V100,), "", ("cu128 vllm<0.20",) * 6),
        ((B200,), "", ("no: driver 570", "no: driver 570", ON_12, ON_12, BOTH, BOTH)),
        ((RTX_5090,), "", (*("no: driver 580",) * 4, BOTH, BOTH)),
        ((PRO_6000,), "", (*("no: driver 580",) * 4, BOTH, BOTH)),
        ((GB10,), "", (*("no: driver 580",) * 4, BOTH, BOTH)),
        ((P40,), "", ("no",) * 6),
        ((), "", ("no: driver 580",) * 6),
        ((A100, RTX_5090), "", (*("no: driver 580",) * 4, BOTH, BOTH)),
        ((V100, RTX_5090), "", (*("no: driver 580",) * 4, BOTH, BOTH)),
        ((P40, RTX_5090), "", (*("no: driver 580",) * 4, BOTH, BOTH)),
        ((H100, V100), "", ("cu128 vllm<0.20",) * 6),
        ((H100,), "0.33.0", (*("no: driver 580",) * 4, PINNED, PINNED)),
        ((B200,), "0.33.0", (*("no: driver 580",) * 4, PINNED, PINNED)),
        ((V100,), "0.33.0", ("no",) * 6),
        ((V100, H100), "0.33.0", (*("no: driver 580",) * 4, PINNED, PINNED)),
        ((H100,), "0.20.0", (*("no: driver 580",) * 4, *("cu130 vllm==0.20.0, then cu129 vllm==0.20.0",) * 2)),
        ((H100,), "0.19.1", ("cu129 vllm==0.19.1",) * 6),
        ((H100,), "0.10.2", ("cu128 vllm==0.10.2",) * 6),
        ((H100,), "0.6.3.post1", ("cu124 vllm==0.6.3.post1",) * 6),
        ((H100,), "0.4.0", ("cu121 vllm==0.4.0",) * 6),
        ((V100,), "0.19.1", ("cu128 vllm==0.19.1",) * 6),
        ((V100,), "0.8.5", ("cu124 vllm==0.8.5",) * 6),
        ((H100,), "0.33.0+cu129", ("cu129 vllm==0.33.0+cu129",) * 6),
        ((RTX_5090,), "0.19.1", (*("no: driver 580",) * 4, *("cu130 vllm==0.19.1, then cu129 vllm==0.19.1",) * 2)),
    ],
)
def test_the_table(cards: tuple[Card, ...], version: str, by_driver: tuple[str, ...]) -> None:
    """Capability 12.0 and up gets cu130 or the driver it needs; the others the newest vLLM that their driver runs."""
    assert tuple(short(choose(host(cards, driver), version)) for driver in DRIVERS) == by_driver


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CARDS)
def test_every_case_is_explained_and_holds_together(name: str, version: str) -> None:
    """No build asks more of the driver than it offers; every refusal names why, a remedy, and no other driver."""
    for driver in DRIVERS:
        decided = choose(host(CARDS[name], driver), version)
        if isinstance(decided, Refusal):
            assert decided.why
            assert decided.remedy
            assert decided.driver is None or f"driver {decided.driver} or later" in decided.remedy
            continue
        offered = cuda_of_driver(driver)
        assert offered is not None
        assert decided.reasons
        assert all(int(build.backend[2:4]) <= offered[0] for build in decided.builds)
        assert len({build.backend for build in decided.builds}) == len(decided.builds)
        assert all(version in build.requirement for build in decided.builds)


def test_a_newer_driver_never_takes_a_build_away() -> None:
    """What a host got with one driver, it gets, or something for a newer CUDA, with a later one."""
    for cards, version in itertools.product(CARDS.values(), VERSIONS):
        served = [isinstance(choose(host(cards, driver), version), Choice) for driver in DRIVERS]
        assert served == sorted(served)


def test_what_the_driver_says_wins_over_its_number() -> None:
    """A header that says CUDA 13.0 is believed under a number that we do not know, and the other way round."""
    assert short(choose(Host((RTX_5090,), "579.99", (13, 0)))) == BOTH
    assert short(choose(Host((RTX_5090,), "580.65.06", (12, 9)))) == "no: driver 580"
    assert short(choose(Host((RTX_5090,), "weird", (13, 0)))) == BOTH


@pytest.mark.parametrize("cards", [(), (RTX_5090,), (P40,)])
def test_pip_args_win(cards: tuple[Card, ...]) -> None:
    """Over the card, over the driver, over there being none: no build of torch is chosen, and nothing is refused."""
    decided = choose(host(cards, "535.183.01"), "0.33.0", ("--torch-backend", "cu126"))
    assert isinstance(decided, Choice)
    assert [(build.backend, build.requirement) for build in decided.builds] == [("", "vllm==0.33.0")]
    assert "VLLM_PIP_ARGS" in decided.reasons[0]


def test_what_is_left_out_is_said() -> None:
    """A display card, or a Volta beside a newer one, does not stop anything, and is named."""
    decided = choose(host((P40, V100, RTX_5090), "580.65.06"))
    assert isinstance(decided, Choice)
    said = "\n".join(decided.reasons)
    assert "left out: Tesla P40 (compute capability 6.1)" in said
    assert "left out: Tesla V100 (compute capability 7.0); CUDA 13 has no code for it" in said


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Host(trouble="there is no nvidia-smi"), "no NVIDIA GPU was found: there is no nvidia-smi"),
        (Host(), "no NVIDIA GPU was found: nvidia-smi lists no GPU"),
        (Host((Card("Tesla K80", None),), "470.1"), "driver 470.1 is too old to tell what Tesla K80 can do"),
        (Host((H100,), "470.1", (11, 4)), "H100 (compute capability 9.0) needs a driver that offers CUDA 12.0"),
        (Host((H100,), ""), "driver (unknown) is too old to tell what H100 can do"),
    ],
)
def test_hosts_with_little_to_go_by(found: Host, why: str) -> None:
    """Each is refused with what is missing."""
    decided = choose(found)
    assert isinstance(decided, Refusal)
    assert decided.why.startswith(why)


def test_versions() -> None:
    """Whatever goes into a requirement is a version and nothing else."""
    assert all(map(is_version, ("0.33.0", "0.6.3.post1", "1.0", "0.20.1rc2", "0.25.1+cu129", "0.9.0.dev5")))
    assert not any(map(is_version, ("", "latest", "0.33.0 --pre", "0.33.0,<1", "-1", "0", "0.3;x", "0.33.0\n")))


SO_13 = frozenset({13})
NO_DRIVER = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("finding", "backend", "wrong"),
    [
        (Finding("0.33.0", "2.13.0+cu130", "13.0", SO_13), "cu130", None),
        (Finding("0.33.0", "2.13.0+cu132", "13.2", SO_13), "", None),
        (Finding("0.33.0", "2.13.0+cu130", "13.0"), "cu130", None),
        (Finding("0.32.0", "2.11.0+cpu", ""), "", None),
        (Finding("0.32.0", "2.11.0+cpu", ""), "cu130", "torch 2.11.0+cpu brings no CUDA, and cu130 was asked for"),
        (
            Finding("", "2.11.0+cu129", "12.9", SO_13, "ImportError: libcudart.so.13: cannot open"),
            "cu129",
            "vLLM's extension wants libcudart.so.13, and torch 2.11.0+cu129 brings CUDA 12.9",
        ),
        (
            Finding("0.33.0", "2.11.0+cpu", "", SO_13),
            "",
            "vLLM's extension wants libcudart.so.13, and torch 2.11.0+cpu brings no CUDA",
        ),
        (
            Finding("0.33.0", "2.13.0", "13.0", SO_13, "ImportError: undefined symbol"),
            "cu130",
            "importing it fails: ImportError: undefined symbol",
        ),
        (Finding("0.33.0", "2.13.0", "13.0", SO_13, NO_DRIVER), "", None),
        (Finding("0.33.0", "2.13.0", "13.0", SO_13, NO_DRIVER), "cu130", f"importing it fails: {NO_DRIVER}"),
        (Finding(error="ModuleNotFoundError: No module named 'torch'"), "cu130", "importing it fails: ModuleNotFound"),
        (Finding("0.33.0", "2.13.0", "13.0", SO_13, "", launcher=False), "cu130", "it has no command bin/vllm"),
    ],
)
def test_the_check(finding: Finding, backend: str, wrong: str | None) -> None:
    """The comparison of torch's CUDA with the extension's comes before the import's own words."""
    said = fault(finding, backend)
    assert said == wrong or (wrong and said and said.startswith(wrong))


def test_a_build_in_words() -> None:
    """What is installed, and by which torch; without one where VLLM_PIP_ARGS decides."""
    assert str(Build("cu129", "vllm==0.32.0")) == "vllm==0.32.0 on torch for cu129"
    assert str(Build("", "vllm")) == "vllm"


def test_a_card_in_words() -> None:
    """With what it can do, as far as its driver tells."""
    assert str(H100) == "H100 (compute capability 9.0)"
    assert str(Card("Tesla K80", None)) == "Tesla K80 (compute capability unknown)"
