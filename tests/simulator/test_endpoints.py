"""Endpoints, error bodies, metrics and log lines are those of vLLM 0.32."""

import json
import socket
from collections.abc import Callable

import pytest

from tests.eventually import eventually
from tests.ports import free_port
from tests.simulator.sim import Answer, Sim

Launch = Callable[..., Sim]
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def events(answer: Answer) -> list[str]:
    """Return the data of server-sent events."""
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return [block.removeprefix("data: ") for block in answer.body.decode().split("\n\n") if block]


def test_health_version_load_and_ping(launch: Launch) -> None:
    """What needs no engine answers as vLLM's does; load stays 0 without tracking."""
    sim = launch().ready()
    assert (sim.get("/health").status, sim.get("/health").body) == (200, b"")
    assert sim.get("/ping").status == sim.post("/ping", {}).status == 200
    assert sim.get("/version").body == b'{"version":"0.32.0"}'
    assert sim.get("/load").body == b'{"server_load":0}'


def test_models_lists_served_names_and_loras(launch: Launch) -> None:
    """Every served name, then every LoRA module; requests may name each of them."""
    sim = launch("--served-model-name", "a", "b", "--lora-modules", "sql=/loras/sql", "--max-model-len", "2k").ready()
    body = sim.get("/v1/models").json
    assert [(m["id"], m["root"], m["parent"]) for m in body["data"]] == [
        ("a", "tiny", None),
        ("b", "tiny", None),
        ("sql", "/loras/sql", "a"),
    ]
    assert body["data"][0]["max_model_len"] == 2000
    assert [sim.complete(model=name).json["model"] for name in ("a", "b", "sql")] == ["a", "b", "sql"]


def test_completion(launch: Launch) -> None:
    """Whole: text, finish reason, usage; one choice a prompt."""
    sim = launch().ready()
    body = sim.complete(4).json
    assert body["object"] == "text_completion"
    assert body["choices"][0] | {"text": ""} == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }
    assert body["usage"]["completion_tokens"] == 4
    several = sim.post("/v1/completions", {"prompt": ["a", [1, 2, 3]], "max_tokens": 1, "n": 2}).json
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    assert several["usage"] == {
        "prompt_tokens": 8,
        "total_tokens": 12,
        "completion_tokens": 4,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def test_streamed_completion(launch: Launch) -> None:
    """One event a token, the last with the reason; usage on request; then [DONE]."""
    sim = launch().ready()
    *chunks, usage, done = events(sim.complete(3, stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    reasons = [json.loads(chunk)["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None, None, "length"]
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"] == {"prompt_tokens": 1, "total_tokens": 4, "completion_tokens": 3}


def test_chat(launch: Launch) -> None:
    """Whole and streamed; without max_tokens the model ends the answer itself."""
    sim = launch("--sim-answer-tokens", "5").ready()
    whole = sim.post("/v1/chat/completions", CHAT).json
    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert whole["choices"][0]["finish_reason"] == "length"
    free = sim.post("/v1/chat/completions", {"messages": CHAT["messages"]}).json
    assert (free["choices"][0]["finish_reason"], free["usage"]["completion_tokens"]) == ("stop", 5)
    first, *rest, done = events(sim.post("/v1/chat/completions", CHAT | {"stream": True}))
    assert json.loads(first)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(json.loads(chunk)["choices"][0]["delta"]["content"] for chunk in rest)
    assert text == whole["choices"][0]["message"]["content"]
    assert done == "[DONE]"


@pytest.mark.parametrize("flags", [("--runner", "pooling"), ("--task=embed",)])
def test_pooling(launch: Launch, flags: tuple[str, ...]) -> None:
    """A pooling model embeds and pools, and has no completions."""
    sim = launch(*flags).ready()
    body = sim.post("/v1/embeddings", {"input": ["a", "b"]}).json
    assert [item["object"] for item in body["data"]] == ["embedding", "embedding"]
    assert len(body["data"][0]["embedding"]) == 8
    assert sim.post("/pooling", {"input": "a"}).json["data"][0]["object"] == "pooling"
    assert sim.complete().status == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        (
            "/v1/completions",
            {"model": "nope", "prompt": "hi"},
            404,
            {
                "message": "The model `nope` does not exist. Valid aliases: a, b.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            },
        ),
        (
            "/v1/completions",
            {"prompt": "hi", "max_tokens": 5000},
            400,
            {
                "message": "max_tokens=5000 cannot be greater than max_model_len=1024. Please request fewer output "
                "tokens. (parameter=max_tokens, value=5000)",
                "type": "BadRequestError",
                "param": "max_tokens",
                "code": 400,
            },
        ),
        (
            "/v1/completions",
            {"model": "a"},
            400,
            {
                "message": "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
                "type": "BadRequestError",
                "param": "prompt",
                "code": 400,
            },
        ),
        (
            "/v1/completions",
            b'{"model":',
            400,
            {
                "message": "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.9', 'msg': 'JSON decode "
                "error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}",
                "type": "Bad Request",
                "param": "body.9",
                "code": 400,
            },
        ),
    ],
)
def test_errors_as_vllm_words_them(
    launch: Launch, path: str, body: object, status: int, expected: dict[str, object]
) -> None:
    """Bodies copied from a real 0.32."""
    sim = launch("--served-model-name", "a", "b", "--max-model-len", "1024").ready()
    answer = sim.post(path, body)
    assert (answer.status, answer.json) == (status, {"error": expected})


def test_unknown_paths_and_methods(launch: Launch) -> None:
    """FastAPI's own words; embeddings are unknown to a generating model."""
    sim = launch().ready()
    for answer in (sim.get("/nope"), sim.post("/v1/embeddings", {"input": "a"}), sim.post("/sleep", {})):
        assert (answer.status, answer.body) == (404, b'{"detail":"Not Found"}')
    wrong = sim.get("/v1/completions")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert wrong.body == b'{"detail":"Method Not Allowed"}'


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_api_key(launch: Launch, by: str) -> None:
    """A key guards /v1 and nothing else, and is not shown in the log."""
    sim = launch("--api-key", "sk-1", "sk-2") if by == "flag" else launch(env={"VLLM_API_KEY": "sk-2"})
    sim.ready()
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sk-2"}):
        answer = sim.get("/v1/models", headers)
        assert (answer.status, answer.body) == (401, b'{"error":"Unauthorized"}')
    assert sim.get("/v1/models", {"Authorization": "Bearer sk-2"}).status == 200
    assert sim.get("/metrics").status == sim.get("/load").status == 200
    assert "sk-" not in sim.out


def test_metrics(launch: Launch) -> None:
    """vLLM's names with its labels: the first served name and engine 0; heartbeats count steps and tokens."""
    sim = launch("--served-model-name", "a", "b", "--max-model-len", "1024", "--sim-kv-tokens", "4096").ready()
    sim.complete(5)
    # A request is counted when its answer is out, which its client may have read by then.
    eventually(lambda: b"http_requests_total" in sim.get("/metrics").body)
    plain = sim.get("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert sim.get("/metrics/").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = plain.body.decode().splitlines()
    for line in (
        'vllm:num_requests_running{engine="0",model_name="a"} 0.0',
        'vllm:num_requests_waiting{engine="0",model_name="a"} 0.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.0',
        'vllm:num_preemptions_total{engine="0",model_name="a"} 0.0',
        'vllm:generation_tokens_total{engine="0",model_name="a"} 5.0',
        'vllm:prompt_tokens_total{engine="0",model_name="a"} 1.0',
        'vllm:iteration_tokens_total_count{engine="0",model_name="a"} 5.0',
        'vllm:engine_sleep_state{engine="0",model_name="a",sleep_state="awake"} 1.0',
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="a"} 1.0',
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0',
    ):
        assert line in lines
    info = next(line for line in lines if line.startswith("vllm:cache_config_info{"))
    for label in (
        'kv_cache_size_tokens="4096"',
        'kv_cache_max_concurrency="4.0"',
        'num_gpu_blocks="256"',
        'block_size="16"',
    ):
        assert label in info


def test_requests_beyond_max_num_seqs_wait(launch: Launch) -> None:
    """Gauges show who runs and who waits, and fall to zero when the clients hang up."""
    sim = launch("--max-num-seqs", "2", "--sim-tokens-per-second", "10").ready()
    body = json.dumps({"prompt": "hi", "max_tokens": 1000, "n": 3, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", sim.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        # The three come one after the other.
        eventually(lambda: sim.metric("vllm:num_requests_waiting") == 1)
        assert sim.metric("vllm:num_requests_running") == 2
        assert sim.metric("vllm:kv_cache_usage_perc") > 0
    eventually(lambda: sim.metric("vllm:num_requests_running") == sim.metric("vllm:num_requests_waiting") == 0)
    assert 'finished_reason="abort",model_name="tiny"} 3.0' in sim.get("/metrics").body.decode()


def test_a_full_cache_preempts(launch: Launch) -> None:
    """Requests that outgrow the KV cache are preempted, counted, and finished all the same."""
    sim = launch("--sim-kv-tokens", "100", "--sim-tokens-per-second", "2000").ready()
    assert sim.complete(60, n=3).json["usage"]["completion_tokens"] == 180
    assert sim.metric("vllm:num_preemptions_total") > 0


def test_refused_until_ready(launch: Launch) -> None:
    """The port is bound while starting, and nobody listens on it."""
    sim = launch("--sim-never-ready")
    eventually(lambda: "50% Completed" in sim.err)
    assert not sim.listening()


def test_port_taken(launch: Launch) -> None:
    """A port that somebody listens on: vLLM's traceback, exit 1, and no engine was started."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        sim = launch(port=port)
        assert sim.wait() == 1
    assert sim.err.endswith("OSError: [Errno 98] Address already in use\n")
    assert list(sim.members()) == ["APIServer"]


def test_log_lines(launch: Launch) -> None:
    """What parsers look for is there, in vLLM's order and with its prefixes; access lines have none."""
    sim = launch("--max-model-len", "1024", "--sim-kv-tokens", "8192").ready()
    sim.get("/health")
    lead, core, worker = (sim.member(name) for name in ("APIServer", "EngineCore", "Worker"))
    position = 0
    for text in (
        f"(APIServer pid={lead}) INFO ",
        "version 0.32.0",
        "non-default args: {'model_tag': 'tiny'",
        f"(EngineCore pid={core}) INFO ",
        "Initializing a V1 LLM engine (v0.32.0) with config: model='tiny'",
        f"(Worker pid={worker}) INFO ",
        "Starting to load model tiny...",
        "Loading weights took ",
        "Available KV cache memory: 1.00 GiB",
        "GPU KV cache size: 8,192 tokens, Maximum concurrency for 1,024 tokens per request: 8.00x",
        "init engine (profile, create kv cache, warmup model) took ",
        f"Starting vLLM server on http://127.0.0.1:{sim.port}",
        "INFO:     127.0.0.1:",
        ' - "GET /health HTTP/1.1" 200 OK',
    ):
        position = sim.out.find(text, position)
        assert position >= 0, text
    assert "\rLoading safetensors checkpoint shards:  50% Completed | 2/4 [00:00<00:00, " in sim.err
    assert f"INFO:     Started server process [{lead}]\nINFO:     Waiting for application startup.\n" in sim.err


def test_stats_line(launch: Launch) -> None:
    """Printed while there is traffic and once after it, then never again while idle."""
    sim = launch(env={"VLLM_LOG_STATS_INTERVAL": "0.05"}).ready()
    sim.complete(5)
    eventually(lambda: "Engine 000: Avg prompt throughput: 0.0 tokens/s" in sim.out)
    spoken = sim.out.count("Engine 000")
    sim.complete(5)
    eventually(lambda: sim.out.count("Engine 000") >= spoken + 2)
    assert "Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%" in sim.out


def test_switches_that_silence(launch: Launch) -> None:
    """--disable-uvicorn-access-log and --disable-log-stats do what they say."""
    sim = launch("--disable-uvicorn-access-log", "--disable_log_stats").ready()
    sim.complete(2)
    assert "GET /health" not in sim.out
    assert b"vllm:" not in sim.get("/metrics").body


def test_keep_alive(launch: Launch) -> None:
    """Several requests on one connection; it is closed by the server when idle for too long."""
    sim = launch(env={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "2"}).ready()
    with socket.create_connection(("127.0.0.1", sim.port), timeout=20) as client:
        for _ in range(3):
            client.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b'{"version":"0.32.0"}' in client.recv(4096)
        assert client.recv(1) == b""
