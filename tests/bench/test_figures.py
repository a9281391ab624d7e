"""The table that the bench prints, and how it looks at processes."""

import os
import subprocess

import pytest

from tests.bench import observe
from tests.bench.figures import Table, samples


def test_a_cell_has_median_spread_and_what_qualifies_it() -> None:
    """One sample has no spread, and neither have equal ones."""
    assert samples([3.0, 1.0, 2.0], "7 left").show() == "2 (1-3), 7 left"
    assert samples([41.25]).show() == "41.2"
    assert samples([1.0, 1.0]).show() == "1"


def test_a_peer_without_a_figure_is_shown_with_the_reason() -> None:
    """Words stand where nothing could be measured, a dash where nothing was, and columns stay aligned."""
    table = Table("Title", ["ours", "other", "third"])
    table.put("killed to relaunched", "ms", {"ours": samples([4.0, 5.0]), "other": "cannot be asked"})
    head, values = table.show().splitlines()[2:]
    assert values.startswith("killed to relaunched, ms n=2  4.50 (4-5)")
    assert values.endswith("cannot be asked  -")
    assert head.index("third") == values.rindex("-")


def test_processes_are_found_by_what_their_environment_bears() -> None:
    """Who ended is not counted, though nobody has waited for it yet."""
    token = f"bench-test-{os.getpid()}"
    with subprocess.Popen(["/bin/sleep", "1000"], env={"TOKEN": token}) as child:
        try:
            observe.until(lambda: observe.bearing(token) == [child.pid], 10, "the child is found")
        finally:
            child.kill()
        observe.until(lambda: observe.bearing(token) == [], 10, "the zombie is not")


def test_waiting_in_vain_says_for_what() -> None:
    """The text is what the table shows in the place of a figure."""
    with pytest.raises(observe.UnmetError, match="an answer: not within 0"):
        observe.until(lambda: False, 0, "an answer")
