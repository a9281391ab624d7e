"""The observer on real processes. Faults from end to end are what `make chaos` is."""

import os
import subprocess
import sys
from pathlib import Path

from tests.chaos.judge import Judge
from tests.chaos.run import ALL, Attack
from tests.chaos.sight import Answer, Look, read
from tests.chaos.table import ENGINE, RUN, Table


def test_the_observer_sees_what_no_daemon_tells(tmp_path: Path) -> None:
    """Two engines at once, a daemon that is not there and a socket that does not answer are seen from outside."""
    token = "a-token-of-this-test"
    sleepers = [
        subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], RUN: token, ENGINE: name})
        for name in ("first", "second")
    ]
    argv = [sys.executable, "-m", "tests.chaos.observer", str(tmp_path), token, "1"]
    judge = Judge()
    try:
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as observer:
            assert observer.stdin is not None
            assert observer.stdout is not None
            kinds: set[type] = set()
            while not {Look, Answer} <= kinds or len(judge.broken) < 3:
                sight = read(observer.stdout.readline())
                kinds.add(type(sight))
                judge.take([sight])
            observer.stdin.close()
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
    assert {broken.promise for broken in judge.broken} == {"one engine", "the daemon lives", "the socket answers"}
    assert Table(token).look() == {}


def test_an_attack_is_made_of_seed_and_number_alone() -> None:
    """The same seed does the same again, another one does something else."""
    one, same, other = (str([str(Attack.planned(seed, number)) for number in range(50)]) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert len({fault.name for fault in ALL}) == len(ALL)
