"""Each class shows in logs of every era, whatever wraps their lines."""

import pytest

from tests.domain.diagnosis.feeding import in_bulk, line_by_line
from tests.domain.diagnosis.snippets import SNIPPETS, Snippet
from tests.domain.diagnosis.wrappers import WRAPPERS
from vllm_supervisor.domain.diagnosis import CLASSES


def _named(snippet: Snippet) -> str:
    return f"{snippet.cls}-{snippet.name}"


def test_every_class_has_its_logs() -> None:
    """At least two for each class that a log alone can show, under different names."""
    counts = {name: sum(snippet.cls == name for snippet in SNIPPETS) for name in CLASSES}
    assert {name for name, count in counts.items() if count < 2 and CLASSES[name].from_log_alone} == set()
    assert len({snippet.name for snippet in SNIPPETS}) == len(SNIPPETS)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=_named)
def test_the_cause_is_named(snippet: Snippet) -> None:
    """Class, a line that exists and says what is quoted, and the numbers that vLLM printed in the remedy."""
    diagnosis = line_by_line(snippet.text)
    assert diagnosis is not None
    assert diagnosis.cls == snippet.cls
    assert snippet.action in diagnosis.action
    assert diagnosis.line is not None
    assert diagnosis.evidence is not None
    assert diagnosis.evidence[:40] in snippet.text.splitlines()[diagnosis.line - 1]
    assert "{" not in diagnosis.action.replace("${", "")


@pytest.mark.parametrize("snippet", SNIPPETS, ids=_named)
def test_wrapping_changes_nothing(snippet: Snippet) -> None:
    """Compose, Kubernetes, journald, Ray, colours, progress bars: same class, same line; in bulk as well."""
    plain = line_by_line(snippet.text)
    assert plain is not None
    for name, wrap in WRAPPERS.items():
        wrapped = wrap(snippet.text)
        for feed in (line_by_line, in_bulk):
            diagnosis = feed(wrapped)
            assert diagnosis is not None, name
            found = (diagnosis.cls, diagnosis.line, diagnosis.action)
            assert found == (plain.cls, plain.line, plain.action), name
