"""Listening sockets: the control socket behind its lock, the metrics address, and who is at the other end."""

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vllm_supervisor.errors import AlreadyRunningError, ListenError
from vllm_supervisor.ports import Peer

_BACKLOG = 4096
"""As many as Linux lets wait by default (net.core.somaxconn). Who waits costs little; a client that does not block is
turned away where there is no room (EAGAIN), although the daemon lives."""
_MAX_PATH = 107
"""Bytes that fit `sockaddr_un.sun_path` beside its terminating zero (unix(7))."""
LINK_NAME = "current.sock"
"""In the run-time directory that systemd gives: a link to the control socket. Clients know the name as well."""
_PEERCRED = struct.Struct("3i")


class _Claim(NamedTuple):
    """What the file of a control socket is to be like; `gid` None leaves its group alone."""

    mode: int
    gid: int | None


class ControlSocket:
    """A listening Unix socket. Ours is behind a lock that is held until `close`; one that was passed to us is not."""

    def __init__(self, sock: socket.socket, path: str, *, claim: _Claim | None = None, lock: int | None = None) -> None:
        self.socket = sock
        """The newest; clients that came through an earlier one are still served by it."""
        self.path = path
        self._claim = claim
        """None for a socket that was passed to us."""
        self._lock = lock
        self._bound = {_inode(path): sock} if claim is not None else {}
        """By device and inode of the file. While its socket is open, no other file is given the number."""

    def renew(self) -> socket.socket | None:
        """Listen at the path anew where our file is gone from it, and return the socket; None where nothing is to do.

        Whoever is connected stays so. Raises as `bind_control`, for as long as something else is in the way.
        """
        if self._claim is None or self._lock is None or _inode(self.path) in self._bound:
            return None
        try:
            _make_directory(Path(self.path).parent)
            if not _is_at(self._lock, _lock_path(self.path)):
                lock = _lock(self.path)
                os.close(self._lock)
                self._lock = lock
            _clear(self.path)
            self.socket = _bind(self.path, self._claim)
        except OSError as error:
            raise _cannot(self.path, error) from error
        self._bound[_inode(self.path)] = self.socket
        return self.socket

    def close(self) -> None:
        """Stop listening, and remove the file if it is still one that we bound. May be called twice."""
        if self._bound and _inode(self.path) in self._bound:
            with contextlib.suppress(OSError):
                os.unlink(self.path)  # noqa: PTH108 - a path of a socket is bytes to the kernel: no normalising
        for sock in self._bound.values():
            sock.close()
        self._bound = {}
        self.socket.close()
        if self._lock is not None:
            # The last thing: whoever gets the lock finds neither our file nor us listening.
            os.close(self._lock)
            self._lock = None


def bind_control(path: str | Path, *, mode: int = 0o660, group: str | None = None) -> ControlSocket:
    """Bind the control socket at `path` and listen.

    Its directory is made where it is missing (0755). The file never has a wider mode than `mode`, and has `group`
    before anyone can connect. Raises AlreadyRunningError where another daemon holds the lock `<path>.lock`, and then
    has touched nothing; ListenError for everything else. A stale socket is removed, a live one and other files never.
    """
    where = os.fspath(path)
    _check_length(where)
    gid = _gid(group, where)
    try:
        _make_directory(Path(where).parent)
        lock = _lock(where)
    except OSError as error:
        raise _cannot(where, error) from error
    try:
        _clear(where)
        claim = _Claim(mode, gid)
        return ControlSocket(_bind(where, claim), where, claim=claim, lock=lock)
    except OSError as error:
        os.close(lock)
        raise _cannot(where, error) from error
    except ListenError:
        os.close(lock)
        raise


def adopt_control(sock: socket.socket) -> ControlSocket:
    """Take a socket that was passed to us as it is. Raises ListenError where it is no listening Unix stream socket."""
    fits = sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM
    if not fits or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ListenError(
            "the socket passed by systemd", "is no listening Unix stream socket", "use ListenStream= with a path"
        )
    name = sock.getsockname()
    return ControlSocket(sock, name if isinstance(name, str) else os.fsdecode(name))


@contextlib.contextmanager
def signpost(folder: str, control: ControlSocket) -> Iterator[None]:
    """Keep a link to the control socket in `folder`, where there is one, for as long as the block lasts.

    A client that reloads finds the daemon by it, whatever the file in which the socket is named says by then. That it
    cannot be made is no reason not to run.
    """
    link = os.path.join(folder, LINK_NAME)  # noqa: PTH118 - as above
    fresh = f"{link}.new"
    if folder:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the name of an abstract socket has a NUL
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)  # noqa: PTH108 - as above
            os.symlink(os.path.abspath(control.path), fresh)  # noqa: PTH100, PTH211 - as above
            os.replace(fresh, link)  # noqa: PTH105 - as above
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if folder and os.readlink(link) == os.path.abspath(control.path):  # noqa: PTH100, PTH115 - as above
                os.unlink(link)  # noqa: PTH108 - as above


def bind_tcp(host: str, port: int) -> socket.socket:
    """Listen on a TCP address. Raises ListenError, which names the holder of a port that is taken where it can."""
    what = f"metrics address {host}:{port}"
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            what, f"cannot be resolved ({error})", "set metrics.host to an address of this host"
        ) from None
    family, kind, protocol, _name, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(what, f"is taken by {_holder(port)}", "set metrics.port to a free port") from None
        raise ListenError(what, _words(error), "set metrics.host and metrics.port to an address of this host") from None
    return sock


def peer_of(sock: socket.socket) -> Peer | None:
    """Return who connected, as the kernel noted it then; None for anything but a Unix socket."""
    if sock.family != socket.AF_UNIX:
        return None
    return Peer(*_PEERCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)))


# --- the control socket, step by step


def _check_length(path: str) -> None:
    length = len(os.fsencode(path))
    if length > _MAX_PATH:
        why = f"the path has {length} bytes, a Unix socket's may have {_MAX_PATH}"
        raise ListenError(f"control socket {path}", why, "set control.socket to a shorter path")


def _gid(group: str | None, path: str) -> int | None:
    if group is None:
        return None
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        what = f"control socket {path}"
        raise ListenError(what, f"there is no group {group!r}", "create it, or correct control.group") from None


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(exist_ok=True)
        # A tight umask would keep the socket's own group out.
        directory.chmod(0o755)


def _lock_path(path: str) -> str:
    return f"{path}.lock"


def _lock(path: str) -> int:
    """Take the lock for life. Its file stays: removing it would let two daemons lock two files of one name."""
    # Only its owner may open it: a lock that anyone can take keeps the daemon from starting.
    lock = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
        os.close(lock)
        holder = (
            f"another vllm-supervisor holds it (pid {pid})" if pid.isdigit() else "another vllm-supervisor holds it"
        )
        remedy = "stop that one, or give this one its own control.socket and state_dir"
        raise AlreadyRunningError(f"control socket {path}", holder, remedy) from None
    except BaseException:
        os.close(lock)
        raise
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _clear(path: str) -> None:
    """Remove a stale socket. Raises ListenError for anything that is not ours to remove."""
    what = f"control socket {path}"
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        if stat.S_ISDIR(found.st_mode):
            raise ListenError(what, "the path is a folder", "set control.socket to a file in it")
        raise ListenError(what, "the path is taken by something that is no socket", "remove it, or set control.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        refused = probe.connect_ex(path)
    if refused not in {errno.ECONNREFUSED, errno.ENOENT}:
        # A full backlog (EAGAIN) and another kind of socket (EPROTOTYPE) are somebody's as well.
        raise ListenError(what, "another program listens on it", "stop that program, or set control.socket")
    os.unlink(path)  # noqa: PTH108 - as in `close`


def _bind(path: str, claim: _Claim) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The umask rather than a chmod afterwards, and the group before listen: until then nobody can connect.
        umask = os.umask(0o777 & ~claim.mode)
        try:
            sock.bind(path)
        finally:
            os.umask(umask)
        if claim.gid is not None:
            os.chown(path, -1, claim.gid, follow_symlinks=False)
        sock.listen(_BACKLOG)
    except BaseException:
        if sock.getsockname():
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - as above
        sock.close()
        raise
    return sock


def _is_at(descriptor: int, path: str) -> bool:
    """Say whether `path` leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# --- words


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _cannot(path: str, error: OSError) -> ListenError:
    place = f" ({error.filename})" if isinstance(error.filename, str) and error.filename != path else ""
    remedy = "set control.socket to a path that this user may write"
    return ListenError(f"control socket {path}", f"{_words(error)}{place}", remedy)


def _holder(port: int) -> str:
    """Name the process that listens on `port`, as far as this user may see it."""
    import psutil  # noqa: PLC0415 - a megabyte that only this failure needs

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"pid {connection.pid} ({command[:200]})"
    return "another process"
