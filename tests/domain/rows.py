"""Rows of the decision tables."""

from typing import NamedTuple


class Row(NamedTuple):
    """In `situation`, `word` is heard, and what follows is `expected`, in the words of `telling.tell`."""

    word: str
    situation: str
    promise: str
    expected: str


def row(word: str, situation: str, promise: str, expected: str) -> Row:
    """Return a row; read it as "`word` while `situation` `promise`"."""
    return Row(word, situation, promise, expected)
