"""The simulator against the real thing: whatever it says has the shape of what vLLM 0.32 says."""

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tests.eventually import eventually
from tests.ports import free_port
from tests.simulator.sim import Sim

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

CHAT = [{"role": "user", "content": "hi"}]
USAGE = {"include_usage": True}
ASKED: list[tuple[str, object]] = [
    ("/health", None),
    ("/ping", None),
    ("/version", None),
    ("/load", None),
    ("/v1/models", None),
    ("/nope", None),
    ("/v1/completions", None),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 4}),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 4, "stream": True, "stream_options": USAGE}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 4, "stream": True}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 4, "stream": True, "stream_options": USAGE}),
    ("/v1/completions", {"model": "nope", "prompt": "hi"}),
    ("/v1/chat/completions", {"model": "nope", "messages": CHAT}),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 4000}),
    ("/v1/completions", {"model": "a"}),
    ("/v1/embeddings", {"input": "hi"}),
    ("/pooling", {"input": "hi"}),
    ("/sleep", {}),
]


def shape(value: object) -> object:
    """Reduce JSON to its keys and kinds: what a client relies on."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def answer(port: int, path: str, body: object) -> tuple[int, str, bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"} if data else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers.get("content-type", ""), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get("content-type", ""), error.read()


def reduced(body: bytes, kind: str) -> object:
    """Return the shape of a body; of a stream, the distinct shapes of its events in order of appearance."""
    if kind.startswith("text/event-stream"):
        shapes: list[object] = []
        for block in body.decode().split("\n\n"):
            data = block.removeprefix("data: ")
            found = shape(json.loads(data)) if data.startswith("{") else data
            if found not in shapes:
                shapes.append(found)
        return shapes
    return shape(json.loads(body)) if kind.startswith("application/json") else body


def series(exposition: bytes) -> dict[str, frozenset[str]]:
    """Return the label names of each series."""
    found = {}
    for line in exposition.decode().splitlines():
        if line and not line.startswith("#"):
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            found[name] = frozenset(re.findall(r'[{,](\w+)="', line))
    return found


@pytest.fixture(scope="module")
def real_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real vLLM, ready."""
    binary, model = os.environ.get("VLLM_BIN"), os.environ.get("VLLM_TINY_MODEL")
    if not binary or not model:
        pytest.skip("needs VLLM_BIN and VLLM_TINY_MODEL")
    port = free_port()
    env = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }
    flags = ["--enforce-eager", "--dtype", "float32", "--max-model-len", "1024", "--served-model-name", "a", "b"]
    log = tmp_path_factory.mktemp("real") / "vllm.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [binary, "serve", model, "--host", "127.0.0.1", "--port", str(port), *flags],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
    try:
        eventually(lambda: _up(process, port), within=300, every=0.5, what=f"vLLM ready; see {log}")
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            _kill_group(process.pid)
            process.wait(30)


def _up(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "vLLM ended while starting"
    try:
        return answer(port, "/health", None)[0] == 200
    except OSError:
        return False


def _kill_group(pgid: int) -> None:
    try:
        os.killpg(pgid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_answers_have_vllms_shape(real_port: int, launch: Callable[..., Sim]) -> None:
    """Status, content type, keys and kinds of every answer are the same on both."""
    sim = launch("--max-model-len", "1024", "--served-model-name", "a", "b").ready()
    different = []
    for path, body in ASKED:
        real, simulated = answer(real_port, path, body), answer(sim.port, path, body)
        if real[:2] != simulated[:2] or reduced(real[2], real[1]) != reduced(simulated[2], simulated[1]):
            different.append((path, body, real, simulated))
    assert not different


def test_series_are_vllms(real_port: int, launch: Callable[..., Sim]) -> None:
    """Every series of the simulator exists in vLLM with the same labels (the cache's labels: a part of vLLM's)."""
    sim = launch("--served-model-name", "a", "b").ready()
    for port in (real_port, sim.port):
        answer(port, "/v1/completions", {"prompt": "hi", "max_tokens": 2})
    real, simulated = (answer(port, "/metrics", None) for port in (real_port, sim.port))
    assert real[:2] == simulated[:2]
    theirs, ours = series(real[2]), series(simulated[2])
    assert set(ours) <= set(theirs)
    assert ours.pop("vllm:cache_config_info") <= theirs["vllm:cache_config_info"]
    assert ours == {name: theirs[name] for name in ours}
