"""Poll with a deadline: no test sleeps for a fixed time."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import pytest

T = TypeVar("T")


def eventually(check: Callable[[], T], within: float = 10.0, every: float = 0.02, what: str = "") -> T:
    """Return the first truthy result of `check`; fail after `within` seconds, showing the last result."""
    deadline = time.monotonic() + within
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within} s: {what or check}; last: {result!r}")
        time.sleep(every)


async def aeventually(
    check: Callable[[], Awaitable[T]], within: float = 10.0, every: float = 0.02, what: str = ""
) -> T:
    """Do as `eventually` does, without blocking the loop."""
    deadline = anyio.current_time() + within
    while True:
        result = await check()
        if result:
            return result
        if anyio.current_time() > deadline:
            pytest.fail(f"not within {within} s: {what or check}; last: {result!r}")
        await anyio.sleep(every)
