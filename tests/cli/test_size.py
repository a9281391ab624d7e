"""`size`: what it prints and how it ends, for models on disk, cards by name, this host's cards, and bad input."""

import json
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.adapters.hosts import H100, environment, script
from tests.adapters.test_checkpoint import tensors
from tests.domain.capacity import models
from vllm_supervisor.adapters.statefiles.measurements import MeasurementFile
from vllm_supervisor.cli.main import main
from vllm_supervisor.config.launch import launch_spec
from vllm_supervisor.config.load import load
from vllm_supervisor.domain.capacity.measured import Key, Measured
from vllm_supervisor.domain.startup import arguments_digest

GIB = 1 << 30
KEPT = ("VLLM_BIN", "VLLM_TINY_MODEL", "VLLM_FACTS")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this shell's own dealings with vLLM and the Hub, and no GPU but a test's own."""
    for name in list(os.environ):
        if name.startswith(("VLLM_", "HF_", "HUGGING", "CUDA", "XDG_", "STATE_")) and name not in KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)


def written(tmp_path: Path, config: models.Config, name: str = "config.json") -> str:
    """A configuration on disk."""
    (tmp_path / name).write_text(json.dumps(config))
    return name


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The status of `size WORDS --json`, and what it printed."""
    status = main(["size", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


LLAMA = """\
config.json: LlamaForCausalLM, 8.0 billion parameters, 16 bit
on 1 GPU (L40S, 44.4 GiB), as vLLM 0.33 counts; figures are of one GPU

weights                 15.0 GiB   computed from the configuration
beside them              1.1 GiB   0.7 to 2.2; activations, CUDA graphs, NCCL: an estimate
vLLM takes              40.0 GiB   0.9 of 44.4 GiB
KV cache                23.9 GiB   22.8 to 24.3
a token                128.0 KiB   16-bit cache
tokens                   195,536   KV cache size, as vLLM prints it
requests at once           23.87   of 8,192 tokens each (--max-model-len)
                              68   of 2,048 in and 512 out, at 90% of the cache, up to --max-num-seqs 256

fits
"""


def test_a_model_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights, what is beside them, the cache, tokens, requests: in the order in which memory goes."""
    name = written(tmp_path, models.LLAMA_3_8B)
    assert main(["size", name, "--gpu-memory", "L40S", "--gpu-memory-utilization", "0.9"]) == 0
    assert capsys.readouterr().out == LLAMA


TOO_LARGE = """\
config.json: LlamaForCausalLM, 70.6 billion parameters, 16 bit
on 1 GPU (H100, 79.2 GiB), as vLLM 0.33 counts; figures are of one GPU

weights                131.4 GiB   computed from the configuration
beside them              3.6 GiB   2.1 to 6.4; activations, CUDA graphs, NCCL: an estimate
vLLM takes              72.8 GiB   0.92 of 79.2 GiB
KV cache                    none   62.2 GiB are missing already
a token                320.0 KiB   16-bit cache

does not fit: 62.2 GiB are missing on each GPU

what would help                            weights  KV cache        tokens  requests
a 4-bit checkpoint (AWQ or GPTQ)            37.0 G    32.2 G       105,584     12.89
--tensor-parallel-size 2                    65.7 G     4.0 G        26,384      3.22   1 more of this GPU
--quantization fp8, or an FP8 checkpoint    67.7 G     1.6 G         5,216      0.64   not enough alone
"""


def test_a_model_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, what is missing, and what would help with its figures."""
    assert main(["size", written(tmp_path, models.LLAMA_3_70B), "--gpu-memory", "H100"]) == 1
    assert capsys.readouterr().out == TOO_LARGE


def test_a_cache_of_given_size_is_looked_at_beside_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 where both are more than the card has, and how much less would do."""
    words = ["size", written(tmp_path, models.LLAMA_3_8B), "--gpu-memory", "24GiB", "--kv-cache-memory-bytes", "20GiB"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "does not fit: weights, cache and what is beside them take" in out
    assert re.search(r"^--kv-cache-memory-bytes \d+ ", out, re.MULTILINE)


def test_the_figures_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is promised is there, with what was assumed; 70B on four GPUs is 80 KiB a token and GPU."""
    name = written(tmp_path, models.LLAMA_3_70B)
    status, found = asked(capsys, name, "--gpu-memory", "H100", "--gpus", "4", "--context", "4000", "--output", "96")
    assert status == 0
    assert found["fits"] is True
    assert found["kv_bytes_per_token"] == 80 << 10
    assert found["max_concurrency"] == pytest.approx(found["max_tokens"] / 8192, abs=0.01)
    assert found["kv_budget_bytes"] // (80 << 10) // 16 * 16 == found["max_tokens"]
    assert found["weights_bytes"] == pytest.approx(141_107_412_992 / 4, rel=0.01)
    assert found["realistic"]["context"] == 4000
    assert found["realistic"]["concurrency"] == int(found["max_tokens"] // 16 * 0.9 / 256)
    assert found["assumed"] | {"gpu": "H100", "tensor_parallel_size": 4, "max_model_len": 8192} == found["assumed"]


def test_where_no_figure_per_token_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hybrid: null for programs, the words for people, and tokens and requests at the context all the same."""
    name = written(tmp_path, models.QWEN_3_NEXT)
    status, found = asked(capsys, name, "--gpu-memory", "H200", "--gpus", "2", "--max-model-len", "32k")
    assert status == 0
    assert found["kv_bytes_per_token"] is None
    assert found["assumed"]["max_model_len"] == 32000
    assert found["max_tokens"] == pytest.approx(found["max_concurrency"] * 32000, rel=1e-3)
    assert main(["size", name, "--gpu-memory", "H200", "--gpus", "2"]) == 0
    assert "layers with a state have no figure per token" in capsys.readouterr().out


def test_a_model_that_fits_one_stays_on_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Copies serve more than one model spread thin; and the draft layer of a checkpoint is not counted."""
    assert main(["size", written(tmp_path, models.LLAMA_3_8B), "--gpu-memory", "L40S", "--gpus", "4"]) == 0
    out = capsys.readouterr().out
    assert "on 1 of 4 GPUs" in out
    assert "It fits one GPU: 4 copies on 4 GPUs serve more" in out
    assert main(["size", written(tmp_path, models.DEEPSEEK_V3), "--gpu-memory", "H200", "--gpus", "8"]) == 0
    out = capsys.readouterr().out
    assert "37.6 billion of them active" in out
    assert "14.3 GiB more (draft layers) are not loaded" in out


CONFIGURED = """\
engine:
  vllm:
    launcher: [vllm, serve]
    model: {model}
    extra_args: [-tp=2, --max_model_len, "4096", --gpu-memory-utilization=0.8, --kv-cache-dtype, fp8]
    env: {{PATH: "{tmp}/v/bin:{tmp}/bin:/usr/bin:/bin"}}
    log_file: {tmp}/vllm.log
state_dir: {tmp}/state
"""


def configured(tmp_path: Path) -> Path:
    """A configuration of vLLM 0.19 for a host with two H100."""
    environment(tmp_path / "v", vllm="0.19.0")
    script(tmp_path / "bin/nvidia-smi", H100)
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(models.LLAMA_3_8B))
    path = tmp_path / "my.yaml"
    path.write_text(CONFIGURED.format(tmp=tmp_path, model=model))
    return path


def test_the_configured_model_on_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM's flags in their spellings, the installed version and the host's cards are read."""
    status, found = asked(capsys, "-c", str(configured(tmp_path)))
    assert status == 0
    assert found["kv_bytes_per_token"] == 32 << 10
    expected = {
        "gpu": "NVIDIA H100 80GB HBM3",
        "gpus": 2,
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.8,
        "max_model_len": 4096,
        "kv_cache_dtype": "fp8",
        "vllm_version": "0.19.0",
    }
    assert found["assumed"] | expected == found["assumed"]


SIDE_BY_SIDE = """\
the last start with these arguments (vLLM 0.19.0), whose figures count above
                       estimated      measured
weights                  7.5 GiB       7.6 GiB
KV cache                54.0 GiB      50.0 GiB
tokens                 1,770,656     1,638,400
of 4,096 at once          432.29        400.00
CUDA graphs                          512.0 MiB
"""


def learnt(tmp_path: Path, path: Path, **changes: str) -> None:
    """Have an earlier start of this configuration remembered."""
    spec = launch_spec(load(path, environ=os.environ).settings, os.environ)
    key = Key(spec.model, arguments_digest(spec.argv), "0.19.0", "2 NVIDIA H100 80GB HBM3")
    figures = Measured(int(7.6 * GIB), 50 * GIB, GIB // 2, 1_638_400, 400.0, 4096)
    (tmp_path / "state").mkdir()
    MeasurementFile(tmp_path / "state", lambda _: None).keep(key._replace(**changes), figures)


def test_what_a_start_measured_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Estimate and measurement stand side by side, and the measurement counts."""
    path = configured(tmp_path)
    learnt(tmp_path, path)
    status, found = asked(capsys, "-c", str(path))
    assert status == 0
    assert (found["weights_bytes"], found["weights_source"]) == (int(7.6 * GIB), "measured")
    assert (found["kv_budget_bytes"], found["max_tokens"], found["max_concurrency"]) == (50 * GIB, 1_638_400, 400.0)
    assert found["measured"]["vllm_version"] == "0.19.0"
    assert found["estimated"]["kv_budget_bytes"] != found["kv_budget_bytes"]
    assert main(["size", "-c", str(path)]) == 0
    assert SIDE_BY_SIDE in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["--max-model-len", "2048"], {}),
        (["--gpu-memory", "H100"], {}),
        ([], {"gpu": "1 NVIDIA L4"}),
        ([], {"vllm_version": "0.18.0"}),
        ([], {"arguments": "others"}),
    ],
    ids=["other length", "other card", "other host", "other version", "other arguments"],
)
def test_what_another_start_measured_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], changes: dict[str, str]
) -> None:
    """Only the same model, arguments, version and GPUs tell anything."""
    path = configured(tmp_path)
    learnt(tmp_path, path, **changes)
    _, found = asked(capsys, "-c", str(path), *words)
    assert found["measured"] is None
    assert found["weights_source"] != "measured"


def test_arguments_go_over_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is asked on the command line holds."""
    path = str(configured(tmp_path))
    _, found = asked(capsys, "-c", path, "--max-model-len", "8192", "-tp", "1", "--gpu-memory", "A100 80")
    assumed = found["assumed"]
    assert (assumed["max_model_len"], assumed["tensor_parallel_size"], assumed["gpu"]) == (8192, 1, "A100 80")
    assert assumed["gpu_memory_utilization"] == 0.8


def test_a_host_without_gpus_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to size for, unless it is named."""
    assert main(["size", written(tmp_path, models.LLAMA_3_8B)]) == 2
    assert "; say what to size for: --gpu-memory H100, or --gpu-memory 80GiB" in capsys.readouterr().err


def test_an_unknown_architecture_may_be_read_like_a_known_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused by itself, and taken for what the operator says it is."""
    name = written(tmp_path, {**models.LLAMA_3_8B, "architectures": ["NewForCausalLM"], "model_type": "new"})
    assert main(["size", name, "--gpu-memory", "H100"]) == 2
    assert capsys.readouterr().err == (
        f"vllm-supervisor: {tmp_path}/config.json: the architecture NewForCausalLM (model_type new) is not known here; "
        "name a model of a known family, or say which it is like with --like MODEL_TYPE "
        "(llama, qwen3_moe, deepseek_v3 …)\n"
    )
    assert main(["size", name, "--gpu-memory", "H100", "--like", "llama"]) == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--gpu-memory", "lots"], "--gpu-memory: 'lots' is neither a size nor a card known here; give a size such as"),
        (["--gpu-memory", "80"], "--gpu-memory: '80' is 80 bytes; write the unit: 80GiB"),
        (["--gpu-memory", "-1GiB"], "expected one argument"),
        (["--gpu-memory=-1GiB"], "--gpu-memory: '-1GiB' is neither a size nor a card"),
        (["--gpu-memory", "0GiB"], "--gpu-memory: '0GiB' is neither a size nor a card"),
        (["--gpus", "0"], "--gpus: '0' is not a number of GPUs; write a whole number above 0"),
        (["--max-model-len", "long"], "--max-model-len: 'long' is not a number above 0; write a whole number"),
        (["--max-model-len", "99999"], "--max-model-len 99999: the model was made for 8192 tokens; use 8192 or less"),
        (["--gpu-memory-utilization", "high"], "--gpu-memory-utilization: 'high' is not a number; write one such as"),
        (["--gpu-memory-utilization", "2"], "--gpu-memory-utilization: 2 is no share; use one such as 0.90"),
        (["--kv-cache-dtype", "fp3"], "--kv-cache-dtype fp3: it is not known here; use one of auto,"),
        (["--quantization", "awq"], "--quantization awq: it needs a checkpoint that is quantized so"),
        (["--kv-cache-memory-bytes", "x"], "--kv-cache-memory-bytes: 'x' is not a size; write one such as 15GiB"),
        (["--vllm-version", "abc"], "--vllm-version: 'abc' is no version; write one such as 0.32.0"),
        (["--dtype", "int4"], "--dtype int4: vLLM does not know it; use one of auto, half, float16, bfloat16"),
        (["--block-size", "17"], "--block-size 17: no attention kernel of vLLM has blocks of so many tokens; use a"),
        (["-tp", "3"], "--tensor-parallel-size 3: 32 attention heads do not divide by it; use one of 1, 2, 4, 8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nonsense_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    """Status 2, what was given, why not, and what to write."""
    card = (
        []
        if any(word.startswith("--gpu-memory") and "util" not in word for word in words)
        else ["--gpu-memory", "H100"]
    )
    assert main(["size", written(tmp_path, models.LLAMA_3_8B), *card, *words]) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.startswith("vllm-supervisor: ")
    assert err.count("\n") == 1


def test_the_headline_tells_the_type_that_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--dtype float32` makes weights and cache twice as large, and says so."""
    assert main(["size", written(tmp_path, models.LLAMA_3_8B), "--gpu-memory", "H100", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    assert "LlamaForCausalLM, 8.0 billion parameters, 32 bit\n" in out
    assert "256.0 KiB   32-bit cache" in out


def test_a_checkpoint_of_another_model_is_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Headers that are far from what the configuration counts are told with both figures."""
    written(tmp_path, models.LLAMA_3_8B)
    tensors(tmp_path / "model.safetensors", {"a": 1 << 20})
    assert main(["size", ".", "--gpu-memory", "H100"]) == 0
    assert "Warning: the checkpoint holds 1.0 MiB, the configuration counts 15.0 GiB: they" in capsys.readouterr().out
    _, found = asked(capsys, ".", "--gpu-memory", "H100")
    assert found["doubtful"]["checkpoint_bytes"] == 1 << 20
    assert found["doubtful"]["counted_bytes"] == pytest.approx(16_060_522_496, rel=0.01)


@pytest.mark.parametrize("known", [True, False], ids=["sized", "refused"])
def test_a_configuration_cannot_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, known: bool
) -> None:
    """Escape sequences, line ends and letters that turn the writing direction are written out."""
    hostile = "Evil\x1b[2J\r\nvllm-supervisor: all is well\u202e\x07"
    kind = "llama" if known else hostile
    name = written(tmp_path, {**models.LLAMA_3_8B, "architectures": [hostile], "model_type": kind})
    assert main(["size", name, "--gpu-memory", "H100"]) == (0 if known else 2)
    out, err = capsys.readouterr()
    assert "Evil\\x1b[2J\\r\\nvllm-supervisor: all is well\\u202e\\x07" in (out if known else err)
    assert all(line.isprintable() for line in (out + err).splitlines())
    assert err.count("\n") == (0 if known else 1)


def test_several_problems_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each, for programs too."""
    name = written(tmp_path, models.LLAMA_3_8B)
    status, found = asked(capsys, name, "--gpu-memory", "T4", "-tp", "3", "--dtype", "bfloat16")
    assert (status, found["ok"], len(found["problems"])) == (2, False, 2)


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("memory", "length"), [("50000000", "1500"), ("1200000", "2048")], ids=["odd figures", "hardly enough"]
)
def test_the_figures_are_those_of_a_real_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: str, length: str
) -> None:
    """Given the same KV cache, tokens and concurrency are those that vLLM prints, to the last digit."""
    program, model = os.environ.get("VLLM_BIN"), os.environ.get("VLLM_TINY_MODEL")
    if not program or not model:
        pytest.skip("needs a real vLLM: VLLM_BIN and VLLM_TINY_MODEL")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    given = ["--kv-cache-memory-bytes", memory, "--max-model-len", length]
    command = [program, "serve", model, "--host", "127.0.0.1", "--port", port, "--enforce-eager", *given]
    printed = _first_line(command, tmp_path / "vllm.log", r"KV cache size: ([\d,]+) tokens, .* request: ([\d.]+)x")
    version = re.search(r"version (\d[\d.]*)", (tmp_path / "vllm.log").read_text())
    assert version is not None
    status, found = asked(capsys, model, *given, "--block-size", "128", "--vllm-version", version[1])
    assert status == 0
    tokens, concurrency = f"{found['max_tokens']:,}", f"{found['max_concurrency']:.2f}"
    assert (tokens, concurrency) == printed.groups()


def _first_line(command: list[str], log: Path, pattern: str) -> re.Match[str]:
    """Start vLLM, wait until it printed a line like this, and end it with its whole session."""
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("wb") as out:
        engine = psutil.Popen(command, stdout=out, stderr=out, env={**os.environ, **quiet})
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and engine.poll() is None:
            if found := re.search(pattern, log.read_text(errors="replace")):
                return found
            time.sleep(0.2)
        pytest.fail(log.read_text(errors="replace")[-3000:])
    finally:
        members = [engine, *engine.children(recursive=True)]
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(members, timeout=30)


LONG = {**models.LLAMA_3_8B, "max_position_embeddings": 131072}


@pytest.mark.parametrize(
    ("config", "words", "status", "said"),
    [
        (models.LLAMA_3_8B, ["--kv-cache-memory-bytes", "4GiB"], 0, ["; no GPU is known, and whether the weights fit"]),
        (models.BERT, ["--gpu-memory", "L4"], 0, ["KV cache                    none   an encoder keeps nothing"]),
        (models.GEMMA_3_27B, ["--gpu-memory", "H100"], 0, [" while all windows see it", "The vision part is counted"]),
        (
            {**models.GEMMA_3_27B, "audio_config": {"hidden_size": 64}}, ["--gpu-memory", "H100"], 0,
            ["Not counted: audio; the configuration does not tell their weights."],
        ),
        (LONG, ["--gpu-memory", "L4"], 1, ["does not fit: one request of 131,072 tokens takes 11."]),
        (
            models.LLAMA_3_8B, ["--gpu-memory", "A100", "--kv-cache-dtype", "fp8"], 0,
            ["A100 80 does not compute in FP8 (Ada, Hopper and later do): it saves memory, not time."],
        ),
        (
            models.LLAMA_3_8B, ["--gpu-memory", "L40S", "--gpus", "2", "--tensor-parallel-size", "2"], 0,
            ["on 2 GPUs (L40S", ", tensor-parallel 2, ", "L40S has no NVLink: tensor parallelism waits for PCIe"],
        ),
        (
            models.LLAMA_3_8B, ["--gpu-memory", "L40S", "--gpus", "2"], 0,
            ["It fits one GPU: 2 copies on 2 GPUs serve more than one copy on all of them."],
        ),
    ],
    ids=["no GPU", "encoder", "windows", "uncounted", "one request", "FP8", "PCIe", "copies"],
)  # fmt: skip
def test_what_is_remarked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: models.Config, words: list[str], status: int,
    said: list[str],
) -> None:  # fmt: skip
    """What an operator would not see in the figures."""
    assert main(["size", written(tmp_path, config), *words]) == status
    out = capsys.readouterr().out
    assert [text for text in said if text not in out] == [], out
