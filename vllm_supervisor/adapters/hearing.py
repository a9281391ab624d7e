"""Signals, taken as they come, without a moment in which one would kill us.

An event loop's own receiver gives the default dispositions back when it ends, and a signal that comes before they are
changed again ends a daemon that has done its work with a signal's status. These handlers outlive every loop.
"""

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from types import FrameType

import anyio


class Hearing:
    """Hears `numbers` from its making until `ignore`. To be made in the main thread; what comes early is kept."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        # Close-on-exec, and never closed: a handler may run until the very end.
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        for number in numbers:
            signal.signal(number, self._hear)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        # A full pipe has thousands that nobody heeded yet: one more says nothing new.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, bytes((number,)))

    def ignore(self) -> None:
        """Ignore them from now on, until the process ends."""
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)

    async def heard(self) -> AsyncIterator[signal.Signals]:
        """Yield each signal, in the order in which they came."""
        while True:
            await anyio.wait_readable(self._read)
            for number in os.read(self._read, 256):
                yield signal.Signals(number)
