"""Is the port free, and if not, who holds it."""

import errno
import os
import pwd
import socket
import struct
from collections.abc import Iterable

from vllm_supervisor.adapters.process.listeners import LISTEN, TIME_WAIT, Socket, literal, overlaps, sockets_on
from vllm_supervisor.adapters.process.procfs import Proc
from vllm_supervisor.domain.model import Blocker, BlockerKind
from vllm_supervisor.domain.redaction import redacted
from vllm_supervisor.domain.secret import MASK, is_secret_name

_REMEDY = "stop it or set engine.vllm.port"
_SHOWN = 200
"""Characters of a holder's command line that are shown."""


def port_blocker(proc: Proc, host: str, port: int) -> Blocker | None:
    """Say what keeps vLLM from binding `host` and `port` now. Blocking, also on DNS for a name.

    vLLM binds before it loads the model and listens when it is ready (0.9 and later), with SO_REUSEADDR: a second
    vLLM at our port is bound, does not listen, is in no list of /proc, and does not keep us from binding with
    SO_REUSEADDR. Hence the second, plain bind, whose failure has to be explained by connections in TIME_WAIT.
    """
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET  # as vLLM chooses it
    try:
        address = socket.getaddrinfo(host.strip("[]"), port, family, socket.SOCK_STREAM)[0][4]
    except socket.gaierror as exc:
        return Blocker(BlockerKind.PORT, f"{host} has no address here: {exc.strerror}", "correct engine.vllm.host")
    except UnicodeError:
        return Blocker(BlockerKind.PORT, f"{host} is no host name", "correct engine.vllm.host")
    error = _bind(family, address, reuse=True)
    if error == errno.EADDRINUSE:
        return Blocker(BlockerKind.PORT, f"{place} is held by {_holder(proc, host, port)}", _REMEDY)
    if error == errno.EADDRNOTAVAIL:
        return Blocker(BlockerKind.PORT, f"{place} is no address of this host", "correct engine.vllm.host")
    if error == errno.EACCES:
        why = f"{place} may not be bound by user {os.geteuid()}"
        return Blocker(BlockerKind.PORT, why, "set engine.vllm.port to 1024 or above")
    if error:
        return Blocker(BlockerKind.PORT, f"{place} cannot be bound: {os.strerror(error)}", "correct engine.vllm.host")
    if _bind(family, address, reuse=False) == errno.EADDRINUSE:
        silent = [held for held in _silent(port) if overlaps(held, host)]
        if silent or not sockets_on(proc, port):
            return Blocker(BlockerKind.PORT, f"{place} is held by {_holder(proc, host, port)}", _REMEDY)
    return None


def shown(command: Iterable[str]) -> str:
    """Return a command line fit to be shown: bounded, and without what its options name a secret."""
    words, secret = [], False
    for word in command:
        name, equals, _ = word.partition("=")
        names_secret = is_secret_name(name) and (name.startswith("-") or equals == "=")
        words.append(
            MASK if secret and not word.startswith("-") else f"{name}={MASK}" if names_secret and equals else word
        )
        secret = names_secret and not equals
    # Anybody chooses his own command line: it must not break a line of ours, or colour a terminal.
    text = "".join(c if c.isprintable() else "?" for c in redacted(" ".join(words)))
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _bind(family: int, address: object, *, reuse: bool) -> int:
    """Try to bind, without listening; return the error, 0 for none."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
            probe.bind(address)  # type: ignore[arg-type]  # getaddrinfo's own result
    except OSError as exc:
        return exc.errno or errno.EIO
    return 0


def _holder(proc: Proc, host: str, port: int) -> str:
    """Name the process behind the port where that is permitted, else its user."""
    held = [item for item in (sockets_on(proc, port) or []) if item.state != TIME_WAIT and item.inode]
    held = [item for item in held + _silent(port) if overlaps(item, host)]
    held.sort(key=lambda item: item.state != LISTEN)
    inodes = {item.inode for item in held}
    for pid in proc.table() if inodes else ():
        if inodes & (proc.sockets(pid) or frozenset()):
            return f"pid {pid} ({shown(proc.command(pid)) or 'unnamed'})"
    return f"a process of user {_user(held[0].uid)}" if held else "another process, which cannot be seen from here"


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_DONE, _NLMSG_ERROR = 3, 2
_BOUND_INACTIVE = 13
_REQUEST = struct.Struct("=IHHII BBBBI 48x")
_HEADER = struct.Struct("=IHHII")
_ANSWER = struct.Struct("=BBBB 2s 2x 16s 28x 12x II")


def _silent(port: int) -> list[Socket]:
    """Return the sockets bound to `port` that neither listen nor are connected, as Linux 6.8 and later list them.

    Empty on older kernels, and where netlink is not permitted.
    """
    found: list[Socket] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found.extend(item for item in _diagnose(family) if item.port == port)
        except OSError:
            continue
    return found


def _diagnose(family: int) -> list[Socket]:
    found: list[Socket] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(1.0)
        states = 1 << _BOUND_INACTIVE
        link.send(
            _REQUEST.pack(_REQUEST.size, _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0, family, socket.IPPROTO_TCP, 0, 0, states)
        )
        while True:
            data, at = link.recv(1 << 16), 0
            while at + _HEADER.size <= len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind in {_NLMSG_DONE, _NLMSG_ERROR} or length < _HEADER.size:
                    return found
                found.append(_answer(data, at + _HEADER.size))
                at += (length + 3) & ~3


def _answer(data: bytes, at: int) -> Socket:
    family, state, _, _, sport, source, uid, inode = _ANSWER.unpack_from(data, at)
    text = socket.inet_ntop(family, source[: 4 if family == socket.AF_INET else 16])
    address = literal(text)
    if address is None:  # inet_ntop writes what ip_address reads
        raise OSError(errno.EPROTO, text)
    return Socket(address, int.from_bytes(sport), state, uid, inode)
