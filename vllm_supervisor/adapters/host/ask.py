"""Asks another program, for a bounded time."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SECONDS = 10.0
"""A driver that hangs must not hang the doctor: nvidia-smi answers within 2 s on an eight-GPU host without
persistence mode."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said: `text` is None where it could not be asked, did not end or failed, and `why` says which."""

    text: str | None
    why: str = ""


def ask(command: Sequence[str], env: Mapping[str, str], *, user: int | None = None, seconds: float = SECONDS) -> Answer:
    """Run `command` (an absolute path and arguments) in a session of its own and return its standard output.

    Run by root, it runs as `user` and with that user's groups only: what an environment of the service's user holds is
    not for root to execute. Whatever it started is killed when the time is over.
    """
    name = os.path.basename(command[0])  # noqa: PTH119 - a word of a command line
    if user == os.geteuid() or os.geteuid() != 0:
        user = None
    group, groups = (None, None) if user is None else _groups(user)
    try:
        process = subprocess.Popen(  # noqa: S603 - the programs are those that the configuration or this package names
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            user=user,
            group=group,
            extra_groups=groups,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Answer(None, f"{name} cannot be run: {getattr(error, 'strerror', None) or error}")
    with process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return Answer(None, f"{name} did not answer within {seconds:g} s")
    if process.returncode:
        said = (err.strip() or out.strip()).splitlines()
        return Answer(None, f"{name} failed with status {process.returncode}" + (f": {said[-1][:200]}" if said else ""))
    return Answer(out)


def _groups(uid: int) -> tuple[int, list[int]]:
    import pwd  # noqa: PLC0415 - only root on behalf of another user needs it

    entry = pwd.getpwuid(uid)
    return entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)
