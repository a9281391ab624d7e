import itertools
from collections import Counter

import pytest

from tests.domain.rows import Row
from tests.domain.situations import POLICY, SITUATIONS, WORDS, hear, moment, situation
from tests.domain.table_facts import FACTS
from tests.domain.table_operators import OPERATORS
from tests.domain.telling import tell
from vllm_supervisor.domain.machine import step
from vllm_supervisor.domain.model import Phase

ROWS = [*OPERATORS, *FACTS]
LISTED = {(row.situation, row.word) for row in ROWS}


def what_follows(where: str, word: str) -> str:
    state = situation(where)
    now = moment(state, word)
    after, effects = step(state, hear(state, word), now, POLICY, 0.5)
    return tell(state, after, effects, now)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row.word} while {row.situation} {row.promise}") for row in ROWS]
)
def test_decision(row: Row) -> None:
    """In this situation this word does exactly this: every changed field and every order is listed."""
    assert what_follows(row.situation, row.word) == row.expected


def test_a_pair_that_no_table_lists_changes_nothing() -> None:
    """The tables are complete: they list all that any word does in any situation."""
    unlisted = set(itertools.product(SITUATIONS, WORDS)) - LISTED
    told = {pair: what_follows(*pair) for pair in sorted(unlisted)}
    timers = {pair for pair in told if pair[1] in ("deadline", "signal due")}
    # A wake-up without its timer is the other timer's, which has its own row, or comes too early.
    assert {pair: words for pair, words in told.items() if words != "unchanged" and pair not in timers} == {}


def test_no_pair_is_listed_twice() -> None:
    """A second row for a pair would be a contradiction or noise."""
    twice = [pair for pair, count in Counter((row.situation, row.word) for row in ROWS).items() if count > 1]
    assert twice == []


def test_the_situations_cover_every_phase() -> None:
    """No phase is left out of the tables."""
    assert {situation(name).phase for name in SITUATIONS} == set(Phase)
