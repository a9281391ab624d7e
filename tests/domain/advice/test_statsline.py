"""vLLM's stats lines of every version."""

import itertools

import pytest

from vllm_supervisor.domain.advice import Setting, StatsReader, Verdict, advise

V0 = (
    "INFO 02-25 11:11:31 metrics.py:455] Avg prompt throughput: 2082.8 tokens/s, Avg generation throughput: 194.4 "
    "tokens/s, Running: 3 reqs, Swapped: 1 reqs, Pending: 2 reqs, GPU KV cache usage: 4.8%, CPU KV cache usage: 7.0%."
)
RATES = "Avg prompt throughput: 412.0 tokens/s, Avg generation throughput: 101.3 tokens/s, "
V1 = "INFO 09-08 19:00:55 [loggers.py:123] Engine 000: " + RATES


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(V0, (3, 3, 0.048, None, 0), id="0.6: swapped and pending wait; the GPU's cache counts"),
        pytest.param(
            V1 + "Running: 17 reqs, Waiting: 0 reqs, GPU KV cache usage: 41.2%, Prefix cache hit rate: 3.3%",
            (17, 0, 0.412, 0.033, 0), id="0.8 to 0.11",
        ),
        pytest.param(
            V1 + "Running: 17 reqs, Waiting: 2 reqs, GPU KV cache usage: 41.2%", (17, 2, 0.412, None, 0), id="0.8.3"
        ),
        pytest.param(
            f"(APIServer pid=1) {V1}Running: 1 reqs, Waiting: 0 reqs, Preemptions: 2, GPU KV cache usage: 99.1%, "
            "Prefix cache hit rate: 0.0%, External prefix cache hit rate: 40.0%, MM cache hit rate: 50.0%",
            (1, 0, 0.991, 0.0, 2), id="0.15 and later: more parts, other caches",
        ),
        pytest.param(
            f"\x1b[0;36m(APIServer pid=1)\x1b[0;0m {V1}Running: 4 reqs, Waiting: 11 reqs, Deferred: 3 reqs, GPU KV "
            "cache usage: 37.1%, Prefix cache hit rate: 0.0%",
            (4, 11, 0.371, 0.0, 0), id="0.23 and later: deferred are among the waiting",
        ),
        pytest.param(
            f"{V1}Running: 4 reqs, Waiting: 1 reqs, KV fetch: 1 waiting to start, 2 in progress, 0 completed waiting, "
            "CPU KV cache usage: 37.1%",
            (4, 1, 0.371, None, 0), id="0.33: KV fetch, the device's name",
        ),
        pytest.param(
            f"2025-11-29T10:00:00.123Z stdout F INFO 11-29 10:00:00 [loggers.py:1] 8 Engines Aggregated: {RATES}"
            "Running: 64 reqs, Waiting: 8 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 0.0%",
            (64, 8, 0.5, 0.0, 0), id="aggregated ranks, a collector's stamp",
        ),
    ],
)  # fmt: skip
def test_every_format(line: str, expected: tuple[float, ...]) -> None:
    """Requests, usage, hits and preemptions are read from each version's line."""
    reader = StatsReader()
    reader.feed(line)
    (sample,) = reader.samples()
    kv = None if sample.kv is None else round(sample.kv, 4)
    hits = None if sample.hit_rate is None else round(sample.hit_rate, 4)
    assert (sample.running, sample.waiting, kv, hits, sample.preemptions) == expected


def test_v0_tells_the_hits_in_the_next_line() -> None:
    """They belong to the stats before."""
    reader = StatsReader()
    reader.feed(V0)
    reader.feed("INFO 02-25 11:11:31 metrics.py:471] Prefix cache hit rate: GPU: 12.50%, CPU: 0.00%")
    assert reader.samples()[0].hit_rate == pytest.approx(0.125)


def line(at: str, rank: str, running: int, waiting: int = 0, kv: float = 40.0) -> str:
    return (
        f"(APIServer pid=1) INFO {at} [loggers.py:271] {rank}: Avg prompt throughput: 100.0 tokens/s, Avg generation "
        f"throughput: 50.0 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {kv}%"
    )


def test_ranks_make_one_sample() -> None:
    """Requests and tokens add up, the usage is the mean; a rank that falls silent does not hold the others up."""
    reader = StatsReader()
    for tick in range(4):
        for rank in range(3 if tick < 3 else 2):
            reader.feed(line(f"01-01 00:00:{10 * tick:02d}", f"Engine 00{rank}", 10 + rank, rank, 10.0 * (rank + 1)))
    samples = reader.samples()
    assert [(sample.at - samples[0].at, sample.running, sample.waiting) for sample in samples] == [
        (0, 33, 3), (10, 33, 3), (20, 33, 3), (30, 21, 1),
    ]  # fmt: skip
    assert samples[0].kv == pytest.approx(0.2)
    assert (samples[1].generation_tokens or 0) - (samples[0].generation_tokens or 0) == pytest.approx(1500)


def test_time_goes_on() -> None:
    """Over midnight, the end of a month and of a year; lines without a date are ten seconds apart; no step back."""
    reader = StatsReader()
    stamps = [
        "12-31 23:59:50",
        "01-01 00:00:00",
        "01-01 00:00:10",
        "01-01 00:00:09",
        "01-31 23:59:59",
        "02-01 00:00:09",
    ]
    for stamp in stamps:
        reader.feed(line(stamp, "Engine 000", 1))
    reader.feed("Engine 000: " + RATES + "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%")
    times = [sample.at for sample in reader.samples()]
    assert [round(after - before) for before, after in itertools.pairwise(times)] == [
        10, 10, 0, 31 * 86400 - 11, 10, 10,
    ]  # fmt: skip


def test_a_clock_set_back_stops_nothing() -> None:
    """Logs put together, or an hour given back in autumn: the rates stay what they were."""
    reader = StatsReader()
    for _ in range(2):
        for tick in range(6):
            reader.feed(line(f"10-26 02:00:{10 * tick:02d}", "Engine 000", 32))
    found = advise(reader.samples(), Setting(), window=600)
    assert found is not None
    assert found.window.generation_rate == pytest.approx(50)
    assert found.window.seconds == pytest.approx(110)


def test_what_the_start_printed() -> None:
    """Capacity and limits come out of the same log, and cut the target."""
    reader = StatsReader()
    reader.feed("(APIServer pid=1) INFO 01-01 00:00:00 [x.py:1] non-default args: {'max_num_seqs': 48, 'model': 'x'}")
    reader.feed(
        "(EngineCore pid=2) INFO 01-01 00:00:01 [x.py:1] GPU KV cache size: 100,000 tokens, Maximum concurrency for "
        "2,048 tokens per request: 48.83x"
    )
    for tick in range(6):
        reader.feed(line(f"01-01 00:01:{10 * tick:02d}", "Engine 000", 32))
    setting = reader.setting()
    assert (setting.max_num_seqs, setting.kv_tokens, setting.max_concurrency) == (48, 100_000, 48.83)
    found = advise(reader.samples(), setting)
    assert found is not None
    assert (found.verdict, found.target.current, found.target.value) == (Verdict.CLIENT_BOUND, 32, 48)


def test_lines_that_are_none() -> None:
    """Iteration logs, speculative decoding and users' text make no sample; nothing raises."""
    reader = StatsReader()
    for text in (
        "",
        "Engine 000: Iteration(12): 5 context requests",
        "SpecDecoding metrics: Mean acceptance length: 2.1, Accepted throughput: 3.2 tokens/s",
        "Received request: prompt: 'Running: 5 reqs'",
        "throughput: Running: many reqs",
        "Maximum concurrency for",
        "KV cache size: lots",
        "max_num_seqs=" + "9" * 400,
        "max_model_len=" + "9" * 5000,
        "Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: " + "9" * 400 + " reqs",
    ):
        reader.feed(text)
    assert reader.samples() == []


STARTS = {
    "0.6 and later": "INFO 01-01 00:05:00 api_server.py:495] vLLM API server version 0.6.3.post1",
    "0.11": "(APIServer pid=9) INFO 01-01 00:05:00 [api_server.py:1839] vLLM API server version 0.11.0",
    "0.15 and later": "(APIServer pid=9) INFO 01-01 00:05:00 [utils.py:9]  \u2588\u2588\u2588  version 0.23.0",
    "our own line": "[vllm-supervisor] generation 2 is launched at 2026-01-01T00:05:00Z",
    "a log of engine lines alone": "(EngineCore pid=9) INFO 01-01 00:05:00 [kv.py:1] GPU KV cache size: 100,000 tokens",
    "a log of uvicorn": "INFO:     Application startup complete.",
}


@pytest.mark.parametrize("boundary", STARTS.values(), ids=STARTS.keys())
def test_the_last_start_counts(boundary: str) -> None:
    """A crowded engine, restarted with a larger batch: nothing of the first is in the second's samples."""
    reader = StatsReader()
    reader.feed("(APIServer pid=1) INFO 01-01 00:00:00 [x.py:1] non-default args: {'max_num_seqs': 8}")
    for tick in range(6):
        reader.feed(line(f"01-01 00:00:{10 * tick:02d}", "Engine 000", 8, 40, 99.0))
    assert reader.dropped == 0
    reader.feed(boundary)
    reader.feed(boundary)
    for tick in range(6):
        reader.feed(line(f"01-01 00:06:{10 * tick:02d}", "Engine 000", 32))
    samples = reader.samples()
    assert {(sample.running, sample.waiting) for sample in samples} == {(32, 0)}
    assert len(samples) == 6
    assert reader.dropped == 1


def test_a_start_has_its_own_arguments() -> None:
    """What the start before was given, and what fitted it, is forgotten."""
    reader = StatsReader()
    for number in range(2):
        reader.feed("(APIServer pid=1) INFO 01-01 00:00:00 [x.py:1] vLLM API server version 0.11.0")
        if not number:
            reader.feed("(APIServer pid=1) INFO 01-01 00:00:00 [x.py:1] non-default args: {'max_num_seqs': 8}")
            reader.feed("(EngineCore pid=2) INFO 01-01 00:00:01 [x.py:1] GPU KV cache size: 100,000 tokens")
            assert (reader.setting().max_num_seqs, reader.setting().kv_tokens) == (8, 100_000)
        reader.feed(line("01-01 00:01:00", "Engine 000", 8))
    assert reader.setting() == Setting()


@pytest.mark.parametrize(
    "head",
    [
        "INFO 01-01 00:00:00 [logger.py:41] Received request cmpl-1: prompt: '",
        "INFO 01-01 00:00:00 [logger.py:41] Received request cmpl-1: params: x, prompt: 'INFO 01-01 00:00:00 [l.py:1] ",
        "2026-01-01 mine Received request cmpl-1: prompt: 'INFO 01-01 00:00:00 [loggers.py:1] ",
        'INFO:     127.0.0.1:1 - "GET /v1?',
        "ERROR 01-01 00:00:00 [serving.py:1] bad request: [{'type': 'x', 'input': '",
        "INFO 01-01 00:00:00 [logger.py:41] somebody said: ",
    ],
)
def test_what_users_write_is_no_figure(head: str) -> None:
    """A prompt that quotes stats, a banner or arguments makes no sample, no start and no limit."""
    reader = StatsReader()
    reader.feed(line("01-01 00:00:00", "Engine 000", 32))
    quoted = f"{RATES}Running: 999 reqs, Waiting: 9 reqs, GPU KV cache usage: 99.0%"
    reader.feed(f"{head}Engine 000: {quoted}'")
    reader.feed(f"{head}{quoted}'")
    if "said" not in head and "GET" not in head:
        reader.feed(f"{head}vLLM API server version 0.11.0, args: max_num_seqs=3'")
        reader.feed(f"{head}GPU KV cache size: 10 tokens'")
    assert [sample.running for sample in reader.samples()] == [32]
    assert (reader.setting(), reader.dropped) == (Setting(), 0)


@pytest.mark.parametrize(
    "record",
    [
        '{"log":"%s\\n","stream":"stderr","time":"2026-01-01T00:0%d:00.1Z"}',
        '{"timestamp": "2026-01-01T00:0%d:00.1Z", "levelname": "INFO", "message": "%s"}',
    ],
)
def test_records_of_json(record: str) -> None:
    """Docker's and vLLM's own: the message is read inside them, and the time where it stands."""
    reader = StatsReader()
    message = f"Engine 000: {RATES}Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%"
    for minute in range(2):
        reader.feed(record % ((message, minute) if "log" in record else (minute, message)))
    samples = reader.samples()
    assert [sample.at - samples[0].at for sample in samples] == [0, 60]


def test_memory_is_bounded() -> None:
    """Of a log without end the last samples are kept."""
    reader = StatsReader()
    text = "Engine 000: " + RATES + "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%"
    for _ in range(12_000):
        reader.feed(text)
    assert len(reader.samples()) == 10_000


def test_the_context_that_was_asked_for() -> None:
    """From the arguments that vLLM prints; a month that is none makes no time of a line."""
    reader = StatsReader()
    reader.feed("(APIServer pid=1) INFO 01-01 00:00:00 [x.py:1] non-default args: {'max_model_len': 8192}")
    assert reader.setting().max_model_len == 8192
    reader.feed(line("01-01 00:00:00", "Engine 000", 1))
    reader.feed(line("13-01 00:00:30", "Engine 000", 1))
    first, second = reader.samples()
    assert second.at - first.at == 10, "as of a line without a date"
