"""What mutmut has decided so far, as it keeps it beside the mutants: one JSON file for each module."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = "vllm_supervisor.domain."

# mutmut's own numbers, which its `show` and `results` understand.
SURVIVED, FAILED, UNTESTED, TIMED_OUT = 0, 1, 33, 36
_NOTICED = frozenset({FAILED, TIMED_OUT})
_NUMBERED = re.compile(r"(?P<function>.+__mutmut_)(?P<number>\d+)")


@dataclass(frozen=True)
class Mutant:
    """A change to one function, and the exit status of the tests that run this function; None before they ran."""

    name: str
    status: int | None

    @property
    def decided(self) -> bool:
        return self.status is not None

    @property
    def noticed(self) -> bool:
        return self.status in _NOTICED

    @property
    def untested(self) -> bool:
        """Whether no test comes by the function at all."""
        return self.status == UNTESTED

    @property
    def function(self) -> str:
        """As mutmut calls the function that is changed."""
        return self.name.partition("__mutmut_")[0]

    @property
    def package(self) -> str:
        """The package below `domain`, or the module that stands alone."""
        return self.name.removeprefix(ROOT).partition(".")[0]


@dataclass(frozen=True)
class Score:
    """How many mutants are decided, and how many of these some test noticed. One without a test counts as unnoticed.

    Those decided are a random sample: `show` tells how far off the score may be (95 %) while others are left.
    """

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
        if 0 < self.decided < self.total:
            share = self.noticed / self.decided
            off = 196 * math.sqrt(share * (1 - share) / self.decided * (1 - self.decided / self.total))
            percent += f" ± {off:.1f}"
        return f"{self.total:>7} {self.decided:>8} {self.noticed:>8} {percent:>8}"


class Kept:
    """The results below a folder, which mutmut calls `mutants`."""

    def __init__(self, folder: Path) -> None:
        self._files = {path: json.loads(path.read_text()) for path in sorted(folder.rglob("*.py.meta"))}
        self._homes = {name: path for path, file in self._files.items() for name in file["exit_code_by_key"]}
        self._changed: set[Path] = set()

    @property
    def mutants(self) -> list[Mutant]:
        return [Mutant(*one) for file in self._files.values() for one in file["exit_code_by_key"].items()]

    def decide(self, mutant: Mutant, status: int) -> None:
        """Note a result; `save` writes it."""
        home = self._homes[mutant.name]
        self._files[home]["exit_code_by_key"][mutant.name] = status
        self._changed.add(home)

    def progress(self) -> str:
        score = Score.of(self.mutants)
        return f"{score.decided} of {score.total} decided, {score.noticed} of them noticed"

    def save(self) -> None:
        for path in self._changed:
            path.write_text(json.dumps(self._files[path], indent=4))
        self._changed.clear()


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
