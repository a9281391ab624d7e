"""The kernel's process table, read by hand: about 10 us a process, where psutil takes ten times as long (measured)."""

import os
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

_PF_KTHREAD = 0x0020_0000
_CHUNK = 65536


class Stat(NamedTuple):
    """A line of `/proc/PID/stat`. `start` (clock ticks since boot) tells a process from a later one with its pid."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    threads: int
    start: int
    kernel: bool

    @property
    def gone(self) -> bool:
        """True for a zombie whose every thread has ended. One with a living thread still computes and holds memory."""
        return self.state == "X" or (self.state == "Z" and self.threads <= 1)


def parse_stat(line: bytes) -> Stat:
    """Read one line. The name may hold spaces and parentheses; what follows the last one is fixed."""
    opened, closed = line.index(b"("), line.rindex(b")")
    rest = line[closed + 2 :].split(None, 20)
    return Stat(
        pid=int(line[:opened]),
        name=line[opened + 1 : closed].decode(errors="replace"),
        state=rest[0].decode(),
        parent=int(rest[1]),
        group=int(rest[2]),
        session=int(rest[3]),
        threads=int(rest[17]),
        start=int(rest[19]),
        kernel=bool(int(rest[6]) & _PF_KTHREAD),
    )


class Proc:
    """`/proc`, or a copy of it in tests. Blocking; OSError passes when it is ours (out of descriptors)."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self.root = str(root)

    def stat(self, pid: int) -> Stat | None:
        """Return what the kernel says of `pid`; None when there is none, or `hidepid` hides it (not ours then)."""
        try:
            line = self._read(f"{pid}/stat")
        except PermissionError:
            return None
        return parse_stat(line) if line else None

    def table(self, skip: Container[int] = frozenset()) -> dict[int, Stat]:
        """Return every process, but those to skip, that is visible and stays long enough to be read."""
        pids = [int(name) for name in os.listdir(self.root) if name.isdecimal()]  # noqa: PTH208  pathlib costs three times as much here
        stats = (self.stat(pid) for pid in pids if pid not in skip)
        return {stat.pid: stat for stat in stats if stat is not None}

    def environ(self, pid: int) -> bytes | None:
        """Return the environment block, empty when erased or while `pid` is in exec; None when it cannot be read."""
        try:
            return self._read(f"{pid}/environ")
        except PermissionError:
            return None

    def command(self, pid: int) -> list[str]:
        """Return the arguments of `pid`, none when they cannot be read."""
        try:
            line = self._read(f"{pid}/cmdline") or b""
        except PermissionError:
            return []
        return [part.decode(errors="replace") for part in line.rstrip(b"\0").split(b"\0") if part]

    def sockets(self, pid: int) -> frozenset[int] | None:
        """Return the inodes of the sockets that `pid` holds; None when they cannot be read."""
        folder = f"{self.root}/{pid}/fd"
        inodes = set()
        try:
            for name in os.listdir(folder):  # noqa: PTH208  as above
                target = _link(f"{folder}/{name}")
                if target.startswith("socket:["):
                    inodes.add(int(target[8:-1]))
        except PermissionError:
            return None
        except (FileNotFoundError, ProcessLookupError):
            return frozenset()
        return frozenset(inodes)

    def boot_id(self) -> str:
        """Return the name of this boot of this kernel."""
        return (self._read("sys/kernel/random/boot_id") or b"").decode().strip()

    def text(self, name: str) -> str | None:
        """Return a small text file below the root; None when it is not there or cannot be read."""
        try:
            data = self._read(name)
        except PermissionError:
            return None
        return None if data is None else data.decode(errors="replace")

    def _read(self, name: str) -> bytes | None:
        # Only "gone" may be taken for absence: an engine must not look gone because we ran out of descriptors.
        try:
            fd = os.open(f"{self.root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return None
        try:
            parts = [os.read(fd, _CHUNK)]
            while parts[-1]:
                parts.append(os.read(fd, _CHUNK))
        except (FileNotFoundError, ProcessLookupError):
            return None
        finally:
            os.close(fd)
        return b"".join(parts)


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  as above
    except (FileNotFoundError, ProcessLookupError):
        return ""
