"""Decide mutants one after the other, by whether a test fails.

Runs inside `mutants/`, where mutmut has put the mutated sources and a copy of the tests. mutmut's own loop begins
pytest anew for each mutant, which takes longer than most tests here: with 15,000 mutants that is hours. Here the tests
are collected once, and each mutant has a fork in which those that come by its function run, the quickest first.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import time
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from mutmut.state import state  # type: ignore[import-not-found,unused-ignore]  # only in the environment for mutation

from tests.mutation.results import FAILED, SURVIVED, TIMED_OUT, UNTESTED, Kept, Mutant

SWITCH = "MUTANT_UNDER_TEST"
"""What mutmut's sources look at each time they are called: a mutant's name, or `stats` to note who was called."""
MEMORY = 3 << 30
"""Bytes that one mutant may take: a loop that never ends may also collect."""
ENOUGH = 4.0
"""Seconds of processor time that the tests of one mutant take together: the quickest of them run. Examples by the
hundred take longer than all tables, and find little that these do not; what they alone would notice has survived."""
PATIENCE = 3
"""So many times the processor time that its tests take may a mutant take; what never ends is noticed."""
TOLD_EVERY = 30.0
SEED = 1
"""Mutants are decided in a random order: whoever ends the run early has a sample of them all."""
TESTS = "tests/domain"


class Seen:
    """What each test does without any mutant: the functions it comes by, and the processor time it takes.

    Kept for the next run, a file of tests at a time: noting who is called makes the tests several times slower.
    """

    def __init__(self, at_import: set[str]) -> None:
        self.at_import = at_import
        self._kept = Path("seen.json")
        self._files: dict[str, dict[str, Any]] = {}
        shared = (path for path in Path(TESTS).rglob("*.py") if not path.name.startswith("test_"))
        self._key = digest(*Path("vllm_supervisor/domain").rglob("*.py"), *shared)
        if self._kept.exists():
            kept = json.loads(self._kept.read_text())
            self._files = kept["files"] if kept["key"] == self._key else {}
        self._tests: dict[str, list[str]] = {}
        self.seconds: dict[str, float] = {}

    def watch(self, items: dict[str, pytest.Item]) -> None:
        """Run the tests that changed, without any mutant. Ends the run where one fails, as all mutants then would."""
        for path, each in groupby(items, lambda test: test.partition("::")[0]):
            key, tests, kept = digest(Path(path)), list(each), self._files.get(path)
            if kept is None or kept["key"] != key or list(kept["tests"]) != tests:
                self._files[path] = {"key": key, "tests": {test: observed(test, items[test]) for test in tests}}
            for test, (seconds, functions) in self._files[path]["tests"].items():
                self.seconds[test] = seconds
                for function in functions:
                    self._tests.setdefault(function, []).append(test)
        self._kept.write_text(json.dumps({"key": self._key, "files": self._files}))

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that come by a mutant's function, the quickest first, and not more than are `ENOUGH`."""
        tests = sorted(self._tests.get(mutant.function.replace("__init__.", ""), []), key=self.seconds.__getitem__)
        sums = accumulate(self.seconds[test] for test in tests)
        return [test for test, seconds in zip(tests, sums, strict=True) if seconds <= ENOUGH] or tests[:1]


def digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()


def observed(test: str, item: pytest.Item) -> tuple[float, list[str]]:
    """Run one test; return its processor time and whom it called."""
    state()._stats.clear()
    before = time.process_time()
    if failed(item):
        pytest.exit(f"{test} fails without any mutant", 2)
    return time.process_time() - before, sorted(state()._stats)


class Decider:
    """A plugin of pytest that collects as always, and then decides mutants instead of running tests."""

    def __init__(self, patterns: list[str], processes: int) -> None:
        self._patterns = patterns
        self._processes = processes
        self._kept = Kept(Path())
        self._running: dict[int, Mutant] = {}
        self._told_at = time.monotonic()

    def pytest_collection(self) -> None:
        """Note what is called while modules are read."""
        os.environ[SWITCH] = "stats"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        seen = Seen(set(state()._stats))
        items = {item.nodeid: item for item in session.items}
        seen.watch(items)
        os.environ[SWITCH] = ""
        asked = [mutant for mutant in self._kept.mutants if self._is_asked(mutant)]
        print(f"{len(items)} tests, {len(asked)} mutants to decide", flush=True)
        random.Random(SEED).shuffle(asked)
        for mutant in asked:
            tests = seen.of(mutant)
            if not tests:
                self._decided(mutant, anew(mutant) if mutant.function in seen.at_import else UNTESTED)
                continue
            while len(self._running) >= self._processes:
                self._wait()
            limit = 2 + PATIENCE * sum(seen.seconds[test] for test in tests)
            read_again = mutant.function in seen.at_import
            self._running[forked(mutant, [items[test] for test in tests], limit, read_again=read_again)] = mutant
        while self._running:
            self._wait()
        return True

    def _is_asked(self, mutant: Mutant) -> bool:
        if not self._patterns:
            return not mutant.decided
        return any(fnmatch.fnmatch(mutant.name, pattern) for pattern in self._patterns)

    def _wait(self) -> None:
        pid, status = os.wait()
        mutant = self._running.pop(pid)
        self._decided(mutant, os.waitstatus_to_exitcode(status))

    def _decided(self, mutant: Mutant, status: int) -> None:
        self._kept.decide(mutant, TIMED_OUT if status < 0 else status)
        if time.monotonic() - self._told_at > TOLD_EVERY:
            self._told_at = time.monotonic()
            print(self._kept.progress(), flush=True)
            self._kept.save()

    def pytest_sessionfinish(self) -> None:
        """Keep what is decided, also after Ctrl-C."""
        self._kept.save()


def failed(item: pytest.Item) -> bool:
    """Run one test, its fixtures set up and torn down, and say whether anything of it failed."""
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def forked(mutant: Mutant, items: list[pytest.Item], seconds: float, *, read_again: bool) -> int:
    """Begin a fork that exits with FAILED or SURVIVED, or is ended after `seconds` of processor time; return its pid.

    With `read_again` the function also runs while modules are read, so that a survivor is tried in a new process.
    """
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        os.environ[SWITCH] = mutant.name
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + int(seconds) + 1, used + int(seconds) + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        status = FAILED if any(failed(item) for item in items) else SURVIVED
        status = anew(mutant) if read_again and status == SURVIVED else status
    finally:
        os._exit(status)


def anew(mutant: Mutant) -> int:
    """Decide a mutant of what is called while modules are read, which has happened here: in a pytest of its own."""
    about = f"vllm_supervisor.domain.{mutant.package}"
    files = [str(path) for path in sorted(Path(TESTS).rglob("test_*.py")) if about in path.read_text()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", *files],
        env={**os.environ, SWITCH: mutant.name},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return SURVIVED if files and done.returncode == 0 else FAILED


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--processes", type=int, required=True)
    args = parser.parse_args()
    # Whole sessions here, and a fork's time is limited otherwise.
    own = ["--rootdir=.", "-p", "no:terminal", "-o", "timeout=0", TESTS]
    return int(pytest.main(own, plugins=[Decider(args.patterns, args.processes)]))


if __name__ == "__main__":
    sys.exit(main())
