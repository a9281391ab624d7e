"""Shared memory of dead processes, on real processes and the real /proc."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vllm_supervisor.adapters.remains import SharedMemory

pytestmark = pytest.mark.asyncio

MAPPER = """
import mmap, sys
held = []
for path in sys.argv[1:]:
    with open(path, "a+b") as file:
        file.truncate(4096)
        held.append(mmap.mmap(file.fileno(), 4096))
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder that stands for /dev/shm, on the same kind of file system where there is one."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="remains-", dir=where) as folder:
        yield Path(folder)


@contextmanager
def mapping(*paths: Path) -> Iterator[int]:
    """A process that has files mapped; killed in the end."""
    command = [sys.executable, "-S", "-E", "-c", MAPPER, *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"mapped\n"
            yield process.pid
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_what_members_had_mapped_goes_and_the_rest_stays(shm: Path) -> None:
    """Rings and semaphores of the dead are removed; a stranger's, a shared one and other names are not."""
    ring, semaphore, other = shm / "psm_0a1b2c3d", shm / "sem.mp-abcdefgh", shm / "my_database"
    strange, shared = shm / "psm_ffffffff", shm / "psm_eeeeeeee"
    remains = SharedMemory(shm)
    with mapping(strange, shared):
        with mapping(ring, semaphore, other, shared) as member:
            await remains.note([member])
        assert sorted(await remains.remove()) == sorted([str(ring), str(semaphore)])
    assert names(shm) == sorted([other.name, strange.name, shared.name])
    assert await remains.remove() == ()


async def test_a_file_that_took_the_name_stays(shm: Path) -> None:
    """Another file under the name of a noted one is somebody else's."""
    ring = shm / "psm_0a1b2c3d"
    remains = SharedMemory(shm)
    with mapping(ring) as member:
        await remains.note([member])
    ring.rename(shm / "kept_so_that_the_inode_is_not_used_again")
    ring.touch()
    assert await remains.remove() == ()
    assert ring.exists()


async def test_nothing_new_costs_one_listing(shm: Path) -> None:
    """A file that nobody of ours maps is looked for a few times, and then no more; the maps of members stay unread."""
    reads: list[int] = []

    class Watched(SharedMemory):
        def _maps(self, pid: int) -> set[tuple[str, int]]:
            reads.append(pid)
            return super()._maps(pid)

    (shm / "psm_ffffffff").touch()
    remains = Watched(shm)
    for _ in range(20):
        await remains.note([os.getpid()])
    assert len(reads) == 5
    (shm / "psm_0a1b2c3d").touch()
    await remains.note([os.getpid()])
    assert len(reads) == 6


@pytest.mark.parametrize("there", [False, True])
async def test_members_that_are_gone_and_no_folder(shm: Path, there: bool) -> None:
    """A pid that ended, and a host without /dev/shm, are nothing to complain of."""
    remains = SharedMemory(shm if there else shm / "nowhere")
    if there:
        (shm / "psm_0a1b2c3d").touch()
    await remains.note([1 << 22])
    assert await remains.remove() == ()


async def test_a_link_is_not_followed(shm: Path) -> None:
    """What a name leads to is not what was mapped."""
    ring = shm / "psm_0a1b2c3d"
    remains = SharedMemory(shm)
    with mapping(ring) as member:
        await remains.note([member])
    ring.unlink()
    target = shm / "target"
    target.touch()
    ring.symlink_to(target)
    assert await remains.remove() == ()
    assert target.exists()
