"""Change `domain/` one expression at a time and say which changes its tests do not notice.

Run with `make mutate`, or `python -m tests.mutation --help`. mutmut writes the mutants, into `mutants/`, and
`deciding.py` runs the tests on them. Results are kept: a second run decides what is new, what changed and what it is
asked for by name. Only what stands in functions is changed: tables and patterns at the top of a module are not.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.mutation.results import Kept, Score, report

FOLDER = Path("mutants")
GENERATE = (
    "from mutmut import __main__ as mutmut; mutmut.copy_src_dir(); mutmut.copy_also_copy_files(); "
    "mutmut.setup_source_paths(); mutmut.create_mutants({processes})"
)
"""The first half of `mutmut run`, which has no command of its own (3.8)."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="mutants to decide anew, as patterns: vllm_supervisor.domain.machine*")
    parser.add_argument("--survivors", action="store_true", help="decide anew those that survived")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2, help="at once (default: %(default)s)")
    parser.add_argument("--least", type=float, default=85.0, help="score below which to exit 1 (default: %(default)s)")
    parser.add_argument("--report", action="store_true", help="only say what is decided so far")
    args = parser.parse_args()
    if not args.report and not decide(args.names, args.processes, survivors=args.survivors):
        return 2
    mutants = Kept(FOLDER).mutants
    for line in report(mutants):
        print(line)
    score = Score.of(mutants)
    if score.percent is None:
        return 2
    print("to see one: .venv-mutate/bin/mutmut show NAME")
    return int(score.percent < args.least)


def decide(names: list[str], processes: int, *, survivors: bool) -> bool:
    """Bring `mutants/` up to date and decide what is asked for; False where that failed. Ctrl-C ends it early."""
    FOLDER.mkdir(exist_ok=True)
    generate = [sys.executable, "-c", GENERATE.format(processes=processes)]
    if subprocess.run(generate, stdout=subprocess.DEVNULL, check=False).returncode:
        return False
    if survivors:
        names += [mutant.name for mutant in Kept(FOLDER).mutants if mutant.decided and not mutant.noticed]
    command = [sys.executable, "-m", "tests.mutation.deciding", "--processes", str(processes), *names]
    try:
        return subprocess.run(command, cwd=FOLDER, check=False).returncode in (0, 5)
    except KeyboardInterrupt:
        return True


if __name__ == "__main__":
    sys.exit(main())
