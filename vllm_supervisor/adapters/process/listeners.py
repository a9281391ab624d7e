"""TCP sockets as the kernel lists them, and whether those that answer at our address are the engine's."""

import ipaddress
import struct
from collections.abc import Iterable
from typing import NamedTuple

from vllm_supervisor.adapters.process.procfs import Proc

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LISTEN = 0x0A
TIME_WAIT = 0x06


class Socket(NamedTuple):
    """One TCP socket: its local end, its state as the kernel numbers it, its user, and its inode (0 when ownerless)."""

    address: Address
    port: int
    state: int
    uid: int
    inode: int


def sockets_on(proc: Proc, port: int, whose: str = "self") -> list[Socket] | None:
    """Return the sockets with local `port` in the network namespace of `whose`; None when they cannot be read.

    A socket that is bound and neither listens nor is connected is in no such list.
    """
    texts = [proc.text(f"{whose}/net/{name}") for name in ("tcp", "tcp6")]
    if texts[0] is None and texts[1] is None:
        return None
    suffix = f":{port:04X}"
    found = []
    for text in texts:
        for line in (text or "").splitlines()[1:]:
            fields = line.split(None, 10)
            if fields[1].endswith(suffix):
                found.append(Socket(_address(fields[1][:-5]), port, int(fields[3], 16), int(fields[7]), int(fields[9])))
    return found


def owned(proc: Proc, members: Iterable[int], host: str, port: int) -> bool | None:
    """Say whether all sockets that answer for `host` on `port` belong to `members`; None where it cannot be read.

    All of them: with SO_REUSEPORT a stranger may share the port, and then some probes ask the stranger.
    """
    members = list(members)
    if not members:
        return False
    known = None
    for pid in members:  # they share a network namespace; the first may be gone, or a zombie without one
        known = sockets_on(proc, port, str(pid))
        if known:
            break
    if known is None:
        return None
    wanted = {socket.inode for socket in answering(known, host)}
    if not wanted:
        return False
    unreadable = False
    for pid in members:
        held = proc.sockets(pid)
        unreadable = unreadable or held is None
        wanted -= held or frozenset()
        if not wanted:
            return True
    return None if unreadable else False


def answering(sockets: Iterable[Socket], host: str) -> list[Socket]:
    """Return the listening sockets that a connection to `host` reaches: the most specific address wins, as in Linux."""
    listening = [socket for socket in sockets if socket.state == LISTEN]
    target = literal(host)
    if target is None:
        return listening
    if target.is_unspecified:  # whoever asks locally asks loopback
        target = ipaddress.ip_address("127.0.0.1" if target.version == 4 else "::1")  # noqa: PLR2004  IP version
    exact = [socket for socket in listening if socket.address == target]
    any_same = [s for s in listening if s.address.is_unspecified and s.address.version == target.version]
    any_other = [s for s in listening if s.address.is_unspecified]
    return exact or any_same or any_other


def overlaps(socket: Socket, host: str) -> bool:
    """Say whether `socket` could keep another from binding `host` at its port."""
    target = literal(host)
    if target is None or target.is_unspecified or socket.address.is_unspecified:
        return True
    return socket.address == target


def literal(host: str) -> Address | None:
    """Read an address; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _address(digits: str) -> Address:
    # Words of 32 bits, each in the byte order of the machine.
    words = (int(digits[at : at + 8], 16) for at in range(0, len(digits), 8))
    packed = b"".join(struct.pack("=I", word) for word in words)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
