"""`doctor`: what it prints and how it ends, on the simulator's configuration and on a host with two fake GPUs."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.hosts import H100, environment, runtime, script
from tests.cli.fake_daemon import fake_daemon, state
from tests.ports import free_port
from vllm_supervisor.cli.main import main

DEMO = Path(__file__).parents[2] / "etc/demo.yaml"
OF_THIS_HOST = ("open-files", "locked-memory", "processes", "clock", "disk", "shm")
"""Checks whose results are those of the machine that the tests run on."""

GPU_HOST = """\
engine:
  vllm:
    launcher: [vllm, serve]
    model: meta-llama/Llama-3.1-70B-Instruct
    host: 0.0.0.0
    port: {port}
    extra_args: [-tp, "2", --gpu-memory-utilization, "0.95", --quantization, fp8, --disable-log-stats]
    env: {{PATH: "{tmp}/v/bin:{tmp}/bin:/usr/bin:/bin", VLLM_USE_V1: "1", HF_HOME: {tmp}/hf}}
    log_file: {tmp}/vllm.log
control: {{socket: {tmp}/s}}
state_dir: {tmp}/state
"""


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    return free_port()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this shell's own dealings with vLLM and the Hub."""
    for name in list(os.environ):
        if name.startswith(
            ("VLLM", "HF_", "HUGGING", "CUDA", "TRANSFORMERS", "TMP", "TEMP", "TRITON", "TORCH", "XDG_")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")


@pytest.fixture
def gpu_host(tmp_path: Path, port: int) -> Path:
    """The configuration of a host with two H100, one of them busy, and a vLLM for CUDA 12."""
    environment(tmp_path / "v")
    runtime(tmp_path / "v", "cuda_runtime", "12")
    script(tmp_path / "bin/nvidia-smi", H100)
    path = tmp_path / "config.yaml"
    path.write_text(GPU_HOST.format(tmp=tmp_path, port=port))
    return path


def shown(out: str, **names: object) -> list[str]:
    """The lines of a report without those of this host, and names for what differs from run to run."""
    lines, hidden = [], False
    for whole in out.splitlines():
        hidden = whole[6:].startswith(OF_THIS_HOST) or (hidden and whole.lstrip().startswith("->"))
        line = whole
        for name, text in names.items():
            line = line.replace(str(text), name.upper())
        if not hidden:
            lines.append(line.rstrip())
    return lines[:-1]


DEMO_REPORT = """\
ok    configuration    DEMO
ok    launcher         BIN/vllm-supervisor
ok    attention-heads  not needed: tensor-parallel size 1
ok    port             127.0.0.1 port PORT is free
ok    exposure         127.0.0.1: only this host
ok    folders          log, state, control socket, temporary files: writable by USER
ok    journal          not used: vLLM's log is a file
ok    vllm-port        VLLM_PORT is not set
ok    vllm-use-v1      VLLM_USE_V1 is not set
ok    tmpdir           /tmp
skip  vllm, torch-cuda, libcudart, gpus, utilization, gpu-memory, gpu-holders, other-instances, capability, fp8, \
tensor-parallel, gpu-models, gpu-links, shm, model, token, revision, disk: the launcher is the built-in simulator
"""


def user() -> str:
    """Who runs the tests."""
    import pwd  # noqa: PLC0415 - one call

    return pwd.getpwuid(os.geteuid()).pw_name


def test_no_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int
) -> None:
    """Rights to execute are not enough: a download that went wrong has them too."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    broken = tmp_path / "vllm"
    broken.write_bytes(b"\x93\x00<html>")
    broken.chmod(0o755)
    sets = ["--set", f"engine.vllm.port={port}", "--set", f"engine.vllm.launcher=[{broken}, serve]"]
    main(["doctor", "-c", str(DEMO), *sets])
    assert f"warn  launcher         {broken} begins neither with #!" in capsys.readouterr().out


def test_the_simulator(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int
) -> None:
    """Without GPU and vLLM all is well, and what was not looked at is one line with the reason; nothing is made."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert main(["doctor", "-c", str(DEMO), "--set", f"engine.vllm.port={port}"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    bin_ = Path(sys.executable).parent
    assert shown(out, demo=DEMO, bin=bin_, port=port, user=user()) == DEMO_REPORT.splitlines()
    assert list(tmp_path.iterdir()) == []


GPU_REPORT = """\
warn  configuration    TMP/config.yaml:7: engine.vllm.extra_args[6]: --disable-log-stats leaves vLLM without the \
counters by which a stuck engine is found
                       -> remove it
ok    launcher         TMP/v/bin/vllm
ok    vllm             0.32.0 (TMP/v/bin/python)
ok    torch-cuda       torch 2.9.0 is built for CUDA 12.8, driver 570.133.20 offers 12.8
ok    libcudart        libcudart.so.12 is TMP/v/lib/SITE/nvidia/cuda_runtime/lib/libcudart.so.12
ok    gpus             GPU 0 NVIDIA H100 80GB HBM3, 79.6 GiB; GPU 1 NVIDIA H100 80GB HBM3, 79.6 GiB
warn  utilization      --gpu-memory-utilization is 0.95: 0.95 and up leaves too little for what CUDA takes beside it
                       -> set --gpu-memory-utilization 0.92 in engine.vllm.extra_args
fail  gpu-memory       GPU 1: 58.6 GiB of 79.6 GiB free, 75.7 GiB (0.95) wanted
                       -> free it (see gpu-holders), or set --gpu-memory-utilization 0.72
warn  gpu-holders      GPU 1: pid 4242 (/opt/venv/bin/python3) holds 20.0 GiB
                       -> end it (`kill 4242`) if it should not be there, or choose others with CUDA_VISIBLE_DEVICES \
in engine.vllm.env
warn  gpu-holders      GPU 1: pid 4243 (VLLM::EngineCore) holds memory
                       -> end it (`kill 4243`) if it should not be there, or choose others with CUDA_VISIBLE_DEVICES \
in engine.vllm.env
fail  other-instances  GPU 1: 0.95 here and 0.92 of pid 4243 add up to 1.87, above 0.95
                       -> lower --gpu-memory-utilization so that all of them stay at or below 0.95, or choose others \
with CUDA_VISIBLE_DEVICES in engine.vllm.env
ok    capability       9.0, quantization fp8 needs 7.5
ok    fp8              quantization fp8, 9.0
ok    tensor-parallel  2 of 2 GPUs
ok    gpu-models       NVIDIA H100 80GB HBM3
ok    gpu-links        NVLink between all of them
ok    port             0.0.0.0 port PORT is free
warn  exposure         vLLM listens on every address of this host without a key: anyone can use it
                       -> set engine.vllm.api_key: ${credential:vllm-key}, or engine.vllm.host: 127.0.0.1 behind a proxy
ok    model            meta-llama/Llama-3.1-70B-Instruct will be downloaded to TMP/hf/hub
fail  token            meta-llama/Llama-3.1-70B-Instruct is gated and there is no token for the Hub: the download ends \
with 401
                       -> set engine.vllm.env.HF_TOKEN: ${credential:hf-token}, or run `hf auth login` as the \
service's user
warn  revision         no --revision: a push to the model's repository changes what the next restart loads
                       -> set --revision COMMIT in engine.vllm.extra_args (the commit is on the model's page, under \
Files)
ok    folders          log, state, control socket, temporary files, models, vLLM's cache, Triton's cache: writable by \
USER
ok    journal          not used: vLLM's log is a file
ok    vllm-port        VLLM_PORT is not set
warn  vllm-use-v1      VLLM_USE_V1=1 is a switch of older versions
                       -> remove VLLM_USE_V1 from engine.vllm.env and from the daemon's environment
ok    tmpdir           /tmp
skip  attention-heads: config.json is not here yet
"""


def test_two_gpus(capsys: pytest.CaptureFixture[str], gpu_host: Path, tmp_path: Path, port: int) -> None:
    """One line a check with its remedy; something is wrong, so the status is 1; the holder's key is not shown."""
    assert main(["doctor", "-c", str(gpu_host)]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "sk-secret" not in out
    site = f"python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    assert shown(out, tmp=tmp_path, site=site, port=port, user=f"by {user()}") == [
        line.replace("writable by USER", "writable USER") for line in GPU_REPORT.splitlines()
    ]


def test_json(capsys: pytest.CaptureFixture[str], gpu_host: Path) -> None:
    """The same, for programs: every check with all four fields, and the counts."""
    assert main(["doctor", "--json", "-c", str(gpu_host)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["checks", "summary"]
    checks: list[dict[str, Any]] = report["checks"]
    assert all(list(check) == ["name", "result", "detail", "remedy"] for check in checks)
    assert all(bool(check["remedy"]) is (check["result"] in {"warn", "fail"}) for check in checks)
    assert sum(report["summary"].values()) == len(checks)
    assert list(report["summary"]) == ["ok", "warn", "fail", "skip"]
    assert {check["name"] for check in checks if check["result"] == "fail"} >= {
        "gpu-memory",
        "other-instances",
        "token",
    }


def test_a_bad_configuration(capsys: pytest.CaptureFixture[str], gpu_host: Path) -> None:
    """As `check` says it: one line each, status 2, nothing is looked at."""
    words = ("-c", str(gpu_host), "--set", "engine.vllm.prot=1")
    assert main(["doctor", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "vllm-supervisor: --set: engine.vllm.prot: is not a known key; did you mean `port`?\n"
    assert main(["doctor", "--json", *words]) == 2
    assert json.loads(capsys.readouterr().out)["problems"][0]["key"] == "engine.vllm.prot"


def test_no_launcher(capsys: pytest.CaptureFixture[str], gpu_host: Path) -> None:
    """A host without vLLM is one finding, and the rest is looked at all the same."""
    assert main(["doctor", "-c", str(gpu_host), "--set", "engine.vllm.launcher=nope"]) == 1
    out = capsys.readouterr().out
    assert "fail  launcher         the launcher 'nope' is not on the PATH searched: " in out
    assert "skip  vllm, torch-cuda, libcudart: the launcher cannot be run" in out
    assert "fail  gpu-memory" in out


def test_a_port_that_is_held(capsys: pytest.CaptureFixture[str], gpu_host: Path, tmp_path: Path, port: int) -> None:
    """By somebody it is wrong, by the engine of this configuration's own daemon it is as it should be."""
    (tmp_path / "d").mkdir()
    with socket.socket() as holder, fake_daemon(tmp_path / "d") as daemon:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        holder.listen()
        main(["doctor", "-c", str(gpu_host)])
        assert f"fail  port             0.0.0.0:{port} is held by pid {os.getpid()}" in capsys.readouterr().out
        daemon.statuses = [state("ready", pid=4243)]
        main(["doctor", "-c", str(gpu_host), "--socket", daemon.path])
        out = capsys.readouterr().out
        assert f"ok    port             {port} is held by this instance's own engine" in out
        daemon.statuses = [state("backoff", pid=None)]
        main(["doctor", "-c", str(gpu_host), "--socket", daemon.path])
        assert "fail  port" in capsys.readouterr().out


def test_with_the_eyes_of_the_service(capsys: pytest.CaptureFixture[str], gpu_host: Path, tmp_path: Path) -> None:
    """`--unit` takes the environment, the limits and the credentials of the unit, not those of this shell."""
    (tmp_path / "key").write_text("sk-very-secret\n")
    shown_by_systemd = "LoadState=loaded\nUser=nobody\nEnvironment=VLLM_PORT=tcp://1.2.3.4:80\nLimitNOFILE=1024\n"
    shown_by_systemd += f"LoadCredential=key:{tmp_path}/key\n"
    script(tmp_path / "bin/systemctl", f"cat <<'EOF'\n{shown_by_systemd}EOF\n")
    key = "engine.vllm.api_key=${credential:key}"
    assert main(["doctor", "-c", str(gpu_host), "--unit", "vllm-supervisor", "--set", key]) == 1
    out = capsys.readouterr().out
    assert "ok    exposure         0.0.0.0, with a key" in out
    assert "sk-very-secret" not in out
    assert "warn  open-files       1024 open files (of vllm-supervisor.service)" in out
    assert "fail  vllm-port        VLLM_PORT=tcp://1.2.3.4:80 ends vLLM's start" in out
    (tmp_path / "bin/systemctl").write_text("#!/bin/sh\necho LoadState=not-found\n")
    assert main(["doctor", "-c", str(gpu_host), "--unit", "nope"]) == 1
    assert capsys.readouterr().err == (
        "vllm-supervisor: unit nope: systemd does not know it; install it, or leave --unit away\n"
    )


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["doctor", "--unit", "vllm-supervisor@no-such"], "no-such.yaml"),
        (["doctor", "--unit", "vllm-supervisor@no.such.service"], "no.such.yaml"),
        (["doctor", "--instance", "no-such"], "no-such.yaml"),
        (["check", "--instance", "no-such"], "no-such.yaml"),
        (["check", "--instance", "no-such", "--against-running"], "no-such.yaml"),
        (["size", "--instance", "no-such"], "no-such.yaml"),
    ],
)
def test_an_instance_is_looked_at_by_its_own_file(
    capsys: pytest.CaptureFixture[str], gpu_host: Path, tmp_path: Path, words: list[str], read: str
) -> None:
    """The one that its unit reads, never the plain service's in its place; where there is none, it is named."""
    del gpu_host  # its PATH alone is wanted
    asked = tmp_path / "asked"
    script(tmp_path / "bin/systemctl", f'echo "$2" >> {asked}; printf "LoadState=loaded\\nUser=nobody\\n"\n')
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(
        f"vllm-supervisor: /etc/vllm-supervisor/{read}: cannot be read: No such file or directory; "
    )
    if words[0] == "doctor":
        assert set(asked.read_text().splitlines()) == {f"vllm-supervisor@{read.removesuffix('.yaml')}.service"}


def test_a_file_named_beside_an_instance_wins(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`-c` says what is read; a name with a slash is none; and by hand no instance is run on another file."""
    assert main(["check", "--instance", "small", "-c", str(tmp_path / "mine.yaml")]) == 2
    assert f"{tmp_path}/mine.yaml: cannot be read" in capsys.readouterr().err
    assert main(["run", "--instance", "small"]) == 2
    assert "`systemctl start vllm-supervisor@small`" in capsys.readouterr().err
    assert main(["check", "--instance", "../small"]) == 1
    assert "is not a name" in capsys.readouterr().err
