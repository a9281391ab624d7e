"""What a daemon says while it looks after its places in the file system, on real ones."""

import fcntl
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.eventually import aeventually
from tests.process.lab import Lab, shell
from vllm_supervisor.adapters.process import EngineLauncher, lock_state_dir
from vllm_supervisor.adapters.sockets import bind_control
from vllm_supervisor.app.upkeep import keep_control, keep_state_dir
from vllm_supervisor.domain.model import Blocker
from vllm_supervisor.ports import Note

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

SOON = 0.01


class Told:
    """Takes what is posted."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def post(self, item: object) -> None:
        assert isinstance(item, Note), item
        self.notes.append(item)

    @property
    def kinds(self) -> list[str]:
        return [note.kind for note in self.notes]

    async def has(self, *kinds: str) -> None:
        async def said() -> bool:
            return self.kinds == list(kinds)

        await aeventually(said, what=f"{kinds}")


@asynccontextmanager
async def meanwhile(keep: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(keep)
        yield
        group.cancel_scope.cancel()


async def test_a_state_directory_that_another_took_is_told(lab: Lab) -> None:
    """Once, with who has it; what was let go is locked again."""
    told, looks = Told(), 0
    with lock_state_dir(lab.state_dir) as lock:
        launcher = EngineLauncher(lab.spec(shell("true")), lab.state_dir, note=told.post, lock=lock)

        async def hold() -> Blocker | None:
            nonlocal looks
            looks += 1
            return await launcher.hold()

        async def looked_often() -> bool:
            return looks > 10

        async with meanwhile(lambda: keep_state_dir(hold, told.post, interval=SOON)):
            with (lab.state_dir / "lock.new").open("w") as other:
                fcntl.flock(other, fcntl.LOCK_EX)
                other.write("4194305\n")
                other.flush()
                (lab.state_dir / "lock.new").replace(lab.state_dir / "lock")
                await aeventually(looked_often)
                assert told.kinds == ["state_dir_lost"]
            await told.has("state_dir_lost", "state_dir_renewed")
    lost, renewed = told.notes
    assert lost.fields["why"] == f"state directory {lab.state_dir} was removed, and is in use by pid 4194305"
    assert renewed.fields["lost"] == "bundles, and what was seen of configurations and starts"


async def test_a_control_socket_whose_place_is_taken_is_told(tmp_path: Path) -> None:
    """Once for each that is in the way; then there is another one, which is served."""
    told, served = Told(), list[socket.socket]()
    place = tmp_path / "run" / "s"
    control = bind_control(place)

    async def serve(listener: socket.socket) -> None:
        served.append(listener)

    async with meanwhile(lambda: keep_control(control, serve, told.post, interval=SOON)):
        place.unlink()
        place.mkdir()
        await told.has("control_socket_lost")
        place.rmdir()
        await told.has("control_socket_lost", "control_socket_renewed")
        (tmp_path / "file").touch()
        (tmp_path / "file").rename(place)  # over it, so that it is never missing
        await told.has("control_socket_lost", "control_socket_renewed", "control_socket_lost")
        place.unlink()
        await told.has("control_socket_lost", "control_socket_renewed", "control_socket_lost", "control_socket_renewed")
        shutil.rmtree(place.parent)
        await told.has(*["control_socket_lost", "control_socket_renewed"] * 2, "control_socket_renewed")
    assert "is a folder" in str(told.notes[0].fields["why"])
    assert served[-1] is control.socket
    control.close()
    assert not place.exists()
