"""So many requests in flight, no more and no fewer, within a budget."""

import anyio
from anyio.abc import TaskGroup

from vllm_supervisor.adapters.loadgen.stream import Seen, StreamClient

_AFTER_FAILURE = 1.0
"""Seconds that a client waits that was refused: a polite one does not knock on."""


class ClosedLoop:
    """Clients that each send a request when the one before is answered. Cancelling the group ends all streams.

    `budget` requests are sent at most, ever.
    """

    def __init__(self, group: TaskGroup, client: StreamClient, lengths: tuple[int, int], budget: int) -> None:
        self._group = group
        self._client = client
        self._lengths = lengths
        self._left = budget
        self._clients = 0
        self.seen = Seen()
        """What the requests saw since it was last replaced."""

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self._left <= 0

    def raise_to(self, concurrency: int) -> Seen:
        """Have so many clients, and begin a new record, which is returned."""
        self.seen = Seen()
        while self._clients < concurrency:
            self._clients += 1
            self._group.start_soon(self._go_on)
        return self.seen

    async def _go_on(self) -> None:
        while self._left > 0:
            self._left -= 1
            if not await self._client.ask(*self._lengths, lambda: self.seen):
                await anyio.sleep(_AFTER_FAILURE)
