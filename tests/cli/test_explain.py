"""`explain`: one class, or the list."""

import json

import pytest

from vllm_supervisor.cli.main import main
from vllm_supervisor.domain.diagnosis import CLASSES


@pytest.mark.parametrize("name", CLASSES)
def test_every_class(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Cause, how to confirm, remedy; lines fit a terminal, but for commands and what must not be broken."""
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{name} ({CLASSES[name].retry.value}): ")
    assert "\nConfirm:\n  $ " in out
    assert "\nRemedy:\n  - " in out
    prose = [line for line in out.splitlines()[1:] if not line.startswith("  $ ")]
    assert max(len(line) for line in prose) <= 100


def test_one_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """For whoever shows it elsewhere."""
    assert main(["explain", "kv_cache_too_small", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["class", "retry", "from_log_alone", "summary", "cause", "confirm", "remedy"]
    assert all(set(check) == {"command", "shows"} for check in found["confirm"])


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    """Every class once, with its verdict."""
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(CLASSES)
    assert [line.split()[1] for line in lines] == [CLASSES[name].retry for name in sorted(CLASSES)]
    assert main(["explain", "--json"]) == 0
    assert {found["class"] for found in json.loads(capsys.readouterr().out)} == set(CLASSES)


@pytest.mark.parametrize(("asked", "meant"), [("kv_cash", "kv_cache_too_small"), ("port", "port_in_use"), ("zzz", "")])
def test_a_wrong_name(asked: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, one line, the nearest name."""
    assert main(["explain", asked]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"vllm-supervisor: explain: no class is called '{asked}'; did you mean {meant}")
    assert captured.err.count("\n") == 1


def test_other_spellings(capsys: pytest.CaptureFixture[str]) -> None:
    """Hyphens and capitals are as good."""
    assert main(["explain", "Port-In-Use"]) == 0
    assert capsys.readouterr().out.startswith("port_in_use ")
