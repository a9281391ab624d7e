import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_supervisor.adapters.engine_http.metrics import HEARTBEATS, parse
from vllm_supervisor.domain.engine import EngineMetrics, Tally, moved

REAL_0_32 = r"""
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 40.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="discard_all"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.795987082904e+09
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 22.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 2.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny"} 0.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 5.0
vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"} 24.0
vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 4.0
vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_tokens"} 1.0
vllm:cache_config_info{block_size="128",engine="0",kv_cache_dtype_skip_layers="[]",kv_cache_max_concurrency="1024.0",kv_cache_size_tokens="1048576",num_gpu_blocks="8192",num_gpu_blocks_override="None"} 1.0
"""  # noqa: E501 - as vLLM 0.32.0 writes it


def test_real_answer_of_0_32() -> None:
    """Every figure is read from lines as vLLM 0.32.0 wrote them, look-alikes (by_reason, bucket, created) left out."""
    assert parse(REAL_0_32) == EngineMetrics(
        running=3,
        waiting=2,
        kv_cache_usage=0.25,
        preemptions=7.0,
        counters={
            ("0", "vllm:prompt_tokens_total"): 22.0,
            ("0", "vllm:generation_tokens_total"): 2.0,
            ("0", "vllm:iteration_tokens_total_count"): 5.0,
        },
        kv_cache_tokens=1048576,
        max_concurrency=1024.0,
        asleep=False,
        gauges={("0", "running"): 3.0, ("0", "waiting"): 2.0, ("0", "kv_cache_usage"): 0.25},
        rejections=5.0,
        prompt_tokens=22.0,
        generation_tokens=2.0,
    )


def test_ranks_are_summed_and_usage_is_their_mean() -> None:
    """Data-parallel ranks add up; each keeps its own heartbeat, so that one that stalls can be seen."""
    text = "\n".join(
        f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} {rank}\n'
        f'vllm:num_requests_waiting{{engine="{rank}",model_name="m"}} 10\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} {rank / 10}\n'
        f'vllm:iteration_tokens_total_count{{engine="{rank}",model_name="m"}} {100 + rank}\n'
        f'vllm:cache_config_info{{engine="{rank}",block_size="16",num_gpu_blocks="100"}} 1.0'
        for rank in range(4)
    )
    metrics = parse(text)
    assert (metrics.running, metrics.waiting, metrics.kv_cache_tokens) == (6, 40, 6400)
    assert metrics.kv_cache_usage == pytest.approx(0.15)
    assert metrics.counters == {(str(rank), "vllm:iteration_tokens_total_count"): 100.0 + rank for rank in range(4)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\nvllm:num_requests_swapped 4.0\n"
            "vllm:gpu_cache_usage_perc 0.5\nvllm:generation_tokens_total 9.0",
            EngineMetrics(
                running=2,
                waiting=5,
                kv_cache_usage=0.5,
                counters={("", "vllm:generation_tokens_total"): 9.0},
                generation_tokens=9.0,
                gauges={("", "running"): 2.0, ("", "waiting"): 1.0, ("", "kv_cache_usage"): 0.5},
            ),
            id="0.6 without labels; swapped requests are not done",
        ),
        pytest.param(
            'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n',
            EngineMetrics(kv_cache_usage=0.5, gauges={("0", "kv_cache_usage"): 0.5}),
            id="0.11 has both names: not counted twice",
        ),
        pytest.param(
            'vllm:num_requests_running{model_name="a}b \\"q\\" \\\\",engine="1"} 1 1700000000 # {id="x"} 1\r\n# EOF',
            EngineMetrics(running=1, gauges={("1", "running"): 1.0}),
            id="escapes, braces, a timestamp, an exemplar, CRLF",
        ),
        pytest.param(
            "vllm:num_requests_running\t 1e1",
            EngineMetrics(running=10, gauges={("", "running"): 10.0}),
            id="tabs and exponents",
        ),
        pytest.param(
            "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -1\n"
            "vllm:prompt_tokens_total NaN",
            EngineMetrics(),
            id="NaN, infinite and negative values count as absent",
        ),
        pytest.param(
            'vllm:num_requests_running{engine="0" 1\nvllm:num_requests_running{engine="0\n1\n'
            "vllm:num_requests_running\nvllm:num_requests_running one\n vllm:num_requests_running 9\n"
            "vllm:num_requests_running 4",
            EngineMetrics(running=4, gauges={("", "running"): 4.0}),
            id="malformed lines are skipped, the good one is read",
        ),
        pytest.param('vllm:engine_sleep_state{sleep_state="awake"} 0', EngineMetrics(asleep=True), id="not awake"),
        pytest.param(
            'vllm:engine_sleep_state{sleep_state="discard_all"} 1', EngineMetrics(asleep=True), id="sleep level 2"
        ),
        pytest.param(
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="None",kv_cache_size_tokens="None"} 1',
            EngineMetrics(),
            id="capacity not known yet",
        ),
        pytest.param(
            "vllm:gpu_prefix_cache_hit_rate 0.4\n"
            "vllm:request_prompt_tokens_sum 300\nvllm:request_prompt_tokens_count 3\n"
            "vllm:time_per_output_token_seconds_sum 4\nvllm:time_per_output_token_seconds_count 40\n"
            "vllm:time_per_output_token_seconds_bucket 99",
            EngineMetrics(cache_hit_rate=0.4, prompt_lengths=Tally(300, 3), between_tokens=Tally(4, 40)),
            id="0.6: the hits are a rate, the pace has its old name",
        ),
        pytest.param(
            "".join(
                f'vllm:{name}{{engine="{rank}"}} {value}\n'
                for rank in (0, 1)
                for name, value in {
                    "prefix_cache_queries_total": 100,
                    "gpu_prefix_cache_queries_total": 100,
                    "prefix_cache_hits_total": 25,
                    "gpu_prefix_cache_hits_total": 25,
                    "request_generation_tokens_sum": 500,
                    "request_generation_tokens_count": 5,
                    "time_to_first_token_seconds_sum": 1.5,
                    "time_to_first_token_seconds_count": 5,
                    "inter_token_latency_seconds_sum": 2,
                    "inter_token_latency_seconds_count": 100,
                    "time_per_output_token_seconds_sum": 2,
                    "time_per_output_token_seconds_count": 100,
                }.items()
            ),
            EngineMetrics(
                cache_queries=200,
                cache_hits=50,
                output_lengths=Tally(1000, 10),
                first_token=Tally(3, 10),
                between_tokens=Tally(4, 200),
            ),
            id="0.11: ranks add up, a series under two names counts once",
        ),
        pytest.param("<html>hello</html>", EngineMetrics(), id="no metrics at all"),
    ],
)
def test_versions_and_oddities(text: str, expected: EngineMetrics) -> None:
    """Each version's spelling, and each way in which a line can be odd, gives the figures named."""
    assert parse(text) == expected


def test_heartbeat_is_seen_to_move() -> None:
    """Two looks at an engine that stepped in between differ in what `moved` compares."""
    before = parse(REAL_0_32)
    after = parse(
        REAL_0_32.replace('_count{engine="0",model_name="tiny"} 5.0', '_count{engine="0",model_name="tiny"} 6.0')
    )
    assert moved(before, after)
    assert not moved(before, before)


_NAMES = st.sampled_from(
    ["vllm:num_requests_running", "vllm:cache_config_info", "vllm:engine_sleep_state", *HEARTBEATS]
)
_PIECES = st.one_of(
    _NAMES, st.sampled_from(["{", "}", '"', "\\", "=", ",", " ", "\n", "1", "e308", "engine", "#"]), st.text()
)


@given(st.one_of(st.text(), st.lists(_PIECES).map("".join)))
def test_no_text_raises(text: str) -> None:
    """Whatever the body, parsing ends in metrics whose figures are usable."""
    metrics = parse(text)
    assert metrics.running is None or metrics.running >= 0
    assert metrics.kv_cache_usage is None or 0 <= metrics.kv_cache_usage <= 1


@pytest.mark.parametrize(
    "line",
    [
        'vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny"} 0.0\n',
        'vllm:num_requests_running{engine="0"} 1\n',
        'vllm:num_requests_running{a="\\"x}',
        "vllm:num_requests_running{" + "a" * 1000,
        'vllm:num_requests_running{a="xxxxxxxx\n',
        "\n",
    ],
    ids=["buckets", "wanted", "one endless label", "one endless line", "unterminated", "empty lines"],
)
def test_a_look_is_cheap_whatever_the_body(line: str) -> None:
    """16 MiB, honest or hostile, cost far less than a probe interval (measured: 5 to 45 ms)."""
    body = line * ((16 << 20) // len(line))
    began = time.process_time()
    parse(body)
    assert time.process_time() - began < 1.0
