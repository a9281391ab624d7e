"""The process table of an engine that has ended: who is in it, and from when."""

from vllm_supervisor.domain.member import Portrait
from vllm_supervisor.runtime.portraits import in_short, process_table

LEADER = Portrait(10, 1, "vllm", "S", 1, "ep_poll", "vllm serve m")
WORKER = Portrait(11, 2, "VLLM::Worker", "R", 10, "", "VLLM::Worker")
CORE = Portrait(12, 3, "VLLM::EngineCor", "S", 10, "futex_wait", "VLLM::EngineCore", ("[<0>] futex_wait+0x1/0x2",))


def test_later_beats_earlier_and_nobody_is_lost() -> None:
    """The end's row has the command of the look before; who went with the leader keeps the row of that look."""
    at_end = (Portrait(10, 1, "vllm", "Z", 1), Portrait(12, 3, "VLLM::EngineCor", "D", 1, "io_schedule"))
    rows = process_table(at_end, "end", (LEADER, WORKER, CORE), "before")
    assert [(row["pid"], row["state"], row["wchan"], row["command"], row["seen_at"]) for row in rows] == [
        (10, "Z", "", "vllm serve m", "end"),
        (12, "D", "io_schedule", "VLLM::EngineCore", "end"),
        (11, "R", "", "VLLM::Worker", "before"),
    ]
    assert in_short(rows)[2] == {"pid": 11, "name": "VLLM::Worker", "state": "R", "seen_at": "before"}


def test_a_pid_that_was_taken_again_is_another_process() -> None:
    """Its command is not lent to the later one, and both are shown."""
    later = Portrait(11, 99, "sh", "S", 10)
    rows = process_table((later,), "end", (WORKER,), "before")
    assert [(row["name"], row["command"]) for row in rows] == [("sh", ""), ("VLLM::Worker", "VLLM::Worker")]


def test_nothing_was_seen() -> None:
    """An empty table, and no time that never was."""
    assert process_table((), None, (), None) == []
