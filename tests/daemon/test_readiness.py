"""Ready means that it served: what keeps a whole daemon from saying so, and what does not."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.rig import Rig, Status

Make = Callable[..., Rig]


def hurdle(rig: Rig, words: str) -> Status:
    """Wait until the start stands before its last hurdle, and return the status that says why."""

    def there() -> Status | None:
        status = rig.status()
        stands = status["state"] == "starting" and status["phase"]["name"] == "warming_up"
        return status if stands and words in (status["phase"]["detail"] or "") else None

    status: Status = rig.until(there, what=f"a start held up by {words!r}")
    return status


def not_advertised(rig: Rig) -> None:
    assert rig.get("/v1/models") == {"models": []}
    assert rig.request("GET", "/readyz")[0] == 503
    assert not rig.status()["ready"]


def requests(rig: Rig, path: str) -> int:
    """Return how many requests for `path` the engines logged."""
    return rig.engine_log().count(f'"POST {path} HTTP')


def relaunch(rig: Rig, **knobs: object) -> Status:
    """Have the next engine run with other knobs, and wait until it is ready."""
    before = rig.status()["generation"]
    rig.simulate(**knobs)
    rig.post("restart")
    return rig.wait_state("ready", after=before)


def test_not_ready_until_a_token_came_back(pliable: Make) -> None:
    """`/health` 200 with completions that fail, hang, or meet a wrong key is not ready, and the status says why."""
    rig = pliable({"api_key": "right-key"})
    fault = rig.folder / "fault"
    fault.touch()
    rig.simulate(completions_status=500, fault_while=fault)
    rig.start()
    hurdle(rig, "HTTP 500")
    not_advertised(rig)
    fault.unlink()
    assert rig.wait_state("ready")["phase"]["detail"] is None
    told = rig.events("warmup_failed")
    assert len(told) == 1, "told once, however often it was tried"
    assert "HTTP 500" in told[0]["detail"]

    before = rig.status()["generation"]
    rig.simulate(VLLM_API_KEY="another-key")
    rig.post("restart")
    status = hurdle(rig, "key")
    assert "401" in status["phase"]["detail"]
    assert "api_key" in status["phase"]["detail"]
    assert status["generation"] > before
    not_advertised(rig)
    assert len(rig.events("unauthorized")) == 1
    shown = json.dumps(rig.events()) + json.dumps(rig.status()) + rig.daemon_log()
    assert "right-key" not in shown
    assert "another-key" not in shown


def test_the_ladder_and_the_models_that_are_advertised(pliable: Make) -> None:
    """Chat, embeddings and pooling are tried where completions do not apply; none at all is an event, and ready."""
    rig = pliable({"model_aliases": {"short": "demo/model", "gone": "not/served"}})
    rig.simulate(completions_status=404)
    rig.start()
    rig.wait_state("ready")
    assert requests(rig, "/v1/chat/completions") == 1
    assert rig.events("warmup_unsupported") == []
    assert [model["name"] for model in rig.get("/v1/models")["models"]] == ["demo/model", "short"]
    missing = rig.events("alias_target_missing")
    assert [(event["alias"], event["target"]) for event in missing] == [("gone", "not/served")]

    relaunch(rig, completions_status=400, chat_status=501)
    assert requests(rig, "/v1/embeddings") == 1
    assert requests(rig, "/pooling") == 1
    assert [event["generation"] for event in rig.events("warmup_unsupported")] == [rig.status()["generation"]]
    assert rig.metric("vllm_supervisor_ready") == 1


def test_a_pooling_model_serves_an_embedding(pliable: Make) -> None:
    """A model without completions is ready once an embedding came back."""
    rig = pliable({"extra_args": ["--runner", "pooling"]})
    rig.start()
    rig.wait_state("ready")
    assert '"POST /v1/embeddings HTTP/1.1" 200' in rig.engine_log()
    assert requests(rig, "/pooling") == 0
    assert rig.events("warmup_unsupported") == []


def test_another_model_than_ours_and_no_warm_up(pliable: Make) -> None:
    """An engine that serves another name is not ready; without a warm-up, nothing is generated."""
    rig = pliable({"startup": {"warmup": False}})
    rig.config["engine"]["vllm"]["launcher"] = rig.launch_script('exec "$@" $MORE')
    rig.simulate(MORE="--served-model-name other/name")
    rig.start()
    hurdle(rig, "other/name")
    not_advertised(rig)
    assert len(rig.events("model_missing")) == 1
    relaunch(rig, completions_status=500)
    assert requests(rig, "/v1/completions") == 0
    _, text = rig.ask_engine("/metrics")
    tokens = [line for line in text.decode().splitlines() if line.startswith("vllm:generation_tokens_total")]
    assert float(tokens[0].rpartition(" ")[2]) == 0


def test_the_warm_up_has_the_time_of_the_start(pliable: Make) -> None:
    """A first token slower than any probe's timeout is waited for, by one request; the start's own limit ends it."""
    rig = pliable(
        {"startup": {"timeout": 5}, "probe": {"timeout": 0.2}, "restart": {"min_backoff": 2, "max_backoff": 2}}
    )
    rig.simulate(prefill_seconds=0.6)
    rig.start()
    rig.wait_state("ready")
    assert requests(rig, "/v1/completions") == 1

    rig.simulate(prefill_seconds=60)
    before = rig.status()["generation"]
    rig.post("restart")
    rig.wait_state("backoff")
    rig.simulate()
    status = rig.wait_state("ready", after=before)
    assert status["last_exit"]["reason"] == "startup_stall"
    assert rig.metric('vllm_supervisor_restarts_total{reason="startup_stall"}') == 1
    assert requests(rig, "/v1/completions") <= 3, "the stalled one may be cut off before it is logged"


@contextmanager
def imposter(port: int, model: str) -> Iterator[None]:
    """Serve as vLLM would, at its port."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say({"data": [{"id": model}]})

        def do_POST(self) -> None:
            self._say({"choices": [{"text": "x"}]})

        def _say(self, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_another_process_at_the_port(pliable: Make) -> None:
    """A port that was free before the launch and is answered by a stranger later makes nobody ready."""
    rig = pliable()
    rig.simulate(load_seconds=60)
    rig.start()
    rig.until(lambda: "Starting to load model" in rig.engine_log(), what="the engine loads")
    with imposter(rig.port, "demo/model"):
        hurdle(rig, "served by another process")
        not_advertised(rig)
        assert len(rig.events("foreign_listener")) == 1
        rig.post("restart")
        status = rig.wait_state("backoff")
        assert status["blocker"]["kind"] == "port"
    rig.simulate()
    rig.wait_state("ready")
    assert [event["after"] for event in rig.events("phase_changed")].count("ready") == 1
