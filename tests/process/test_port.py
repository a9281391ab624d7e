"""Is the port free, who holds it, and whose is the listener."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.eventually import aeventually
from tests.ports import free_port
from tests.process.lab import PATIENCE, Lab, ending, python, shell
from vllm_supervisor.adapters.process.listeners import TIME_WAIT, answering, owned, sockets_on
from vllm_supervisor.adapters.process.port import port_blocker, shown
from vllm_supervisor.adapters.process.procfs import Proc
from vllm_supervisor.domain.model import Blocker, BlockerKind

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])
LAUNCHER = shell("exec sleep 1000")


@contextmanager
def bound(host: str, *, listen: bool, reuse: bool = True) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        server.bind((host, 0))
        if listen:
            server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::1", "localhost"])
@pytest.mark.parametrize("listen", [True, False], ids=["listening", "bound only"])
async def test_port_holder_is_named(lab: Lab, host: str, listen: bool) -> None:
    """By pid and command line, on every kind of address; vLLM binds long before it listens."""
    at = {"localhost": "127.0.0.1"}.get(host, host)
    with bound(at, listen=listen) as port:
        blocker = await lab.launcher(LAUNCHER, port, host).check()
        assert blocker is not None
        assert blocker.kind is BlockerKind.PORT
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if (
            listen
            or Proc().text(
                "sys/kernel/osrelease",
            )
            is None
            or kernel() >= (6, 8)
        ):
            assert blocker.why.startswith(f"{place} is held by pid {os.getpid()} (")
        assert blocker.remedy == "stop it or set engine.vllm.port"
    assert await lab.launcher(LAUNCHER, port, host).check() is None


async def test_connections_in_time_wait_do_not_count(lab: Lab) -> None:
    """The engine that just ended leaves some for a minute; vLLM binds over them, and so do we."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's end closes first: TIME_WAIT is on its port
            assert client.recv(1) == b""

    async def waiting() -> bool:
        return any(item.state == TIME_WAIT for item in sockets_on(Proc(), port) or [])

    await aeventually(waiting, PATIENCE)
    assert await lab.launcher(LAUNCHER, port).check() is None


async def test_holder_that_cannot_be_seen_is_named_by_its_user() -> None:
    """Without the permission to read its descriptors there is still the uid in the kernel's list."""

    class Blind(Proc):
        def sockets(self, pid: int) -> frozenset[int] | None:
            return None

    with bound("127.0.0.1", listen=True) as port:
        blocker = port_blocker(Blind(), "127.0.0.1", port)
    assert blocker is not None
    assert "is held by a process of user" in blocker.why
    assert f"uid {os.getuid()}" in blocker.why


@pytest.mark.parametrize(("host", "why"), [("192.0.2.1", "no address of this host"), ("x" * 70, "x")])
async def test_address_that_cannot_be_bound_is_explained(host: str, why: str) -> None:
    """It is the host that is wrong, not the port."""
    blocker = port_blocker(Proc(), host, free_port())
    assert blocker is not None
    assert why in blocker.why
    assert "engine.vllm.host" in blocker.remedy


async def test_holders_secrets_are_not_shown() -> None:
    """The holder is often another vLLM, with a key on its command line."""
    line = shown(["vllm", "serve", "--api-key", "sk-1", "--hf-token=hf_2", "HF_TOKEN=3", "--port", "8000"])
    assert line == "vllm serve --api-key *** --hf-token=*** HF_TOKEN=*** --port 8000"
    assert len(shown(["x" * 1000])) == 201


async def test_other_blockers_come_first(lab: Lab) -> None:
    """Launcher, directory and log file, each with its kind and remedy."""

    async def blocker(argv: tuple[str, ...], cwd: str | None = None) -> Blocker:
        found = await lab.launcher(argv, cwd=cwd).check()
        assert found is not None
        return found

    missing = await blocker(("no-such-launcher",))
    assert missing.kind is BlockerKind.LAUNCHER
    assert f"PATH searched: {os.environ['PATH']}" in missing.why
    assert "/no/such/directory is not a folder" in (await blocker(LAUNCHER, "/no/such/directory")).why
    lab.log.mkdir(parents=True)
    unwritable = await blocker(LAUNCHER)
    assert unwritable.kind is BlockerKind.LOG_FILE
    assert "engine.vllm.log_file" in unwritable.remedy


SERVE = "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(1000)"


async def test_listener_belongs_to_a_member(lab: Lab) -> None:
    """Also when a child of the launcher listens; False until it does."""
    port = free_port()
    child = f'{sys.executable} -S -E -c "{SERVE.format(port=port)}"'
    launcher = lab.launcher(shell(f"{child} & wait"), port)
    async with ending(await launcher.spawn(1)) as engine:

        async def owned() -> bool:
            return await engine.owns_listener(port) is True

        await aeventually(owned, PATIENCE)


async def test_listener_of_a_stranger_is_not_ours(lab: Lab) -> None:
    """`/health` 200 from somebody else's server must not make our engine ready."""
    with bound("127.0.0.1", listen=True) as port:
        launcher = lab.launcher(LAUNCHER, port)
        async with ending(await launcher.spawn(1)) as engine:
            assert await engine.owns_listener(port) is False


async def test_shared_port_is_ours_only_when_every_listener_is(lab: Lab) -> None:
    """SO_REUSEPORT: several API servers share a port, and so could a stranger, who then gets half of the probes."""
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", 0))
        port = stranger.getsockname()[1]
        launcher = lab.launcher(python("reuse.py", str(port)), port)
        async with ending(await launcher.spawn(1)) as engine:

            async def owned() -> bool:
                return await engine.owns_listener(port) is True

            await aeventually(owned, PATIENCE)
            stranger.listen()
            assert await engine.owns_listener(port) is False


async def test_what_cannot_be_read_is_not_guessed(lab: Lab) -> None:
    """None makes the caller fall back on the port having been free before the launch."""
    port = free_port()
    launcher = lab.launcher(python("reuse.py", str(port)), port)
    async with ending(await launcher.spawn(1)) as engine:

        async def owned() -> bool:
            return await engine.owns_listener(port) is True

        await aeventually(owned, PATIENCE)

        class Blind(Proc):
            def sockets(self, pid: int) -> frozenset[int] | None:
                return None

        engine._family.proc = Blind()
        assert await engine.owns_listener(port) is None


async def test_listener_at_another_address_says_nothing() -> None:
    """A server at 10.0.0.5:8000 does not answer what is asked of 127.0.0.1:8000."""
    with bound("127.0.0.2", listen=True) as port:
        listed = sockets_on(Proc(), port) or []
        assert answering(listed, "127.0.0.1") == []
        assert len(answering(listed, "127.0.0.2")) == 1


def kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


async def test_listeners_in_a_process_table_that_shows_little(tmp_path: Path) -> None:
    """Of nobody nothing is ours; unread lists say nothing; a member that is gone does not hide those that live."""
    proc = Proc(tmp_path)
    line = "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1\n"
    assert owned(proc, [], "127.0.0.1", 8000) is False
    assert owned(proc, [1, 2], "127.0.0.1", 8000) is None
    (tmp_path / "2/net").mkdir(parents=True)
    (tmp_path / "2/net/tcp").write_text("head\n")
    assert owned(proc, [1, 2], "127.0.0.1", 8000) is False
    (tmp_path / "2/net/tcp").write_text("head\n" + line)
    (tmp_path / "2/fd").mkdir()
    assert owned(proc, [1, 2], "127.0.0.1", 9000) is False
    (tmp_path / "2/fd/3").symlink_to("socket:[77]")
    assert owned(proc, [1, 2], "127.0.0.1", 8000) is True
    listed = sockets_on(proc, 8000, "2") or []
    assert [answering(listed, host) for host in ("my.host", "0.0.0.0", "::1")] == [listed, listed, []]
