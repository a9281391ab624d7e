"""Programs that build: they end with us, however we end, and their output is passed on."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from vllm_supervisor.errors import SupervisorError

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_GRACE = 5.0
_LONGEST = 300
_ELSEWHERE = frozenset({"PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"})
_LOADER = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD"})


def for_building(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that would import from or install to elsewhere."""
    return {name: value for name, value in environ.items() if name not in _ELSEWHERE}


def for_looking(environ: Mapping[str, str]) -> dict[str, str]:
    """Return them also without those that show libraries which a service started by systemd will not find."""
    return {name: value for name, value in for_building(environ).items() if name not in _LOADER}


def run(command: Sequence[str], say: Callable[[str], None], *, environ: Mapping[str, str], lock: int) -> None:
    """Run to the end, passing each line of its output to `say`.

    Raises SupervisorError where it fails. On any other way out (an interruption) its whole session is ended first. The
    child holds `lock` too: no other run begins while one whose parent was killed still writes.
    """
    parent = os.getpid()

    def die_with_us() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    what = " ".join(os.path.basename(word) for word in command[:1])  # noqa: PTH119 - a command's own name
    try:
        process = subprocess.Popen(  # noqa: S603 - the command is ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            umask=0o022,  # the service's user reads what root builds
            pass_fds=(lock,),
            start_new_session=True,
            preexec_fn=die_with_us,  # noqa: PLW1509 - this command has one thread
        )
    except OSError as error:
        raise SupervisorError(what, f"cannot be run: {error.strerror}", "repair it, or install uv") from error
    last = ""
    try:
        assert process.stdout is not None  # noqa: S101 - asked for above
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if line:
                say(line)
                last = line.strip()
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
    if status != 0:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        remedy = "see its lines above; nothing in use was changed"
        raise SupervisorError(what, f"{how}: {last[:_LONGEST] or 'it said nothing'}", remedy)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
