"""A log in which nothing failed gives no class."""

import pytest

from tests.domain.diagnosis.feeding import in_bulk, line_by_line
from tests.domain.diagnosis.snippets import HEALTHY
from tests.domain.diagnosis.wrappers import WRAPPERS


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found(name: str) -> None:
    """Scary warnings, requests' errors, echoed prompts, an orderly stop; whatever wraps the lines."""
    for wrapper, wrap in WRAPPERS.items():
        for feed in (line_by_line, in_bulk):
            diagnosis = feed(wrap(HEALTHY[name]))
            assert diagnosis is None, f"{wrapper}: {diagnosis.cls}: {diagnosis.evidence}"
