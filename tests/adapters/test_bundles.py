"""Crash bundles: complete, without a secret, bounded, and never in the way."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.eventually import eventually
from vllm_supervisor.adapters import bundles as module
from vllm_supervisor.adapters.bundles import KEEP, MAX_BYTES, StoredBundles
from vllm_supervisor.domain.member import Member
from vllm_supervisor.domain.spec import LaunchSpec

pytestmark = pytest.mark.asyncio

SECRETS = ("the-api-key-of-it", 'tok"en-with-a-quote', "on-the-command-line")


def mode(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def names(folder: Path | str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


class Case:
    """Bundles in a folder, and a clock that goes a second a bundle."""

    def __init__(self, folder: Path) -> None:
        self.state_dir = folder / "state"
        self.log = folder / "vllm.log"
        self.now = 1_700_000_000.0
        spec = LaunchSpec(
            ("vllm", "serve", "m", "--hf-token", SECRETS[2]),
            {"VLLM_API_KEY": SECRETS[0], "HF_TOKEN": SECRETS[1], "PATH": "/bin"},
            "/work",
            str(self.log),
            "127.0.0.1",
            8000,
        )
        self.bundles = StoredBundles(self.state_dir, spec, self.events, self.clock)

    def clock(self) -> float:
        self.now += 1
        return self.now

    def events(self) -> bytes:
        return json.dumps({"event": "phase_changed", "detail": SECRETS[0]}).encode() + b"\n"

    def kept(self) -> list[str]:
        return names(self.state_dir / "crashes")


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[Member]:
    process = subprocess.Popen(["sleep", "60"])
    # Until it has been read from the disk, it waits for that.
    eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
    yield Member(process.pid, 1, "sleep", "S")
    process.kill()
    process.wait(10)


def read(folder: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(folder).iterdir()}


async def test_what_is_in_it(case: Case) -> None:
    """Report, diagnosis, launch, recorder, and the log of this generation alone, for the owner's eyes."""
    case.log.write_text("an earlier generation\n")
    start = case.log.stat().st_size
    with case.log.open("a") as log:
        log.write("RuntimeError: it broke\n")
    report = {"generation": 3, "cause": "crash", "diagnosis": {"class": "unknown_thing"}}
    folder = await case.bundles.write(3, report, [], start)
    assert folder == str(case.state_dir / "crashes" / "20231114T221321Z-3-crash")
    files = read(folder)
    assert files["vllm.log"] == "RuntimeError: it broke\n"
    assert json.loads(files["report.json"]) == report
    assert json.loads(files["diagnosis.json"]) == {"class": "unknown_thing"}
    launch = json.loads(files["launch.json"])
    assert launch == {
        "argv": ["vllm", "serve", "m", "--hf-token", "***"],
        "cwd": "/work",
        "env": {"HF_TOKEN": "***", "PATH": "/bin", "VLLM_API_KEY": "***"},
    }
    assert json.loads(files["events.jsonl"])["event"] == "phase_changed"
    assert [mode(folder), mode(f"{folder}/report.json")] == [0o700, 0o600]


async def test_no_secret_anywhere(case: Case, sleeper: Member) -> None:
    """Wherever it stood: in the log, a command line, an event, the diagnosis, a quoted string."""
    case.log.write_text("\n".join(f"args: api_key={secret} Bearer abcdef.ghi" for secret in SECRETS))
    facts: dict[str, Any] = {"cause": "hang", "detail": SECRETS[1], "gpus": None}
    await case.bundles.photograph(3, facts, [sleeper])
    folder = await case.bundles.write(3, {"cause": "hang", "diagnosis": {"evidence": list(SECRETS)}}, [], 0)
    everything = "\n".join(read(folder).values())
    for secret in (*SECRETS, "en-with-a-quote", "abcdef.ghi"):
        assert secret not in everything
    assert everything.count("***") > 6


async def test_a_hang_is_photographed_before_it_ends(case: Case, sleeper: Member) -> None:
    """What the members were doing is in the same folder as what was written after their end."""
    case.log.write_text("x\n")
    begun = await case.bundles.photograph(3, {"cause": "hang", "detail": "no step for 120 s"}, [sleeper])
    (seen,) = json.loads(read(begun)["processes.json"])
    assert (seen["pid"], seen["name"], seen["state"], seen["command"]) == (sleeper.pid, "sleep", "S", "sleep 60")
    assert [thread["tid"] for thread in seen["threads"]] == [sleeper.pid]
    assert {"wchan", "memory"} <= seen.keys()
    assert await case.bundles.write(3, {"cause": "hang"}, [], 0) == begun
    assert {"photograph.json", "processes.json", "report.json", "vllm.log"} <= set(read(begun))
    assert await case.bundles.write(4, {"cause": "crash"}, [], 0) != begun


async def test_the_process_table_of_a_crash(case: Case, sleeper: Member) -> None:
    """Without a photograph, the table that was taken at the end is kept, masked; a photograph shows more."""
    rows = [{"pid": 7, "command": f"vllm serve --api-key {SECRETS[0]}", "seen_at": "2023-11-14T22:13:20.000+00:00"}]
    folder = await case.bundles.write(3, {"cause": "crash"}, rows, 0)
    kept = json.loads(read(folder)["processes.json"])
    assert kept == [rows[0] | {"command": "vllm serve --api-key ***"}]
    begun = await case.bundles.photograph(4, {"cause": "hang"}, [sleeper])
    assert await case.bundles.write(4, {"cause": "hang"}, rows, 0) == begun
    (photographed,) = json.loads(read(begun)["processes.json"])
    assert (photographed["pid"], photographed["parent"]) == (sleeper.pid, os.getpid())


async def test_stacks_by_py_spy(case: Case, sleeper: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where py-spy is on the PATH its words are kept; one that does not return is given up."""
    program = tmp_path / "bin" / "py-spy"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable} -SE\nimport sys\nprint('stack of', *sys.argv[1:])\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    folder = await case.bundles.photograph(3, {"cause": "hang"}, [sleeper])
    assert read(folder)["stacks.txt"].strip() == f"stack of dump --nonblocking --pid {sleeper.pid}"

    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(module, "_STACKS_WITHIN", 0.2)
    folder = await case.bundles.photograph(4, {"cause": "hang"}, [sleeper])
    assert "timed out" in read(folder)["stacks.txt"]


async def test_the_last_ten(case: Case) -> None:
    """Older ones make room."""
    case.log.write_text("x\n")
    folders = [await case.bundles.write(number, {"cause": "crash"}, [], 0) for number in range(KEEP + 3)]
    assert case.kept() == sorted(Path(folder).name for folder in folders[3:])


async def test_twenty_megabytes_at_most(case: Case) -> None:
    """Whatever engines log and daemons record; and a single file is bounded."""
    case.log.write_bytes(b"log of a flood\n" * 2_000_000)
    huge = {"cause": "crash", "members": ["x" * 2_000_000]}
    folders = [await case.bundles.write(number, huge, [], 0) for number in range(KEEP)]
    total = sum(path.stat().st_size for path in (case.state_dir / "crashes").rglob("*"))
    assert 5_000_000 < total <= MAX_BYTES
    assert max(len(text) for text in read(folders[-1]).values()) <= 1_500_000
    assert read(folders[-1])["vllm.log"].endswith("log of a flood\n")


async def test_without_a_log(case: Case) -> None:
    """A log that is gone is no reason to keep nothing."""
    assert "vllm.log" not in read(await case.bundles.write(1, {"cause": "crash"}, [], 0))


async def test_a_place_that_cannot_be_written(case: Case, sleeper: Member) -> None:
    """The error is the caller's to tell, and nothing half-made is left; what was photographed before stays."""
    case.state_dir.write_text("not a folder")
    with pytest.raises(OSError, match="crashes"):
        await case.bundles.write(1, {"cause": "crash"}, [], 0)
    case.state_dir.unlink()
    begun = await case.bundles.photograph(2, {"cause": "hang"}, [sleeper])
    (case.state_dir / "crashes" / begun / "launch.json").mkdir()
    with pytest.raises(IsADirectoryError):
        await case.bundles.write(2, {"cause": "hang"}, [], 0)
    assert names(begun) == ["launch.json", "photograph.json", "processes.json"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with next to no room, where one can be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if mount is None or os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk(full_disk: Path, case: Case) -> None:
    """The bundle is lost, and so is what was begun of it."""
    case.bundles = Case(full_disk).bundles
    (full_disk / "vllm.log").write_bytes(b"x" * 40_000)
    with pytest.raises(OSError, match=r"No space left on device: .*/crashes/"):
        await case.bundles.write(1, {"cause": "crash"}, [], 0)
    assert names(full_disk / "state" / "crashes") == []
