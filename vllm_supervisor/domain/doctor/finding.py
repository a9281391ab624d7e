"""What a check says."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """How a check ended. The words are those that users and scripts see."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report. `name` is stable, and several findings may share it.

    `detail` says what was found, for `skip` why it could not be looked at; `remedy` what to type or set, and is there
    exactly for `warn` and `fail`.
    """

    name: str
    result: Result
    detail: str
    remedy: str = ""


def ok(name: str, detail: str) -> Finding:
    """Return the finding that all is well."""
    return Finding(name, Result.OK, detail)


def warn(name: str, detail: str, remedy: str) -> Finding:
    """Return a finding that does not keep vLLM from starting, and may hurt later."""
    return Finding(name, Result.WARN, detail, remedy)


def fail(name: str, detail: str, remedy: str) -> Finding:
    """Return a finding that keeps vLLM from starting, or would."""
    return Finding(name, Result.FAIL, detail, remedy)


def skip(name: str, why: str) -> Finding:
    """Return the finding that nothing could be found out."""
    return Finding(name, Result.SKIP, why)


def summary(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many findings there are of each result."""
    counts = Counter(finding.result for finding in findings)
    return {result.value: counts[result] for result in Result}
