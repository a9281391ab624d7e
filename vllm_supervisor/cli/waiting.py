"""Waits for the engine by asking for its status until it fits."""

import time
from collections.abc import Callable

from vllm_supervisor.cli.client import TIMEOUT, Status, get_json
from vllm_supervisor.cli.render import hindrance, why_failed
from vllm_supervisor.errors import ExitCode, SupervisorError

INTERVAL = 0.1
"""Seconds. A status costs the daemon about 0.1 ms."""


class TimedOutError(SupervisorError):
    """Raised when the state that was waited for did not come in time."""

    exit_code = ExitCode.NOT_READY


class FailedMeanwhileError(SupervisorError):
    """Raised when the engine became `failed` while something else was waited for."""

    exit_code = ExitCode.FAILED_MEANWHILE


def _ignore(_status: Status) -> None:
    pass


def wait_until(
    path: str,
    fits: Callable[[Status], bool],
    goal: str,
    timeout: float | None,
    seen: Callable[[Status], None] = _ignore,
) -> Status:
    """Return the first status that `fits`, which may raise. `seen` is told each that does not.

    Raises TimedOutError after `timeout` seconds (None: never), NoDaemonError when the daemon goes away.
    """
    began = time.monotonic()
    while True:
        status = get_json(path, "/v1/status", TIMEOUT)
        if fits(status):
            return status
        seen(status)
        passed = time.monotonic() - began
        if timeout is not None and passed >= timeout:
            blocked = hindrance(status)
            why = f"not {goal} after {timeout:g} s, but {status.get('state')}" + (f": {blocked}" if blocked else "")
            raise TimedOutError("timed out", why, "see `vllm-supervisor status`")
        time.sleep(INTERVAL if timeout is None else min(INTERVAL, max(0.0, timeout - passed)))


def failed(status: Status) -> FailedMeanwhileError:
    """Return the error that says why the engine failed."""
    diagnosis = (status.get("last_exit") or {}).get("diagnosis") or {}
    remedy = diagnosis.get("action") or "see `vllm-supervisor logs`, then `vllm-supervisor start`"
    why = why_failed(status)
    # Why it failed ends with what to do about that.
    then = "see `vllm-supervisor status`, and `vllm-supervisor start` afterwards" if str(remedy) in why else remedy
    return FailedMeanwhileError("the engine failed", why, str(then))
