"""`install-vllm` end to end: real environments, wheels of a few lines, a stand-in for uv and for nvidia-smi."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli import fake_uv, wheels
from tests.eventually import eventually
from tests.proc import alive
from vllm_supervisor.cli.main import main

CARD = "NVIDIA GeForce RTX 5090, {driver}, 12.0"
SMI = """#!/bin/sh
case "$1" in
  --query-gpu=*) echo "{row}" ;;
  *) echo "| NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: {cuda}     |" ;;
esac
"""
COMMAND = [sys.executable, "-m", "vllm_supervisor", "install-vllm"]


@dataclass(frozen=True)
class Lab:
    """A host with a card, a folder of wheels for each of torch's builds, and a place to install to."""

    root: Path

    @property
    def link(self) -> Path:
        return self.root / "vllm"

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    @property
    def builds(self) -> list[Path]:
        folder = self.root / "vllm.builds"
        return sorted(folder.iterdir()) if folder.exists() else []

    def card(self, driver: str = "580.65.06", cuda: str = "13.0", row: str = CARD) -> None:
        script = self.root / "bin/nvidia-smi"
        script.write_text(SMI.format(row=row.format(driver=driver), driver=driver, cuda=cuda))
        script.chmod(0o755)

    def offer(self, backend: str, cuda: str | None, version: str, wants: int, *, loads: bool = True) -> Path:
        folder = self.wheels / backend
        shutil.rmtree(folder, ignore_errors=True)
        wheels.torch(folder, cuda)
        wheels.vllm(folder, version, wants, loads=loads)
        return folder

    def calls(self) -> list[str]:
        path = self.wheels / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def serves(self) -> str:
        """Run what a daemon would launch."""
        done = subprocess.run([self.link / "bin/vllm"], capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    def tree(self) -> dict[str, object]:
        """Return everything below the place, to see whether it changed."""
        paths = [path for path in self.root.rglob("*") if self.wheels not in path.parents and path != self.wheels]
        return {str(path): path.readlink() if path.is_symlink() else path.lstat().st_mtime_ns for path in paths}


@pytest.fixture
def real_uv() -> str:
    found = shutil.which("uv")
    if found is None:
        pytest.skip("uv is not installed on this host")
    return found


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Return a host with an RTX 5090, driver 580, and a uv that knows vLLM 0.33.0 on cu130."""
    lab = Lab(tmp_path)
    (tmp_path / "bin").mkdir()
    lab.card()
    uv = tmp_path / "bin/uv"
    uv.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_uv.__file__} "$@"\n')
    uv.chmod(0o755)
    lab.offer("cu130", "13.0", "0.33.0", 13)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_UV_WHEELS", str(lab.wheels))
    monkeypatch.delenv("VLLM_PIP_ARGS", raising=False)
    monkeypatch.delenv("UV_PYTHON", raising=False)
    return lab


def install(lab: Lab, *words: str) -> int:
    return main(["install-vllm", "--into", str(lab.link), *words])


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error, which is one line, the last one."""
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("vllm-supervisor: ")]
    assert lines == captured.err.splitlines()[-1:]
    assert "Traceback" not in captured.err
    return lines[0]


def test_a_first_installation(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """The build for the card is made by uv, checked, and put into use; the line for the configuration is printed."""
    assert install(lab) == 0
    captured = capsys.readouterr()
    assert captured.out == (
        f"vLLM 0.33.0 with torch 2.13.0+cu130 is in {lab.link}\nlauncher: [{lab.link}/bin/vllm, serve]\n"
    )
    assert "building vllm on torch for cu130" in captured.err
    assert "compute capability 12.0" in captured.err
    (build,) = lab.builds
    assert lab.link.readlink() == Path("vllm.builds", build.name)
    assert lab.serves() == "vLLM"
    make, put = lab.calls()
    assert make == f"venv --quiet --python {sys.executable} {build}"
    assert put == f"pip install --python {build}/bin/python --torch-backend cu130 vllm"


def test_again_keeps_one_to_go_back_to(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run builds anew; the one before stays, with the command that puts it back; older ones go."""
    seen: list[Path] = []
    for version in ("0.33.0", "0.33.1", "0.33.2"):
        lab.offer("cu130", "13.0", version, 13)
        assert install(lab, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert told["vllm"] == version
        assert told["previous"] == (str(seen[-1]) if seen else None)
        seen.append(lab.link.resolve())
        assert lab.builds == sorted(seen[-2:])
    assert install(lab, "--version", "0.33.2") == 0
    back = capsys.readouterr().out.splitlines()[-1].removeprefix("the way back: ")
    subprocess.run(back, shell=True, check=True)
    assert lab.link.resolve() == seen[-1]
    assert install(lab) == 0
    assert seen[-1] in lab.builds


def test_a_failing_import_changes_nothing(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the one in use nor what lies beside it; both tries are named in the one line."""
    assert install(lab) == 0
    before = lab.tree()
    capsys.readouterr()
    for backend in ("cu130", "cu129"):
        wheels.vllm(lab.wheels / backend, "0.33.0", 13, body="raise RuntimeError('cannot\\nwork')")
        wheels.torch(lab.wheels / backend, "13.0")
    assert install(lab) == 1
    said = error_of(capsys)
    why = "the check importing it fails: RuntimeError: cannot work"
    assert f"vllm on torch for cu130: {why}; vllm<0.20 on torch for cu129: {why}; {lab.link} is as it was" in said
    after = lab.tree()
    folder = str(lab.root / "vllm.builds")
    assert {**after, folder: 0} == {**before, folder: 0}
    assert lab.serves() == "vLLM"


def test_a_failing_first_installation_leaves_no_trace(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even an empty directory."""
    for backend in ("cu130", "cu129"):
        (lab.wheels / backend).mkdir(exist_ok=True)
        (lab.wheels / backend / "fails").touch()
    before = lab.tree()
    assert main(["install-vllm", "--into", str(lab.root / "a/b/vllm")]) == 1
    assert "uv ended with status 1: No solution found when resolving dependencies" in error_of(capsys)
    assert lab.tree() == before


def test_a_mismatch_falls_back_to_cu129(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """A vLLM for CUDA 12 that got torch for CUDA 13 is found out, really by the loader; cu129 is taken instead."""
    lab.offer("cu130", "13.0", "0.19.1", 12, loads=False)
    lab.offer("cu129", "12.9", "0.19.1", 12)
    assert install(lab, "--version", "0.19.1", "--json") == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["torch_backend"], told["torch_cuda"]) == ("cu129", "12.9")
    (failed,) = told["failed"]
    assert "vLLM's extension wants libcudart.so.12, and torch 2.13.0+cu130 brings CUDA 13.0" in failed
    assert f"not usable: {failed}" in captured.err
    assert len(lab.builds) == 1
    assert [call.partition("--torch-backend ")[2] for call in lab.calls()[1::2]] == [
        "cu130 vllm==0.19.1",
        "cu129 vllm==0.19.1",
    ]


def test_what_the_loader_says_is_passed_on(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """The library exists nowhere: a runtime that was left out of the environment, or a broken download."""
    for backend in ("cu130", "cu129"):
        lab.offer(backend, "99.0", "0.33.0", 99, loads=False)
    assert install(lab) == 1
    assert "importing it fails: ImportError: libcudart.so.99: cannot open shared object file" in error_of(capsys)


def test_no_command(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """An environment without bin/vllm is nothing to launch."""
    for backend in ("cu130", "cu129"):
        lab.offer(backend, "13.0", "0.33.0", 13)
        wheels.vllm(lab.wheels / backend, "0.33.0", 13, script=False)
    assert install(lab) == 1
    assert "it has no command bin/vllm" in error_of(capsys)


def test_an_old_driver_stops_before_anything_is_changed(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the card, what it needs and which driver brings it; also with --dry-run."""
    lab.card("575.57.08", "12.9")
    before = lab.tree()
    for words in ([], ["--dry-run"]):
        assert install(lab, *words) == 1
        assert error_of(capsys) == (
            "vllm-supervisor: install-vllm: NVIDIA GeForce RTX 5090 (compute capability 12.0) needs a driver that "
            "offers CUDA 13.0, and driver 575.57.08 offers 12.9; install NVIDIA driver 580 or later; "
            "nothing was changed"
        )
    assert lab.tree() == before
    assert lab.calls() == []


def test_dry_run(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """What would run, into what, and why; nothing is run and nothing is made, whether or not something is in use."""
    for already in (False, True):
        before = lab.tree()
        calls = lab.calls()
        assert install(lab, "--dry-run") == 0
        out = capsys.readouterr().out
        assert "card       NVIDIA GeForce RTX 5090 (compute capability 12.0)\n" in out
        assert "driver     580.65.06, offers CUDA 13.0\n" in out
        assert "because    compute capability 12.0 and up needs torch for CUDA 13\n" in out
        assert "--torch-backend cu130 vllm\n" in out
        assert "or else    " in out
        assert "--torch-backend cu129 'vllm<0.20'\n" in out
        assert f"launcher   [{lab.link}/bin/vllm, serve]\nnothing was changed\n" in out
        assert ("kept for a way back" in out) == already
        assert install(lab, "--dry-run", "--json", "--version", "0.33.0") == 0
        told = json.loads(capsys.readouterr().out)
        assert told["builds"][0] == {"torch_backend": "cu130", "requirement": "vllm==0.33.0"}
        assert told["commands"][1][-3:] == ["--torch-backend", "cu130", "vllm==0.33.0"]
        assert lab.tree() == before
        assert lab.calls() == calls
        assert install(lab) == 0
        capsys.readouterr()


def test_dry_run_where_nothing_can_be_made(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody but the kernel makes files in /proc, whatever root's rights say: it is told before anything is built."""
    assert main(["install-vllm", "--into", "/proc/x", "--dry-run"]) == 1
    error = error_of(capsys)
    assert "/proc/x.builds cannot be written: " in error
    assert "another --into" in error
    assert lab.calls() == []


def test_pip_args_win(lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No build is chosen, an old driver stops nothing and is only warned of; a password is not shown."""
    lab.card("575.57.08", "12.9")
    lab.offer("none", "13.0", "0.33.0", 13)
    monkeypatch.setenv("VLLM_PIP_ARGS", "--index 'http://me:hunter2@127.0.0.1:1/simple' --pre")
    assert install(lab, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "because    VLLM_PIP_ARGS is set and decides\n" in out
    assert "--index 'http://***@127.0.0.1:1/simple' --pre vllm\n" in out
    assert install(lab) == 0
    captured = capsys.readouterr()
    assert "warning: torch is built for CUDA 13.0, and driver 575.57.08 offers 12.9" in captured.err
    assert "hunter2" not in captured.out + captured.err
    assert lab.calls()[-1].endswith("--index http://me:hunter2@127.0.0.1:1/simple --pre vllm")
    monkeypatch.setenv("VLLM_PIP_ARGS", "--index 'x")
    assert install(lab) == 1
    assert error_of(capsys).startswith("vllm-supervisor: VLLM_PIP_ARGS: No closing quotation; ")


@pytest.fixture
def pip_only(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A host without uv."""
    (lab.root / "bin/uv").unlink()
    monkeypatch.setenv("PATH", str(lab.root / "bin") + ":/bin")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    if shutil.which("uv") or shutil.which("uv", path="/usr/bin"):
        pytest.skip("uv is installed on this host")
    return lab


def test_without_uv_pip_does_it(
    pip_only: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With venv and the real pip, from wheels in a directory; PYTHONPATH and PIP_TARGET do not lead it elsewhere."""
    monkeypatch.setenv("VLLM_PIP_ARGS", f"--no-index --find-links {pip_only.wheels / 'cu130'}")
    monkeypatch.setenv("PIP_TARGET", str(pip_only.root / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(pip_only.root / "nowhere"))
    assert install(pip_only, "--version", "0.33.0") == 0
    captured = capsys.readouterr()
    assert "vLLM 0.33.0 with torch 2.13.0+cu130" in captured.out
    assert "Successfully installed torch-2.13.0+cu130 vllm-0.33.0" in captured.err
    assert pip_only.serves() == "vLLM"
    assert not (pip_only.root / "elsewhere").exists()


def test_the_real_uv_takes_our_words(
    real_uv: str, lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options that the stand-in accepts are uv's; with a build of torch asked for, too."""
    (lab.root / "bin/uv").unlink()
    (lab.root / "bin/uv").symlink_to(real_uv)
    monkeypatch.setenv("VLLM_PIP_ARGS", f"--torch-backend cu130 --no-index --find-links {lab.wheels / 'cu130'}")
    assert install(lab, "--version", "0.33.0") == 0
    assert "vLLM 0.33.0 with torch 2.13.0+cu130" in capsys.readouterr().out
    assert lab.serves() == "vLLM"


def test_pip_does_not_know_where_torch_is(pip_only: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and what to do, before anything is changed."""
    before = pip_only.tree()
    assert install(pip_only) == 1
    said = error_of(capsys)
    assert "there is no uv, and only uv knows where torch's build cu130 is; install uv, or say in VLLM_PIP_ARGS" in said
    assert pip_only.tree() == before


@pytest.mark.parametrize("what", ["a full directory", "a file", "a foreign link"])
def test_what_was_not_made_here_is_left_alone(lab: Lab, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody's own environment, above all."""
    if what == "a full directory":
        (lab.link / "bin").mkdir(parents=True)
    elif what == "a file":
        lab.link.touch()
    else:
        lab.link.symlink_to(lab.root / "bin")
    before = lab.tree()
    assert install(lab) == 1
    assert "name another --into, or move it away" in error_of(capsys)
    assert lab.tree() == before


def test_an_empty_directory_is_taken(lab: Lab) -> None:
    """A package may have made it."""
    lab.link.mkdir()
    assert install(lab) == 0
    assert lab.serves() == "vLLM"


def test_another_user_can_run_it(lab: Lab) -> None:
    """Root's umask may be 077, and the service's user must read what root built."""
    before = os.umask(0o077)
    try:
        assert install(lab) == 0
    finally:
        os.umask(before)
    for path in (lab.link.parent / "vllm.builds", lab.link.resolve(), lab.link / "bin", lab.link / "bin/vllm"):
        assert path.stat().st_mode & 0o005 == 0o005


def test_a_place_that_cannot_be_written(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and what to do."""
    (lab.root / "file").touch()
    assert main(["install-vllm", "--into", str(lab.root / "file/vllm")]) == 1
    assert "cannot be written: " in error_of(capsys)


def test_no_version(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no version is wrong usage, and never reaches uv."""
    assert install(lab, "--version", "0.33.0 --pre") == 2
    assert "no version of vLLM: '0.33.0 --pre'" in capsys.readouterr().err
    assert lab.calls() == []


@pytest.fixture
def start() -> Iterator[Callable[[Lab], "subprocess.Popen[str]"]]:
    """Start the command as a process of its own; whatever is left of it at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(lab: Lab) -> "subprocess.Popen[str]":
        command = [*COMMAND, "--into", str(lab.link)]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2]
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def hanging(lab: Lab, process: "subprocess.Popen[str]") -> int:
    """Return the pid of a uv that hangs half-way."""
    path = lab.wheels / "hanging"
    eventually(lambda: process.poll() is not None or (path.exists() and path.read_text()), within=60.0)
    return int(path.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_build(
    lab: Lab,
    start: Callable[[Lab], "subprocess.Popen[str]"],
    number: signal.Signals,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """uv ends with us, the old one stays in use, and what lay half built is gone at the latest after the next run."""
    assert install(lab) == 0
    old = lab.link.resolve()
    (lab.wheels / "cu130/hang").touch()
    process = start(lab)
    uv = hanging(lab, process)
    assert len([path for path in lab.builds if path.is_dir()]) == 2
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if number is signal.SIGKILL:
        assert process.returncode == -9
        assert len(lab.builds) == 3  # and the lock
    else:
        assert process.returncode == {signal.SIGINT: 130}.get(number, 128 + number)
        assert "interrupted: what was half built is removed" in said
        assert "Traceback" not in said
        assert lab.builds == [old]
    eventually(lambda: not alive(uv), within=30.0)
    assert lab.link.resolve() == old
    assert lab.serves() == "vLLM"
    (lab.wheels / "cu130/hang").unlink()
    assert install(lab) == 0
    assert lab.builds == sorted([old, lab.link.resolve()])
    assert ("left by an earlier run" in capsys.readouterr().err) == (number is signal.SIGKILL)


def test_two_at_once(
    lab: Lab, start: Callable[[Lab], "subprocess.Popen[str]"], capsys: pytest.CaptureFixture[str]
) -> None:
    """The second says who is at work, and does not disturb it."""
    (lab.wheels / "cu130/hang").touch()
    process = start(lab)
    hanging(lab, process)
    before = lab.tree()
    assert install(lab) == 1
    said = error_of(capsys)
    assert f"install-vllm: process {process.pid} is building in {lab.link}.builds; wait for it, or end it" in said
    assert lab.tree() == before
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert lab.builds == []


def test_one_in_use_is_not_removed(lab: Lab) -> None:
    """An engine that was not restarted over two installations still has its environment."""
    assert install(lab) == 0
    first = lab.link.resolve()
    library = first / "library"
    library.write_bytes(b"x" * 4096)
    program = (
        "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, access=1); print(flush=True); input()"
    )
    engine = subprocess.Popen(
        [sys.executable, "-c", program, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert engine.stdout is not None
    assert engine.stdout.readline() == b"\n"
    try:
        assert install(lab) == 0
        assert install(lab) == 0
        assert first in lab.builds
    finally:
        engine.communicate(b"\n")
    # A process that ends while it is looked at counts as using everything; the next run looks again.
    eventually(lambda: install(lab) == 0 and first not in lab.builds, within=30)


def test_root_is_warned_of_a_place_that_others_may_write_to(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever owns a directory on the way could swap what root builds; the default is root's alone."""
    if os.geteuid() != 0:
        pytest.skip("only root has something to lose")
    os.chown(lab.root, 12345, -1)
    assert install(lab, "--dry-run") == 0
    assert f"{lab.root}: uid 12345, whose it is, may replace what root builds" in capsys.readouterr().err
    os.chown(lab.root, 0, -1)
    lab.root.chmod(0o777)
    assert install(lab, "--dry-run") == 0
    assert f"{lab.root}: other users may replace" in capsys.readouterr().err
    lab.root.chmod(0o755)
    assert main(["install-vllm", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert "into       /opt/vllm-supervisor/vllm, a link" in told.out
    assert "may replace" not in told.err
