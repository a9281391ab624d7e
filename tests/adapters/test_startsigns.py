"""Signs of life beside the log: the model's cache, processes, compile caches."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import aeventually
from vllm_supervisor.adapters.startsigns import EngineSigns
from vllm_supervisor.adapters.startsigns.hub import HubCache, hub_folder
from vllm_supervisor.adapters.startsigns.signs import MAX_ENTRIES, fingerprint, places
from vllm_supervisor.domain.member import Member
from vllm_supervisor.domain.spec import LaunchSpec
from vllm_supervisor.domain.startup import Download

COMMIT = "a" * 40
MB = 1 << 20


@pytest.mark.parametrize(
    ("env", "download_dir", "folder"),
    [
        ({"HOME": "/h"}, None, "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, None, "/x/huggingface/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x", "HF_HOME": "/hf"}, None, "/hf/hub"),
        ({"HF_HOME": "/hf", "HF_HUB_CACHE": "/c"}, None, "/c"),
        ({"HOME": "/h", "HF_HOME": "~/hf"}, None, "/h/hf/hub"),
        ({"HF_HUB_CACHE": "/c"}, "/data", "/data"),
    ],
)
def test_where_the_cache_is(env: dict[str, str], download_dir: str | None, folder: str) -> None:
    """As huggingface_hub decides it, from the child's environment; `--download-dir` goes first."""
    assert hub_folder("org/model", env, download_dir, "/nowhere") == Path(folder) / "models--org--model"


@pytest.mark.parametrize("model", ["", "/models/m", "./m", "~/m", "s3://bucket/m", "a/b/c", "here/model"])
def test_models_that_are_in_no_cache(model: str, tmp_path: Path) -> None:
    """Folders and object stores are not downloaded."""
    (tmp_path / "here" / "model").mkdir(parents=True)
    assert hub_folder(model, {"HOME": "/h"}, None, str(tmp_path)) is None
    assert hub_folder("org/model", {"HOME": "/h", "VLLM_USE_MODELSCOPE": "True"}, None) is None


class Hub:
    """A cache as huggingface_hub writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.snapshot = folder / "snapshots" / COMMIT
        for made in (folder / "blobs", folder / "refs", self.snapshot):
            made.mkdir(parents=True)
        (folder / "refs" / "main").write_text(COMMIT)

    def finish(self, name: str, size: int) -> None:
        (self.folder / "blobs" / f"sha-{name}").write_bytes(b"x" * size)
        (self.snapshot / name).symlink_to(f"../../blobs/sha-{name}")

    def coming(self, size: int, name: str = "sha-x.1234abcd.incomplete") -> Path:
        path = self.folder / "blobs" / name
        path.write_bytes(b"x" * size)
        return path


def test_a_download_from_nothing_to_all(tmp_path: Path) -> None:
    """Nothing; an index and a part; one file finished and another part; all there."""
    folder = tmp_path / "models--o--m"
    cache = HubCache(folder)
    assert cache.look() == Download(0)
    hub = Hub(folder)
    (hub.snapshot / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 4 * MB}}))
    part = hub.coming(MB)
    assert cache.look() == Download(MB, 4 * MB, partial=True)
    part.unlink()
    hub.finish("model-00001-of-00002.safetensors", 2 * MB)
    hub.finish("tokenizer.json", MB)
    hub.coming(MB)
    assert cache.look() == Download(3 * MB, 4 * MB, partial=True)
    for left in (folder / "blobs").glob("*.incomplete"):
        left.unlink()
    hub.finish("model-00002-of-00002.safetensors", 2 * MB)
    assert cache.look() == Download(4 * MB, 4 * MB)


def test_without_an_index_the_names_tell(tmp_path: Path) -> None:
    """Of numbered files, all but the last are of a size; a single file tells nothing before it is there."""
    hub = Hub(tmp_path)
    cache = HubCache(tmp_path)
    assert cache.look().expected is None
    hub.finish("model-00001-of-00030.safetensors", MB)
    assert cache.look().expected == 30 * MB


def test_what_an_earlier_start_gave_up_does_not_count(tmp_path: Path) -> None:
    """A part that nobody writes to is no download, until somebody goes on with it."""
    hub = Hub(tmp_path)
    part = hub.coming(3 * MB)
    os.utime(part, (time.time() - 3600, time.time() - 3600))
    cache = HubCache(tmp_path)
    assert cache.look() == Download(0)
    with part.open("ab") as file:
        file.write(b"x" * MB)
    assert cache.look() == Download(4 * MB, None, partial=True)


def test_a_sparse_part_counts_for_what_is_in_it(tmp_path: Path) -> None:
    """Written in several places at once, a file is soon as long as it will be."""
    with Hub(tmp_path).coming(0).open("wb") as file:
        file.truncate(100 * MB)
        file.seek(50 * MB)
        file.write(b"x" * MB)
    assert MB <= HubCache(tmp_path).look().present < 3 * MB


def test_a_revision_of_its_own(tmp_path: Path) -> None:
    """A branch, or a commit by its name."""
    hub = Hub(tmp_path)
    hub.finish("model.safetensors", MB)
    (tmp_path / "refs" / "v2").write_text(COMMIT)
    assert HubCache(tmp_path, "v2").look().present == HubCache(tmp_path, COMMIT).look().present == MB
    assert HubCache(tmp_path, "v3").look().present == 0


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[bytes]]:
    program = (
        "import os, tempfile, time\n"
        "end = time.monotonic() + 60\n"
        "with tempfile.TemporaryFile() as file:\n"
        "    while time.monotonic() < end:\n"
        "        file.write(b'x' * 100000); file.flush(); os.fsync(file.fileno()); file.seek(0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        yield process
        process.kill()


@pytest.mark.asyncio
async def test_what_processes_spend(spinner: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """CPU time and disk traffic of the members, growing, and never falling when one ends."""
    signs = EngineSigns(LaunchSpec(("vllm",), {"HOME": str(tmp_path)}, None, "/nowhere", "", 8000, model="/m"))
    members = (Member(spinner.pid, 1, "x", "R"), Member(999_999_999, 1, "gone", "R"))
    first = await signs.activity(members)

    async def grown() -> bool:
        now = await signs.activity(members)
        return bool(
            now.cpu_s is not None
            and first.cpu_s is not None
            and now.cpu_s > first.cpu_s
            and now.io_bytes is not None
            and first.io_bytes is not None
            and now.io_bytes >= first.io_bytes
        )

    assert await aeventually(grown, within=20)
    before = await signs.activity(members)
    after = await signs.activity(())
    assert (after.cpu_s, after.io_bytes) == (before.cpu_s, before.io_bytes)
    assert await signs.download() is None


def test_a_copied_process_table(tmp_path: Path) -> None:
    """User and system time, own and of children that ended; bytes read from and written to disks, and no others."""
    (tmp_path / "7").mkdir()
    stat = b"7 (a) b) R " + b" ".join(str(n).encode() for n in range(4, 53))
    (tmp_path / "7" / "stat").write_bytes(stat)
    (tmp_path / "7" / "io").write_bytes(
        b"rchar: 9\nwchar: 9\nsyscr: 1\nread_bytes: 100\nwrite_bytes: 20\ncancelled_write_bytes: 7\n"
    )
    signs = EngineSigns(LaunchSpec(("vllm",), {}, None, "/nowhere", "", 8000), proc=tmp_path)
    found = signs._look([Member(7, 1, "x", "R")])
    assert found.cpu_s == (14 + 15 + 16 + 17) / os.sysconf("SC_CLK_TCK")
    assert found.io_bytes == 120


@pytest.mark.asyncio
async def test_a_launcher_may_set_the_environment_itself(tmp_path: Path) -> None:
    """What a member's own environment says of the cache goes before what it was launched with."""
    hub = Hub(tmp_path / "hf" / "hub" / "models--o--m")
    hub.finish("model.safetensors", MB)
    proc = tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "environ").write_bytes(b"HF_HOME=%s/hf\0A=\xff\0junk\0" % str(tmp_path).encode())
    (proc / "8").mkdir(parents=True)
    (proc / "8" / "environ").write_bytes(b"")
    signs = EngineSigns(LaunchSpec(("vllm",), {"HOME": "/h"}, None, "/nowhere", "", 8000, model="o/m"), proc=proc)
    assert await signs.download() == Download(0)
    await signs.activity([Member(7, 1, "vllm", "R"), Member(8, 1, "erased", "R")])
    assert await signs.download() == Download(MB)


def test_changes_below_compile_caches(tmp_path: Path) -> None:
    """A new file, a longer one, one touched; folders that are not there are nothing."""
    env = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp"), "USER": "u"}
    folders = list(places(env))
    assert [str(folder.relative_to(tmp_path)) for folder in folders] == [
        ".cache/vllm/torch_compile_cache",
        "tmp/torchinductor_u",
        ".triton/cache",
        ".cache/flashinfer",
    ]
    seen = [fingerprint(folders)]
    deep = folders[0] / "hash" / "rank_0_0"
    deep.mkdir(parents=True)
    seen.append(fingerprint(folders))
    (deep / "graph.py").write_text("x")
    seen.append(fingerprint(folders))
    (deep / "graph.py").write_text("xx")
    seen.append(fingerprint(folders))
    os.utime(deep / "graph.py", (2e9, 2e9))
    seen.append(fingerprint(folders))
    assert len(set(seen)) == 5
    assert fingerprint(folders) == seen[-1]


def test_a_huge_cache_costs_bounded_work(tmp_path: Path) -> None:
    """Beyond the bound nothing is looked at."""
    for number in range(MAX_ENTRIES + 50):
        (tmp_path / str(number)).touch()
    assert fingerprint([tmp_path])[0] == MAX_ENTRIES
