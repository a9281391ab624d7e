"""What mutmut has decided so far, as it keeps it beside the mutants: one JSON file for each module."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = "vllm_supervisor.domain."

# Of mutmut 3: the exit status of pytest, or minus the signal that ended it. Any failure is a mutant noticed, and so is
# one that ran out of its time or memory.
_NOTICED = frozenset({1, 3, 24, 36, 152, 255, -24, -9, -11})
_UNDECIDED = frozenset({None, 2, 34})
_UNTESTED = frozenset({5, 33})
_NUMBERED = re.compile(r"(?P<function>.+__mutmut_)(?P<number>\d+)")


@dataclass(frozen=True)
class Mutant:
    """A change to one function, and the exit status of the tests that run this function; None before they ran."""

    name: str
    status: int | None

    @property
    def decided(self) -> bool:
        return self.status not in _UNDECIDED

    @property
    def noticed(self) -> bool:
        return self.status in _NOTICED

    @property
    def untested(self) -> bool:
        """Whether no test comes by the function at all."""
        return self.status in _UNTESTED

    @property
    def package(self) -> str:
        """The package below `domain`, or the module that stands alone."""
        return self.name.removeprefix(ROOT).partition(".")[0]


@dataclass(frozen=True)
class Score:
    """How many mutants are decided, and how many of these some test noticed. One without a test counts as unnoticed."""

    total: int
    decided: int
    noticed: int

    @classmethod
    def of(cls, mutants: Iterable[Mutant]) -> "Score":
        each = list(mutants)
        decided = [mutant for mutant in each if mutant.decided]
        return cls(len(each), len(decided), sum(mutant.noticed for mutant in decided))

    @property
    def percent(self) -> float | None:
        """None where nothing is decided."""
        return 100 * self.noticed / self.decided if self.decided else None

    def show(self) -> str:
        percent = "-" if self.percent is None else f"{self.percent:.1f} %"
        return f"{self.total:>7} {self.decided:>8} {self.noticed:>8} {percent:>8}"


def read(folder: Path) -> list[Mutant]:
    """Return the mutants below `folder`, which mutmut calls `mutants`. One module's file may be half written."""
    found = []
    for path in sorted(folder.rglob("*.py.meta")):
        try:
            statuses = json.loads(path.read_text())["exit_code_by_key"]
        except json.JSONDecodeError:
            continue
        found += [Mutant(name, status) for name, status in statuses.items()]
    return found


def report(mutants: list[Mutant]) -> Iterator[str]:
    """Yield the lines of a table by package, then one for each function with mutants that no test noticed."""
    yield f"{'':<16} mutants  decided  noticed    score"
    for package in sorted({mutant.package for mutant in mutants}):
        yield f"{package:<16} {Score.of(mutant for mutant in mutants if mutant.package == package).show()}"
    yield f"{'all':<16} {Score.of(mutants).show()}"
    survivors: dict[str, list[str]] = {}
    for mutant in mutants:
        if mutant.decided and not mutant.noticed and (numbered := _NUMBERED.fullmatch(mutant.name)):
            mark = " (no test runs it)" if mutant.untested else ""
            survivors.setdefault(numbered["function"] + "N" + mark, []).append(numbered["number"])
    for function, numbers in survivors.items():
        yield f"{function}: {' '.join(numbers)}"
