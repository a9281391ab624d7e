"""Membership read from a process table that is written by the test: what no real kernel does on demand."""

import os
import time
from pathlib import Path

import pytest

from vllm_supervisor.adapters.process.family import Family, Origin
from vllm_supervisor.adapters.process.pidfd import hold
from vllm_supervisor.adapters.process.procfs import Proc, parse_stat

OWN, LEADER, BORN = 50, 100, 1000
MARK = "0f0f.3"


class Table:
    """A `/proc` in a folder."""

    def __init__(self, root: Path) -> None:
        self.proc = Proc(root)
        self.root = root

    def put(  # every field is a fact that some test varies
        self,
        pid: int,
        parent: int = 1,
        session: int | None = None,
        start: int = BORN + 1,
        env: str = "PATH=/bin",
        state: str = "S",
        threads: int = 1,
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        own = session or pid
        text = f"{pid} (a) b) {state} {parent} {own} {own} 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 {start} 0 0"
        (folder / "stat").write_text(text)
        (folder / "environ").write_bytes(b"".join(item.encode() + b"\0" for item in env.split()))

    def drop(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()

    def family(self, leader: int | None = LEADER, adopter: int | None = OWN, mark: str = MARK) -> Family:
        return Family(self.proc, Origin(leader, BORN, (mark,), adopter, session=OWN), OWN)


def pids(family: Family) -> set[int]:
    return {stat.pid for stat in family.look()}


def test_name_with_parentheses_and_spaces_is_read() -> None:
    """A process chooses its own name; vLLM's do."""
    stat = parse_stat(b"7 (VLLM :: (a) R 1) S 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 77 0 0\n")
    assert (stat.name, stat.state, stat.parent, stat.group, stat.session) == ("VLLM :: (a) R 1", "S", 3, 4, 5)
    assert (stat.threads, stat.start, stat.gone) == (9, 77, False)


def test_zombie_is_gone_only_when_no_thread_lives(tmp_path: Path) -> None:
    """The state letter is the main thread's alone."""
    table = Table(tmp_path)
    table.put(LEADER, OWN, start=BORN, state="Z", threads=2)
    assert not table.family().look()[0].gone
    table.put(LEADER, OWN, start=BORN, state="Z")
    assert table.family().look()[0].gone


def test_each_tie_alone_makes_a_member(tmp_path: Path) -> None:
    """Descent, session, marker, and adoption; init, the daemon and older processes never are."""
    table = Table(tmp_path)
    table.put(1, 0, start=0)
    table.put(OWN, 1, start=900, env=f"SUPERVISED_ENGINE={MARK}")
    table.put(LEADER, OWN, start=BORN)
    table.put(101, LEADER, session=101)
    table.put(102, 101, session=102)
    table.put(103, 1, session=LEADER)
    table.put(104, 1, env=f"A=1 SUPERVISED_ENGINE={MARK}")
    table.put(105, 104)
    table.put(106, OWN, env="")
    table.put(201, 1, env="SUPERVISED_ENGINE=0f0f.31")
    table.put(202, 1, env=f"X_SUPERVISED_ENGINE={MARK}")
    table.put(203, OWN, session=OWN)
    table.put(204, OWN, env="SUPERVISED_ENGINE=other.1")
    table.put(205, 1, start=999, env=f"SUPERVISED_ENGINE={MARK}")
    assert pids(table.family()) == {100, 101, 102, 103, 104, 105, 106}


def test_member_once_seen_stays_one_and_its_pid_is_not_inherited(tmp_path: Path) -> None:
    """Known by pid and start: a later process with the number is a stranger."""
    table = Table(tmp_path)
    family = table.family(adopter=None)
    table.put(LEADER, OWN, start=BORN)
    table.put(101, LEADER)
    assert pids(family) == {100, 101}
    table.put(101, 1, env="")
    assert pids(family) == {100, 101}
    table.put(101, 1, start=BORN + 500)
    assert pids(family) == {100}


def test_stranger_that_is_adopted_later_is_looked_at_again(tmp_path: Path) -> None:
    """Its parent had vanished between two reads, so that it seemed to be nobody's; then it came to us."""
    table = Table(tmp_path)
    family = table.family()
    table.put(300, 299)
    assert pids(family) == set()
    table.put(300, OWN)
    assert pids(family) == {300}


def test_process_in_exec_is_looked_at_again(tmp_path: Path) -> None:
    """During exec the environment reads as empty: not a verdict."""
    table = Table(tmp_path)
    family = table.family()
    table.put(300, env="")
    assert pids(family) == set()
    table.put(300, env=f"SUPERVISED_ENGINE={MARK}")
    assert pids(family) == {300}


def test_session_number_that_was_reused_after_the_daemon_died_is_not_trusted(tmp_path: Path) -> None:
    """The leader is gone and nobody kept its number: without a bearer in it, a session with it is a stranger's."""
    table = Table(tmp_path)
    table.put(LEADER, 1, start=BORN + 5)
    table.put(101, LEADER, session=LEADER)
    table.put(103, LEADER, session=LEADER, env="")
    assert pids(table.family(adopter=None, mark="0f0f.")) == set()
    table.drop(103)
    table.put(102, 1, session=LEADER, env=f"SUPERVISED_ENGINE={MARK}")
    table.drop(LEADER)
    table.put(101, 1, session=LEADER)
    assert pids(table.family(adopter=None, mark="0f0f.")) == {101, 102}


def test_member_with_the_pid_of_an_elder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elders are skipped for a moment only: pids come round."""
    table, now = Table(tmp_path), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    family = table.family()
    table.put(60, 1, start=1)
    now[0] = 10.0
    assert pids(family) == set()
    table.put(60, 1, env=f"SUPERVISED_ENGINE={MARK}")
    now[0] = 10.3
    assert pids(family) == {60}


def test_generation_of_the_same_instance_is_ours_only_for_a_leftover(tmp_path: Path) -> None:
    """A mark with a dot at its end stands for all generations."""
    table = Table(tmp_path)
    table.put(300, env="SUPERVISED_ENGINE=0f0f.2")
    table.put(301, env="SUPERVISED_ENGINE=0f0f0.2")
    assert pids(table.family(None)) == set()
    assert pids(table.family(None, mark="0f0f.")) == {300}


def test_process_with_another_start_is_not_held() -> None:
    """A signal for a member must not reach the later owner of its pid."""
    me = Proc().stat(os.getpid())
    assert me is not None
    assert hold(Proc(), me.pid, me.start + 1) is None
    held = hold(Proc(), me.pid, me.start)
    assert held is not None
    os.close(held)
