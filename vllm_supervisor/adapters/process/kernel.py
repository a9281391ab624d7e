"""What the kernel offers and the standard library does not, and what a child inherits of us."""

import ctypes
import os
import signal
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37

_RESTORED_BY_POPEN = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
"""Python ignores these for itself and gives a child the default."""
_STOPPING = frozenset({signal.SIGCHLD, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
"""Back to the default: an ignored SIGCHLD loses exit statuses, and the others stop us where any program stops."""


def become_subreaper() -> None:
    """Have orphans of our descendants become our children, instead of init's, so that they stay in sight.

    Raises OSError where the kernel refuses. Not inherited by children.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def is_subreaper() -> bool:
    """Say whether orphans of our descendants come to us."""
    flag = ctypes.c_int(0)
    asked = ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
    return bool(asked == 0 and flag.value)


def normalize_signals() -> None:
    """Make what we inherited harmless for our children. Call once in the main thread, before any other thread.

    exec resets a caught signal to its default and keeps an ignored one ignored. Under `nohup`, or after `&` in a
    script, we ignore SIGHUP or SIGINT, and vLLM would too, for ever: an engine deaf to SIGINT. So what was ignored is
    caught and dropped instead, and the mask is emptied.
    """
    for number in signal.valid_signals():
        if number in _RESTORED_BY_POPEN or signal.getsignal(number) is not signal.SIG_IGN:
            continue
        signal.signal(number, signal.SIG_DFL if number in _STOPPING else _drop)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _drop(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: what the one who started us wanted ignored."""
