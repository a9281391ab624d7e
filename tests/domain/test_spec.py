"""The marks that tell one generation's part of a log from another's."""

from vllm_supervisor.domain.spec import begin_mark, end_mark, journal_mark


def test_a_generations_part_of_a_log_is_found() -> None:
    """It begins alike in a file and in a journal, where the instance tells it from others'; its end reads otherwise."""
    assert journal_mark(3, "ab").startswith(begin_mark(3))
    assert len({journal_mark(3, "ab"), journal_mark(3, "cd"), journal_mark(4, "ab"), end_mark(3), end_mark(4)}) == 5
    assert not begin_mark(31).startswith(begin_mark(3) + " ")
    assert "\n" not in journal_mark(3, "ab") + end_mark(3)
