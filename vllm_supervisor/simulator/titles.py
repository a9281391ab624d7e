"""Members retitle themselves as vLLM's do, by setproctitle's means: over the memory of argv, and of the environment.

That is why `/proc/PID/environ` of vLLM's children reads as zeros unless SPT_NOENV is set (measured, 0.32).
"""

import os
from collections.abc import Mapping

_ARG_START, _ARG_END, _ENV_START, _ENV_END = 48, 49, 50, 51
"""Fields of /proc/PID/stat, counted from 1 (proc_pid_stat(5))."""
_COMM_MAX = 15


def retitle(title: str, environ: Mapping[str, str], *, comm: str | None = None) -> None:
    """Show this process as `title` in `ps`; the environment's memory goes too unless `environ` has SPT_NOENV."""
    with open("/proc/self/stat", "rb") as stat:  # noqa: PTH123 - pathlib costs 5 ms of each start
        # The name may hold spaces and brackets; what follows the last bracket begins with field 3.
        fields = stat.read().rpartition(b")")[2].split()
    start, end, env_start, env_end = (int(fields[n - 3]) for n in (_ARG_START, _ARG_END, _ENV_START, _ENV_END))
    if "SPT_NOENV" not in environ and env_start == end:
        end = env_end
    _overwrite(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"))
    rename(comm or title)


def rename(comm: str) -> None:
    """Set the kernel's short name of this process (PR_SET_NAME): what `ps -o comm` shows, cut at 15 bytes."""
    with open("/proc/self/comm", "wb") as file:  # noqa: PTH123 - as above
        file.write(comm.encode()[:_COMM_MAX])


def _overwrite(address: int, data: bytes) -> None:
    try:
        memory = os.open("/proc/self/mem", os.O_RDWR)
        try:
            os.pwrite(memory, data, address)
        finally:
            os.close(memory)
    except OSError:
        # Hardened kernels refuse writes here (proc_mem.restrict_write, Linux 6.12); ctypes costs 10 ms, so only then.
        import ctypes  # noqa: PLC0415 - see above

        ctypes.memmove(address, data, len(data))
