"""Processes, the service, the kernel, vLLM's flags: recorded and real."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.adapters.hosts import script
from vllm_supervisor.adapters.host.kernel import clock_synchronized, shared_memory
from vllm_supervisor.adapters.host.processes import Processes
from vllm_supervisor.adapters.host.service import here, unit
from vllm_supervisor.adapters.host.wanted import flags, wanted
from vllm_supervisor.config.engine import VllmSettings
from vllm_supervisor.domain.doctor.facts import Holder, Limits, Shm, Unknown, Wanted


def process(proc: Path, pid: int, parent: int, session: int, *command: str) -> None:
    """A process in a copy of /proc."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (VLLM::Worker (x)) S {parent} {session} {session} 0 -1 4194560 1 0")
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command))


def test_whose_a_holder_is(tmp_path: Path) -> None:
    """Ours by ancestor or session; another vLLM by the command above it; or just somebody."""
    serve = ("/v/bin/python", "/v/bin/vllm", "serve", "m")
    process(tmp_path, 100, 1, 100, *serve)
    process(tmp_path, 101, 100, 100, "VLLM::EngineCore")
    process(tmp_path, 102, 1, 100, "VLLM::Worker")
    process(tmp_path, 200, 1, 200, *serve, "--gpu_memory_utilization=0.4")
    process(tmp_path, 201, 200, 200, "VLLM::EngineCore")
    process(
        tmp_path, 300, 1, 300, "python", "-m", "vllm.entrypoints.openai.api_server", "--gpu-memory-utilization", "x"
    )
    process(tmp_path, 400, 1, 400, "python", "train.py")
    table = Processes(engine=100, proc=tmp_path)

    def described(pid: int, name: str = "x") -> Holder:
        return table.describe(Holder(pid, name))

    assert described(101).ours
    assert described(102).ours
    assert (described(201).instance, described(201).utilization) == (200, 0.4)
    assert (described(300).instance, described(300).utilization) == (300, None)
    assert described(400) == Holder(400, "x")
    assert described(9999) == Holder(9999, "x")
    assert described(9999, "VLLM::EngineCore").instance == 9999
    assert not replace(table, engine=None).describe(Holder(101, "x")).ours


def test_the_real_process_table() -> None:
    """This very process is read without complaint, and is ours when it is told to be."""
    assert Processes(engine=os.getpid()).describe(Holder(os.getpid(), "pytest")).ours


UNIT = "[Service]\nLoadCredential=vllm-key:/etc/v/key\n#LoadCredential=a:/b\nLoadCredential=b:%h/c\n"
SHOWN = """\
LimitNOFILE=65535
LimitMEMLOCK=infinity
LimitNPROC=96365
LoadState=loaded
User=nobody
Environment="HF_HOME=/var/lib/some where/hf" VLLM_LOG_FILE=/var/log/none-such/vllm.log
PrivateTmp=yes
StateDirectory=none-such
LogsDirectory=none-such
RuntimeDirectory=
"""


def test_a_unit(tmp_path: Path) -> None:
    """User, environment and limits as systemd shows them; folders that it will make count as writable."""
    script(tmp_path / "systemctl", f"case $1 in show) cat <<'EOF'\n{SHOWN}EOF\n;; cat) cat <<'EOF'\n{UNIT}EOF\nesac\n")
    found = unit("vllm-supervisor.service", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert found is not None
    assert (found.user, found.limits) == ("nobody", Limits("of vllm-supervisor.service", 65535, None, 96365))
    assert found.env["HF_HOME"] == "/var/lib/some where/hf"
    assert found.env["STATE_DIRECTORY"] == "/var/lib/none-such"
    assert "RUNTIME_DIRECTORY" not in found.env
    assert found.credentials == {"vllm-key": Path("/etc/v/key")}
    assert found.why_not_writable(Path("/var/log/none-such")) is None
    assert found.why_not_writable(Path("/var/lib/none-such/hf")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to look as another user")
def test_rights_are_those_of_the_service(tmp_path: Path) -> None:
    """What root may write, the service's user may not."""
    script(tmp_path / "systemctl", f"cat <<'EOF'\n{SHOWN}EOF\n")
    found = unit("vllm-supervisor.service", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert found is not None
    assert found.why_not_writable(Path("/tmp/a/b")) is None
    assert found.why_not_writable(Path("/usr/none/such")) == "/usr is not writable"


@pytest.mark.parametrize(
    "body", ["echo LoadState=not-found\n", "exit 1\n", "printf 'LoadState=loaded\\nUser=no-such\\n'\n"]
)
def test_no_unit(tmp_path: Path, body: str) -> None:
    """Unknown to systemd, no systemd, a user that is not there: there is no such service."""
    script(tmp_path / "systemctl", body)
    assert unit("x.service", {"PATH": f"{tmp_path}:/usr/bin:/bin"}) is None
    assert unit("x.service", {"PATH": "/nowhere"}) is None


def test_whoever_runs_it(tmp_path: Path) -> None:
    """Own environment, own limits, own rights."""
    found = here({"A": "1"})
    assert (found.uid, found.env) == (os.geteuid(), {"A": "1"})
    assert found.why_not_writable(tmp_path / "new") is None
    assert found.why_not_writable(Path("/proc/none/such")) is not None or os.geteuid() == 0


def test_the_kernel(tmp_path: Path) -> None:
    """Real answers of the right kind."""
    shm = shared_memory(tmp_path)
    assert isinstance(shm, Shm)
    assert shm.total >= shm.free
    assert isinstance(shared_memory(tmp_path / "none"), Unknown)
    assert clock_synchronized() in {True, False, None}


def test_vllm_flags(tmp_path: Path) -> None:
    """All spellings, the short ones and a `--config` file below them."""
    (tmp_path / "v.yaml").write_text("tensor-parallel-size: 8\nquantization: fp8\nenforce-eager: true\n")
    vllm = VllmSettings(
        model="m",
        cwd=str(tmp_path),
        extra_args=(
            *("--config", "v.yaml", "-tp", "2", "-pp=3", "--gpu_memory_utilization=0.8", "--kv-cache-dtype", "fp8"),
            *("--revision", "abc", "--data-parallel-size", "4", "--data-parallel-size-local", "1"),
        ),
    )
    env = {"VLLM_API_KEY": "k", "TRANSFORMERS_OFFLINE": "yes", "CUDA_VISIBLE_DEVICES": "1"}
    assert wanted(vllm, flags(vllm), env) == Wanted(
        "m",
        has_key=True,
        tensor=2,
        pipeline=3,
        data=1,
        utilization=0.8,
        quantization="fp8",
        kv_cache_dtype="fp8",
        revision="abc",
        offline=True,
        visible_devices="1",
    )
    odd = VllmSettings(model="m", extra_args=("-tp", "many", "--gpu-memory-utilization", "all", "--nnodes"))
    assert wanted(odd, flags(odd), {}) == Wanted("m")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to look as another user")
def test_what_only_root_may_read_is_not_the_services(tmp_path: Path) -> None:
    """A model or a launcher below a folder that is closed to the service is no use to it."""
    script(tmp_path / "systemctl", f"cat <<'EOF'\n{SHOWN}EOF\n")
    found = unit("vllm-supervisor.service", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert found is not None
    closed = script(tmp_path / "closed/program", "")
    closed.parent.chmod(0o700)
    assert here({}).may_use(closed)
    assert not found.may_use(closed)
    assert found.may_use(Path("/usr/bin"))
