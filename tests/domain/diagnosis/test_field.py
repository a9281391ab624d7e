"""Logs and cases from the field, which lie beside the repository: VLLM_FACTS names their folder."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.domain.diagnosis.feeding import in_bulk, line_by_line
from vllm_supervisor.domain.diagnosis import CLASSES, Context, Diagnosis

FACTS = os.environ.get("VLLM_FACTS", "")
pytestmark = pytest.mark.skipif(
    not (FACTS and Path(FACTS, "failures.jsonl").is_file()),
    reason="VLLM_FACTS does not name a folder with failures.jsonl and log-corpus/",
)


def _records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(FACTS, name).read_text("utf-8").splitlines() if line.strip()]


def _verdict(diagnosis: Diagnosis | None) -> tuple[str | None, str | None]:
    return (None, None) if diagnosis is None else (diagnosis.cls, diagnosis.retry.value)


def test_the_vocabulary_is_theirs() -> None:
    """Names, default verdicts, and what a log alone can show."""
    theirs = json.loads(Path(FACTS, "classes.json").read_text("utf-8"))
    ours = {
        name: {"retry": failure.retry.value, "from_log_alone": failure.from_log_alone}
        for name, failure in CLASSES.items()
    }
    assert ours == theirs


def test_every_log_of_the_corpus() -> None:
    """Class and verdict of each, with and without its exit status, fed either way: prints the confusion table."""
    confusion: Counter[tuple[str | None, str | None]] = Counter()
    wrong = []
    for record in _records("log-corpus/expected.jsonl"):
        log = Path(FACTS, "log-corpus", record["file"]).read_text("utf-8")
        expected = (record["class"], record["retry"])
        for context in (Context(), Context(exit_code=record["exit_code"])):
            got = {_verdict(line_by_line(log, context)), _verdict(in_bulk(log, context))}
            if got != {expected}:
                wrong.append((record["file"], expected, got))
        confusion[record["class"], _verdict(in_bulk(log))[0]] += 1
    for (expected_class, got_class), count in sorted(confusion.items(), key=str):
        print(f"{count:3} {expected_class!s:32} -> {got_class}")
    assert wrong == []


def test_field_cases_by_their_key_lines() -> None:
    """Nine in ten of the cases whose class a log can show, though most are a line or two: prints the others."""
    right, wrong = 0, []
    for record in _records("failures.jsonl"):
        if not CLASSES[record["class"]].from_log_alone:
            continue
        got, _ = _verdict(line_by_line("\n".join(record["key_lines"])))
        if got == record["class"]:
            right += 1
        else:
            wrong.append(f"{record['id']} {record['class']} -> {got}: {record['key_lines']}")
    print(f"{right} of {right + len(wrong)}", *wrong, sep="\n")
    assert right >= 0.9 * (right + len(wrong))
