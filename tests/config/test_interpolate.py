"""References in strings."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, strategies

from vllm_supervisor.config.interpolate import credentials, expand

ENVIRON = {"A": "a", "EMPTY": "", "DOLLAR": "${A} $$ $A", "MY_TOKEN": "hidden"}


def none(name: str) -> str:
    raise LookupError(name)


def filled(text: str, environ: Mapping[str, str] = ENVIRON) -> str:
    done = expand(text, environ, none)
    assert done.problems == []
    return done.text


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${A}", "a"),
        ("x${A}y${A}", "xaya"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${NONE:-d}", "d"),
        ("${NONE:-}", ""),
        ("${A:-d}", "a"),
        ("${NONE:-${EMPTY:-${A}}}", "a"),
        ('${NONE:-{"k": 1}}', '{"k": 1}'),
        ("${A:-${NONE}}", "a"),
        ("${DOLLAR}", "${A} $$ $A"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$$${A}", "$${A}"),
        ("a$b $5 $", "a$b $5 $"),
        ("${", "${"),
        ("${}", "${}"),
        ("${a b}", "${a b}"),
        ("${A", "${A"),
        ("${1A}", "${1A}"),
    ],
)
def test_references(text: str, result: str) -> None:
    """Set, unset and empty variables; nested defaults; `$$`; and every other `$` stays."""
    assert filled(text) == result


def test_an_unset_variable_is_a_problem_with_a_remedy() -> None:
    """Each unset reference is told, also inside a default that is used."""
    assert expand("${X} ${NONE:-${Y}}", ENVIRON, none).problems == [
        ("${X} is not set in the environment", "set X, or write ${X:-default}"),
        ("${Y} is not set in the environment", "set Y, or write ${Y:-default}"),
    ]


def test_secrets_that_went_in_are_noted() -> None:
    """Credentials, and variables whose names mark secrets, are remembered so that they can be masked."""
    assert expand("${MY_TOKEN}${A}", ENVIRON, none).secrets == ["hidden"]
    assert expand("${credential:k}", ENVIRON, lambda name: f"<{name}>").secrets == ["<k>"]


def test_credentials_are_files_less_one_newline(tmp_path: Path) -> None:
    """A trailing newline is the editor's, not the key's."""
    (tmp_path / "key").write_text("secret\n\n")
    assert credentials({"CREDENTIALS_DIRECTORY": str(tmp_path)})("key") == "secret\n"


@pytest.mark.parametrize("name", ["absent", "../key", "", ".", "..", "a\0b", "bin", "empty", "blank"])
def test_a_credential_that_cannot_be_had_says_why(tmp_path: Path, name: str) -> None:
    """Missing, outside the directory, empty, or not text: a reason, not a traceback."""
    (tmp_path / "key").write_text("outside")
    inside = tmp_path / "credentials"
    inside.mkdir()
    (inside / "bin").write_bytes(b"\xff")
    (inside / "empty").touch()
    (inside / "blank").write_text(" \n")
    with pytest.raises(LookupError):
        credentials({"CREDENTIALS_DIRECTORY": str(inside)})(name)


@given(strategies.text(alphabet="${}:-aA_ credential", max_size=40))
def test_any_string_expands_or_is_refused(text: str) -> None:
    """No text makes it raise, and text without a dollar comes back as it was."""
    done = expand(text, ENVIRON, none)
    if "$" not in text:
        assert done.text == text


def test_deep_nesting_is_refused() -> None:
    """Nested defaults end somewhere, short of Python's own limit."""
    assert expand("${N:-" * 2000 + "}" * 2000, {}, none).problems
