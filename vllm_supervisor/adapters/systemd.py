"""systemd's side of the daemon, without libsystemd: notifications (sd_notify(3)) and passed sockets (sd_listen_fds(3)).

What systemd says in the environment is taken out of it when it is read: a child that inherits NOTIFY_SOCKET could
report in our name.
"""

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

from vllm_supervisor.errors import ListenError

_FIRST_PASSED_FD = 3
_MAX_STATUS = 1000
"""Characters. systemd takes datagrams of up to 4096 bytes (PIPE_BUF)."""


class Notifier:
    """Tells systemd how we are: one datagram a call, without waiting, and without ever raising.

    Each call returns whether the datagram was taken; without systemd nothing happens and that is False.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.present = bool(address)
        """Whether there is a systemd to tell."""
        self.watchdog_interval = _watchdog_interval(environ)
        """Seconds between `watchdog` calls, half of what systemd allows; None where it does not ask for them."""

    def ready(self, status: str) -> bool:
        """Say that start-up is complete."""
        return self._send("READY=1", _status(status))

    def status(self, text: str) -> bool:
        """Show `text` in `systemctl status`."""
        return self._send(_status(text))

    def stopping(self, status: str) -> bool:
        """Say that the daemon is about to end."""
        return self._send("STOPPING=1", _status(status))

    def reloading(self) -> bool:
        """Say that a reload begins; `reloaded` ends it. The time is what Type=notify-reload requires."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self) -> bool:
        """Say that the reload is over, whatever came of it."""
        return self._send("READY=1")

    def extend_timeout(self, seconds: float) -> bool:
        """Ask for `seconds` more, from now, to start or to stop."""
        return self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def watchdog(self) -> bool:
        """Say that we are alive."""
        return self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> bool:
        if not self._address:
            return False
        with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(0)
            sock.sendto("\n".join(assignments).encode("utf-8", "replace"), self._address)
            return True
        return False


def listen_fds(environ: MutableMapping[str, str]) -> list[tuple[str, socket.socket]]:
    """Return the sockets that systemd passed to this process, with their names (FileDescriptorName=).

    They are made close-on-exec. Raises ListenError where what was passed is no socket.
    """
    pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    environ.pop("LISTEN_PIDFDID", None)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    passed: list[tuple[str, socket.socket]] = []
    for index in range(int(count)):
        fd = _FIRST_PASSED_FD + index
        try:
            os.set_inheritable(fd, False)  # noqa: FBT003 - os's own signature
            passed.append((names[index] if index < len(names) else "", socket.socket(fileno=fd)))
        except OSError as error:
            for _, sock in passed:
                sock.close()
            what = f"descriptor {fd} passed by systemd"
            raise ListenError(
                what, f"is no socket ({error.strerror})", "see the Listen lines of the .socket unit"
            ) from None
    return passed


def _watchdog_interval(environ: MutableMapping[str, str]) -> float | None:
    microseconds = environ.pop("WATCHDOG_USEC", "")
    pid = environ.pop("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(microseconds) / 2e6


def _status(text: str) -> str:
    # A line break would begin another assignment.
    return "STATUS=" + " ".join(text.split())[:_MAX_STATUS]
