"""The control socket and the metrics address: whose they are, and who may connect."""

import grp
import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from vllm_supervisor.adapters import sockets
from vllm_supervisor.errors import AlreadyRunningError, ExitCode, ListenError
from vllm_supervisor.ports import Peer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "control.sock"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_socket_has_exactly_the_mode_asked_for(path: Path, mode: int, umask: int) -> None:
    """Neither a tight nor a missing umask of the daemon changes who may connect."""
    before = os.umask(umask)
    try:
        control = sockets.bind_control(path, mode=mode)
    finally:
        assert os.umask(before) == umask
    assert _mode(path) == mode
    assert _mode(path.parent) == 0o755
    assert _mode(path.with_name("control.sock.lock")) == 0o600
    assert not os.get_inheritable(control.socket.fileno())
    assert _listens(path)
    control.close()
    control.close()
    assert not path.exists()


def test_a_crowd_finds_room_to_wait(path: Path) -> None:
    """Clients that come faster than they are accepted wait: without blocking, a full backlog would turn them away."""
    control = sockets.bind_control(path)
    with ExitStack() as stack:
        stack.callback(control.close)
        for _ in range(500):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            assert client.connect_ex(str(path)) == 0


HOLDER = """
import sys
from vllm_supervisor.adapters import sockets
control = sockets.bind_control(sys.argv[1])
print("up", flush=True)
sys.stdin.read()
"""


def test_second_daemon_is_told_who_holds_the_socket(path: Path) -> None:
    """A live daemon's socket is left alone, and its pid is named; after its SIGKILL the stale socket is taken over."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "up\n"
            inode = path.lstat().st_ino
            with pytest.raises(AlreadyRunningError, match=rf"pid {holder.pid}\b") as caught:
                sockets.bind_control(path)
            assert caught.value.exit_code is ExitCode.NO_DAEMON
            assert path.lstat().st_ino == inode
            assert _listens(path)
        finally:
            holder.kill()
    assert path.exists()
    control = sockets.bind_control(path)
    assert _listens(path)
    control.close()


def test_lock_is_not_left_to_a_child(path: Path) -> None:
    """The engine outlives a daemon that is killed; it must not hold the next daemon's lock."""
    control = sockets.bind_control(path)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        control.close()
        sockets.bind_control(path).close()
    finally:
        child.kill()
        child.wait()


def test_socket_that_became_another_daemons_is_not_removed(path: Path) -> None:
    """Whoever removed our file and bound their own keeps it."""
    control = sockets.bind_control(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        control.close()
        assert _listens(path)


def test_what_is_not_ours_to_remove_stays(path: Path) -> None:
    """A file that is no socket and a socket that answers are errors with a remedy, and are still there."""
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(ListenError, match="no socket") as caught:
        sockets.bind_control(path)
    assert caught.value.exit_code is ExitCode.CANNOT_LISTEN
    assert path.read_text() == "precious"
    path.unlink()
    path.mkdir()
    with pytest.raises(ListenError, match=r"is a folder; set control\.socket to a file in it"):
        sockets.bind_control(path)
    path.rmdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        with pytest.raises(ListenError, match="another program"):
            sockets.bind_control(path)
        assert _listens(path)
    sockets.bind_control(path).close()


def test_path_longer_than_the_kernel_takes(tmp_path: Path) -> None:
    """107 bytes fit; 108 are refused with the number, not with EINVAL."""
    room = 107 - len(str(tmp_path)) - 1
    sockets.bind_control(tmp_path / ("s" * room)).close()
    with pytest.raises(ListenError, match="108 bytes"):
        sockets.bind_control(tmp_path / ("s" * (room + 1)))


def test_group_is_set_and_an_unknown_one_is_named(path: Path) -> None:
    """The group is set before anyone can connect; a name that does not exist is an error before anything is made."""
    gid = os.getgroups()[0] if os.getgroups() else os.getgid()
    control = sockets.bind_control(path, group=grp.getgrgid(gid).gr_name)
    assert path.lstat().st_gid == gid
    control.close()
    with pytest.raises(ListenError, match="no-such-group"):
        sockets.bind_control(path.parent / "other" / "s", group="no-such-group")
    assert not (path.parent / "other").exists()


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """The error names the place and says what to set."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ListenError, match=r"control\.socket"):
        sockets.bind_control(tmp_path / "file" / "control.sock")


def test_failed_bind_frees_the_lock(path: Path) -> None:
    """After an error has been put right, the same process may try again."""
    path.parent.mkdir()
    path.write_text("")
    with pytest.raises(ListenError):
        sockets.bind_control(path)
    path.unlink()
    sockets.bind_control(path).close()


def test_a_socket_that_is_gone_is_bound_anew(path: Path) -> None:
    """Once, with lock and folder; not where another daemon was faster. Clients of both files are served; none stays."""
    control = sockets.bind_control(path, mode=0o600)
    first = control.socket
    assert control.renew() is None
    path.unlink()
    renewed = control.renew()
    assert renewed is not None
    assert renewed is control.socket is not first
    assert (control.renew(), stat.S_IMODE(path.stat().st_mode), first.fileno() >= 0) == (None, 0o600, True)
    path.unlink()
    path.with_name(path.name + ".lock").unlink()
    other = sockets.bind_control(path)
    with pytest.raises(AlreadyRunningError, match=f"pid {os.getpid()}"):
        control.renew()
    other.close()
    assert control.renew() is control.socket
    with pytest.raises(AlreadyRunningError):
        sockets.bind_control(path)
    control.close()
    control.close()
    assert not path.exists()
    assert (first.fileno(), renewed.fileno(), control.renew()) == (-1, -1, None)


def test_passed_socket_is_used_and_left_as_it_is(tmp_path: Path) -> None:
    """systemd owns the file: closing does not remove it, and nothing is locked."""
    path = tmp_path / "passed"
    with socket.socket(socket.AF_UNIX) as passed:
        passed.bind(str(path))
        with pytest.raises(ListenError, match="no listening"):
            sockets.adopt_control(passed)
        passed.listen()
        control = sockets.adopt_control(passed)
        assert control.path == str(path)
        assert control.renew() is None
        control.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["passed"]


def test_passed_tcp_socket_is_refused() -> None:
    """Without peer credentials nobody could be told apart."""
    with socket.socket(socket.AF_INET) as passed:
        passed.listen()
        with pytest.raises(ListenError, match="Unix"):
            sockets.adopt_control(passed)


def test_peer_credentials(path: Path) -> None:
    """The kernel says who connected; TCP has no such thing."""
    control = sockets.bind_control(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        accepted, _ = control.socket.accept()
        with accepted:
            assert sockets.peer_of(accepted) == Peer(os.getpid(), os.getuid(), os.getgid())
    control.close()
    with socket.socket(socket.AF_INET) as tcp:
        assert sockets.peer_of(tcp) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_tcp_listens_again_at_once(host: str) -> None:
    """TIME_WAIT of a former listener's connections does not keep the address."""
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this host has no IPv6")
    first = sockets.bind_tcp(host, 0)
    port = first.getsockname()[1]
    with socket.create_connection((host.strip("[]"), port), timeout=10):
        first.accept()[0].close()
    first.close()
    sockets.bind_tcp(host, port).close()


def test_tcp_port_that_is_taken_names_its_holder() -> None:
    """The message says which process to look at."""
    with sockets.bind_tcp("127.0.0.1", 0) as holder:
        with pytest.raises(ListenError, match=rf"taken by pid {os.getpid()} .*metrics\.port") as caught:
            sockets.bind_tcp("127.0.0.1", holder.getsockname()[1])
        assert caught.value.exit_code is ExitCode.CANNOT_LISTEN


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_tcp_address_that_is_not_ours(host: str) -> None:
    """Neither a name that does not resolve nor another host's address is a traceback."""
    with pytest.raises(ListenError, match=r"metrics\.host"):
        sockets.bind_tcp(host, 9455)
