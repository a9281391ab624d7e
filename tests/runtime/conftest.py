"""The whole loop on fakes, in virtual time: a day passes in milliseconds, and always the same way."""

from typing import Any

import pytest
from trio.testing import MockClock


@pytest.fixture
def clock() -> MockClock:
    """Return a clock that jumps as soon as everybody sleeps. A fresh one each: it remembers its time."""
    return MockClock(autojump_threshold=0)


@pytest.fixture
def anyio_backend(clock: MockClock) -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": clock}
