"""Members of the tree: forked, so that a start costs milliseconds, and told apart by title as vLLM's are."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from vllm_supervisor.simulator.knobs import Knobs

_HANDLED = (signal.SIGTERM, signal.SIGINT)


def fork(knobs: Knobs, name: str, body: Callable[[], int], closes: Iterable[socket.socket] = ()) -> int:
    """Run `body` in a child with default signal dispositions, and exit with what it returns. Returns the pid.

    `closes` are ends of sockets that the child must not hold: whoever watches for their end of file would wait for
    this child too.
    """
    # Until its handlers are reset, a signal in the child would be written to the parent's wake-up descriptor.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    pid = os.fork()
    if pid == 0:
        _live(knobs, body, closes, before)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # By the parent, so that a child that is killed at once was there all the same.
    note(knobs, name, pid)
    return pid


def _live(knobs: Knobs, body: Callable[[], int], closes: Iterable[socket.socket], mask: set[int]) -> NoReturn:
    """Be the child, which never returns into its parent's code. `mask` are the signals that were blocked before."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for end in closes:
            end.close()
        guard(knobs)
        code = body()
    except BaseException:  # noqa: BLE001 - whatever it is, it ends here
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def note(knobs: Knobs, name: str, pid: int) -> None:
    """Add a process to DIR/pids, where a state directory was given."""
    if knobs.state_dir is not None:
        with open(os.path.join(knobs.state_dir, "pids"), "a", encoding="utf-8") as file:  # noqa: PTH118, PTH123 - pathlib costs 5 ms of each start
            file.write(f"{pid} {name}\n")


def guard(knobs: Knobs) -> None:
    """End this process after `max-seconds`, whatever else it does. Timers are not inherited: each sets its own."""
    if knobs.max_seconds > 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, knobs.max_seconds)


def end_by(number: int) -> None:
    """End this process by the signal `number`, as if nobody had handled it."""
    if number != signal.SIGKILL:
        import resource  # noqa: PLC0415 - only here

        # A simulated segmentation fault has no core worth keeping.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    os.kill(os.getpid(), number)
