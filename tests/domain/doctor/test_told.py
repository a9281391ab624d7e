"""What `doctor` says of each host in the table, to the letter."""

from pathlib import Path

from tests.domain.doctor.hosts import facts
from tests.domain.doctor.table import ROWS
from tests.domain.recorded import compare
from vllm_supervisor.domain.doctor import examine


def test_what_is_told() -> None:
    """Result, detail and remedy of the check that a row is about."""
    compare(
        Path(__file__).with_name("told.txt"),
        (
            f"{finding.name} {finding.result}: {finding.detail}" + (f"; {finding.remedy}" if finding.remedy else "")
            for row in ROWS
            for finding in examine(facts(**row.changes))
            if finding.name == row.name
        ),
    )
