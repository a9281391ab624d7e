"""Seeded faults against whole daemons, watched from outside: `python -m tests.chaos --seed N --faults N`.

Exit status 0 when every promise held, 1 when one was broken, 2 where it cannot run.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Plan, run

_INSIDE = "CHAOS_INSIDE"


def main() -> int:
    """Make a folder and, as root, namespaces of our own, in which nothing outside can be hit or left behind."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = _arguments()
    if os.environ.get(_INSIDE):
        folder = Path(os.environ.pop(_INSIDE))
        alone = Path("/proc/1/comm").read_text().strip() == "sh"
        return run(Plan(folder, args.seed, args.faults, args.seconds, args.only, args.json, namespaces=alone))
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.chmod(0o755)
    argv = [sys.executable, "-m", "tests.chaos", *sys.argv[1:], "--seed", str(args.seed)]
    if os.geteuid() == 0 and _namespaces():
        # The shell is the namespace's init: it reaps what loses its parent.
        argv = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            '"$@" & wait $!',
            "sh",
            *argv,
        ]
    try:
        code = subprocess.run(argv, env=os.environ | {_INSIDE: str(folder)}, check=False).returncode
    except KeyboardInterrupt:
        code = 130
    if code == 1:
        print(f"what the daemons wrote is kept in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _namespaces() -> bool:
    test = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    return (
        shutil.which("unshare") is not None and subprocess.run(test, capture_output=True, check=False).returncode == 0
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="by default a new one, printed")
    parser.add_argument("--faults", type=int, default=300, help="how many to do (300)")
    parser.add_argument("--seconds", type=float, help="do no more than fit into so long")
    parser.add_argument("--only", type=int, action="append", help="do just this one of the seed's; may be repeated")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    if args.faults < 1 or (args.seconds is not None and args.seconds <= 0):
        parser.error("that would be no fault at all: --faults wants 1 or more, --seconds more than 0")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        parser.error(f"--json {args.json}: there is no such folder")
    return args


if __name__ == "__main__":
    sys.exit(main())
