"""Which lines are news."""

import pytest

from vllm_supervisor.domain.diagnosis.lines import normalise
from vllm_supervisor.domain.startup import StartPhase, StartReader
from vllm_supervisor.domain.startup.novelty import MAX_FORMS, Novelty, bar_of

WAITING = (
    "(EngineCore_DP0 pid=212) INFO 10-16 09:{:02d}:30 [shm_broadcast.py:466] No available shared memory broadcast "
    "block found in {} seconds. This typically happens when some processes are hanging"
)


def hear(novelty: Novelty, text: str) -> bool:
    line = normalise(text)
    return novelty.hear(line, bar_of(line.body))


def test_a_repeated_warning_is_news_once() -> None:
    """A waiting collective repeats itself every minute, with other numbers and from other workers."""
    novelty = Novelty()
    assert hear(novelty, WAITING.format(1, 60))
    assert not any(hear(novelty, WAITING.format(minute, 60 * minute)) for minute in range(2, 60))
    assert not hear(novelty, WAITING.format(7, 60).replace("EngineCore_DP0 pid=212", "Worker_TP1 pid=77"))


@pytest.mark.parametrize(
    "line",
    [
        'INFO:     127.0.0.1:54321 - "GET /health HTTP/1.1" 503 Service Unavailable',
        '(APIServer pid=1) INFO:     127.0.0.1:1 - "GET /v1/models HTTP/1.1" 401 Unauthorized',
        "(APIServer pid=1) INFO 06-12 20:02:52 [loggers.py:271] Engine 000: Avg prompt throughput: 12.1 tokens/s",
        "",
        "   ",
    ],
)
def test_lines_about_our_own_probes_are_never_news(line: str) -> None:
    """While starting, every request is ours."""
    assert not hear(Novelty(), line)


def test_ids_and_addresses_make_no_form() -> None:
    """A loop that prints another id each time is a loop."""
    novelty = Novelty()
    assert hear(novelty, "retrying 0x7f12ab at ipc:///tmp/11111111-2222-3333-4444-555555555555 (10.0.0.1:29500)")
    assert not hear(novelty, "retrying 0xdeadbeef at ipc:///tmp/aaaa1111-2222-3333-4444-bbbbccccdddd (10.0.0.22:29501)")
    assert hear(novelty, "given up")


def test_a_bar_is_news_when_it_has_come_further() -> None:
    """Redrawn at the same place, it is none; each has its own course."""
    novelty = Novelty()
    bar = "model-0000{}-of-00004.safetensors:  {}%|###  | 3.0G/4.9G [00:30<00:19, 100MB/s]"
    assert hear(novelty, bar.format(1, 10))
    assert not hear(novelty, bar.format(1, 10))
    assert hear(novelty, bar.format(1, 11))
    assert not hear(novelty, bar.format(1, 5))
    assert hear(novelty, bar.format(2, 5))


def test_babble_comes_to_an_end() -> None:
    """A process that prints something new for ever does not move for ever, and costs bounded memory."""
    words = ("".join(chr(ord("g") + int(digit)) for digit in f"{number:05d}") for number in range(3 * MAX_FORMS))
    novelty = Novelty()
    assert sum(hear(novelty, f"word {word}") for word in words) == MAX_FORMS
    bars = Novelty()
    assert sum(hear(bars, f"part {number}: 10%|# | 1/10 [00:01") for number in range(3 * MAX_FORMS)) == MAX_FORMS


def test_a_new_phase_hears_afresh() -> None:
    """The same line in another phase is news: the engine has moved on meanwhile."""
    reader = StartReader()
    line = "(Worker pid=1) INFO 11-29 19:34:10 [x.py:1] Waiting for peers"
    assert reader.feed(line)
    assert not reader.feed(line)
    reader.advance(StartPhase.COMPILING)
    assert reader.feed(line)
