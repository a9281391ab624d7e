"""The folder for vLLM's sockets: one a generation, short, removed, and nobody else's touched."""

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.process.lab import Lab, ending, python
from tests.process.test_launch import shown
from vllm_supervisor.adapters.process import EngineLauncher
from vllm_supervisor.adapters.process.rpcfolder import VARIABLE, RpcFolders

INSTANCE = "c0ffee00-1111-2222-3333-444444444444"
UUID = "0" * 36


def names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="rpc") as folder:
        yield Path(folder)


def test_a_socket_with_a_uuid_fits(short: Path) -> None:
    """vLLM's socket can be bound in the folder, by whatever user the launcher changes to."""
    folders = RpcFolders(INSTANCE)
    made = Path(folders.make(7, {"TMPDIR": str(short)})[VARIABLE])
    assert made.parent == short
    assert stat.S_IMODE(made.stat().st_mode) == 0o1777
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(made / UUID))
    folders.remove()
    assert list(short.iterdir()) == []


def test_a_long_temporary_directory_is_not_used(short: Path) -> None:
    """Where the 107 characters would not do, the folder is in /tmp."""
    long = short / ("x" * 60)
    long.mkdir()
    folders = RpcFolders(INSTANCE)
    made = Path(folders.make(7, {"TMPDIR": str(long)})[VARIABLE])
    try:
        assert made.parent == Path("/tmp")
        assert len(str(made / UUID)) <= 107
    finally:
        folders.remove()


def test_earlier_ones_go_and_others_stay(short: Path) -> None:
    """What earlier daemons of this instance left is removed; another instance's, a link and a file are not."""
    folders = RpcFolders(INSTANCE)
    old = Path(folders.make(6, {"TMPDIR": str(short)})[VARIABLE])
    (old / UUID).touch()
    other = Path(RpcFolders("feedbeef" + INSTANCE[8:]).make(6, {"TMPDIR": str(short)})[VARIABLE])
    precious = short / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (short / f"{old.name[:-1]}3").symlink_to(precious)
    RpcFolders(INSTANCE).make(7, {"TMPDIR": str(short)})
    assert not old.exists()
    assert other.exists()
    assert (precious / "file").exists()


def test_a_name_that_somebody_took_is_not_used(short: Path) -> None:
    """A folder or link that is not ours is left alone, and vLLM does with another place."""
    name = Path(RpcFolders(INSTANCE).make(7, {"TMPDIR": str(short)})[VARIABLE]).name
    (short / name).rmdir()
    target = short / "target"
    target.mkdir()
    (short / name).symlink_to(target)
    folders = RpcFolders(INSTANCE)
    made = folders.make(7, {"TMPDIR": str(short)})
    try:
        assert made[VARIABLE] == f"/tmp/{name}"
    finally:
        folders.remove()
    assert list(target.iterdir()) == []


def test_the_users_choice_stands() -> None:
    """Set in `env`, the variable stays, and nothing is made."""
    assert RpcFolders(INSTANCE).make(7, {VARIABLE: "/somewhere"}) == {}


@pytest.mark.asyncio
async def test_the_engine_gets_it_and_it_goes_with_the_generation(lab: Lab, short: Path) -> None:
    """The launched process has the variable; once it is forgotten, the folder is gone."""
    spec = lab.spec(python("show.py"))
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(short)}
    launcher = EngineLauncher(replace(spec, env=env), lab.state_dir)
    async with ending(await launcher.spawn(3)) as engine:
        await engine.wait_leader()
    env_seen = shown(lab)["env"]
    assert isinstance(env_seen, dict)
    folder = Path(env_seen[VARIABLE])
    assert folder.parent == short
    assert names(short) == [folder.name]
    launcher.forget(3)
    assert names(short) == []
