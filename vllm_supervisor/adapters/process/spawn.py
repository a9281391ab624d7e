"""The launch itself: what a child gets, and nothing besides."""

import contextlib
import errno
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from vllm_supervisor.domain.spec import LaunchSpec
from vllm_supervisor.errors import LaunchError

_OOM_STEP = 500
_MOST_LIKELY = 1000
"""The range of oom_score_adj is -1000 to 1000 (proc(5))."""


def launch(executable: str, spec: LaunchSpec, env: Mapping[str, str], log: int) -> int:
    """Start the launcher and return its pid once it has been executed. Raises LaunchError. Blocking, about 1 ms.

    The head of a session of its own, stdin from nowhere, output into `log`, no other descriptor, an empty signal mask.
    Signals have their default dispositions provided that `normalize_signals` ran in this process: doing it
    between fork and exec needs a `preexec_fn`, which costs vfork, and with it tens of milliseconds in a grown daemon.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # of this thread, and thereby of the child
    try:
        child = subprocess.Popen(  # noqa: S603  the operator's own launcher, never a shell
            [executable, *spec.argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=True,
            cwd=spec.cwd,
            env=env,
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:  # ValueError: a null byte in an argument
        raise _explained(exc, executable, spec) from exc
    # Reaping is the engine's, by pidfd. Popen must neither warn that its child still runs nor wait for it.
    child.returncode = 0
    offer_to_oom_killer(child.pid)
    return child.pid


def offer_to_oom_killer(pid: int, proc: Path = Path("/proc")) -> None:
    """Give the engine a worse score than our own: of the two, the daemon is needed to tell and to restart.

    Children inherit it. Raising needs no privilege; where it fails all the same, both are as likely as before.
    """
    with contextlib.suppress(OSError, ValueError):
        own = int((proc / "self/oom_score_adj").read_text())
        (proc / str(pid) / "oom_score_adj").write_text(str(min(_MOST_LIKELY, own + _OOM_STEP)))


def _explained(exc: OSError | ValueError, executable: str, spec: LaunchSpec) -> LaunchError:
    what = f"launcher {spec.argv[0]}"
    if isinstance(exc, ValueError):
        return LaunchError(what, str(exc), "correct engine.vllm.launcher and extra_args")
    if spec.cwd is not None and not Path(spec.cwd).is_dir():
        return LaunchError(what, f"its directory {spec.cwd} does not exist", "correct engine.vllm.cwd", errno=exc.errno)
    if exc.errno == errno.ENOENT and Path(executable).exists():
        why = f"{executable} names an interpreter that does not exist"
        return LaunchError(what, why, "reinstall it, or correct engine.vllm.launcher", errno=exc.errno)
    if exc.errno == errno.ENOEXEC:
        why = f"{executable} is neither a program nor a script with a #! line"
        return LaunchError(what, why, "correct engine.vllm.launcher", errno=exc.errno)
    why = f"{executable} cannot be executed: {exc.strerror}"
    return LaunchError(what, why, "correct engine.vllm.launcher", errno=exc.errno)
