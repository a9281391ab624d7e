"""Every check, on hosts that differ in what it looks at."""

import re
from itertools import pairwise

import pytest

from tests.domain.doctor.hosts import GOOD, card, cards, facts
from tests.domain.doctor.table import ROWS, Row
from vllm_supervisor.domain.doctor import Result, examine, summary
from vllm_supervisor.domain.doctor.cards import visible
from vllm_supervisor.domain.doctor.facts import Card
from vllm_supervisor.domain.doctor.install import offered_cuda
from vllm_supervisor.domain.doctor.weights import estimate

NAMES = sorted({row.name for row in ROWS})


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    """The check finds what the row says, with its words, and a remedy exactly where something is to be done."""
    found = [finding for finding in examine(facts(**row.changes)) if finding.name == row.name]
    finding = next((one for one in found if row.words in one.detail), found[0])
    assert (finding.result, row.words in finding.detail) == (row.result, True), finding
    assert bool(finding.remedy) is (row.result in {"warn", "fail"}), finding
    assert row.remedy in finding.remedy


def test_no_size_suits_no_gpu() -> None:
    """Where none is visible, a smaller parallel size is no remedy."""
    found = [finding for finding in examine(facts(wanted={"visible_devices": ""})) if finding.name == "tensor-parallel"]
    assert [finding.remedy for finding in found] == ["make more GPUs visible"]


def test_a_good_host() -> None:
    """Nothing to complain of, nothing skipped, each check says one thing."""
    findings = examine(GOOD)
    assert {finding.result for finding in findings} == {Result.OK}
    assert sorted(finding.name for finding in findings) == NAMES
    assert summary(findings) == {"ok": len(NAMES), "warn": 0, "fail": 0, "skip": 0}


@pytest.mark.parametrize("name", NAMES)
def test_each_check_has_its_rows(name: str) -> None:
    """No check without a row for all well and one for something wrong; none that says wrong in one way only."""
    results = {row.result for row in ROWS if row.name == name}
    assert "ok" in results
    assert results & {"warn", "fail"}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_remedy_can_be_followed(row: Row) -> None:
    """It says what to type or to set: it begins with a verb or a command, is one line, and ends as a part of one."""
    for finding in examine(facts(**row.changes)):
        if finding.remedy:
            assert re.match(r"`|[a-z]", finding.remedy), finding
            assert "\n" not in finding.remedy + finding.detail
            assert not finding.remedy.endswith((".", " "))


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (None, [0, 1]),
        ("1,0", [1, 0]),
        ("1,9,0", [1]),
        ("", []),
        ("-1", []),
        ("GPU-1", [1]),
        ("GPU-", []),
        ("0, 1", [0, 1]),
    ],
)
def test_visible_devices(devices: str | None, indices: list[int]) -> None:
    """CUDA_VISIBLE_DEVICES by index or UUID, ending at the first entry that names no card or several, as CUDA does."""
    seen = visible(cards(card(0), card(1)), devices)
    assert isinstance(seen, tuple)
    assert [one.index for one in seen] == indices


@pytest.mark.parametrize(
    ("model", "gigabytes"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", 140),
        ("openai/gpt-oss-20b", 12.5),
        ("Qwen/Qwen3-30B-A3B", 60),
        ("Qwen/Qwen3-32B-FP8", 32),
        ("mistralai/Mixtral-8x7B-v0.1", 112),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", 45),
        ("Qwen/Qwen2.5-0.5B", 1),
        ("HuggingFaceTB/SmolLM2-135M", 0.27),
        ("microsoft/phi-2", None),
        ("/models/8b", 16),
    ],
)
def test_weights_by_name(model: str, gigabytes: float | None) -> None:
    """Parameters by bytes a parameter; versions and active parameters are not taken for sizes."""
    size = estimate(model)
    assert size == (None if gigabytes is None else pytest.approx(gigabytes * 1e9, rel=0.01))


def test_drivers_are_in_order() -> None:
    """A newer driver never offers an older CUDA."""
    offers = [offered_cuda(cards(driver=f"{major}.1", cuda=None)) for major in range(520, 600)]
    known = [offer for offer in offers if offer is not None]
    assert known[0] == (12, 0)
    assert known[-1] == (13, 1)
    assert all(older <= newer for older, newer in pairwise(known))


def test_a_card_is_counted_once() -> None:
    """More cards than ranks: only those that the engine will take are looked at."""
    busy: Card = card(2, free=0)
    findings = examine(facts(cards=cards(card(0), card(1), busy)))
    assert {finding.result for finding in findings} == {Result.OK}
