"""Change `domain/` one expression at a time and say which changes its tests do not notice.

Run with `make mutate`, or `python -m tests.mutation --help`. What mutmut itself prints, many times a second, goes into
`mutants/run.log`. Results are kept: a second run decides what is new, what changed and what it is asked for by name.
Only what stands in functions is changed: tables and patterns at the top of a module are not.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.mutation.results import Score, read, report

FOLDER = Path("mutants")
LOG = FOLDER / "run.log"
TOLD_EVERY = 60.0
"""Seconds between two lines of progress."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="mutants to decide anew, as patterns: vllm_supervisor.domain.machine*")
    parser.add_argument("--processes", type=int, help="at once (default: as many as there are processors)")
    parser.add_argument("--least", type=float, default=85.0, help="score below which to exit 1 (default: %(default)s)")
    parser.add_argument("--report", action="store_true", help="only say what is decided so far")
    args = parser.parse_args()
    if not args.report:
        status = mutate(args.names, args.processes)
        if status:
            print(f"mutmut ended with {status}; what it said is in {LOG}", file=sys.stderr)
            return 2
    mutants = read(FOLDER)
    print("\n".join(report(mutants)))
    score = Score.of(mutants)
    if score.percent is None:
        return 2
    print(f"{score.noticed} of {score.decided} noticed; to see one that was not: .venv-mutate/bin/mutmut show NAME")
    return int(score.percent < args.least)


def mutate(names: list[str], processes: int | None) -> int:
    """Run mutmut, with a line of progress now and then, and return its exit status; on Ctrl-C what is done counts."""
    FOLDER.mkdir(exist_ok=True)
    command = ["mutmut", "run", *names, *(["--max-children", str(processes)] if processes else [])]
    with LOG.open("w") as log, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as running:
        try:
            while True:
                try:
                    return running.wait(TOLD_EVERY)
                except subprocess.TimeoutExpired:
                    score = Score.of(read(FOLDER))
                    print(f"{score.decided} of {score.total} decided, {score.noticed} of them noticed", flush=True)
        except KeyboardInterrupt:
            running.wait()
            return 0


if __name__ == "__main__":
    sys.exit(main())
