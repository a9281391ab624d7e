"""A log that a test writes."""

from collections.abc import AsyncIterator


class FakeLogs:
    """Implements `runtime.api.LogReader`."""

    def __init__(self, *lines: bytes) -> None:
        self.lines = list(lines)
        self.unread: str | None = None

    async def why_unread(self) -> str | None:
        return self.unread

    async def tail(self, lines: int) -> bytes:
        return b"".join(self.lines[-lines:] if lines else [])

    async def follow(self, lines: int) -> AsyncIterator[bytes]:
        yield await self.tail(lines)
        yield b"appended\n"
