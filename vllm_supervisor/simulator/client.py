"""The API server's view of the engine: requests go out, tokens come back, and the figures that came with them stay."""

import itertools
import threading
import time
from queue import SimpleQueue

from vllm_supervisor.simulator.link import Link, Message
from vllm_supervisor.simulator.metrics import Metrics

Token = tuple[int, str | None]
"""Which choice it belongs to, and why that ended where it did."""


class EngineDeadError(Exception):
    """The engine is gone, or went before it had answered."""


class Ticket:
    """Where the tokens of one request arrive; None stands for the engine's death."""

    __slots__ = ("first_at", "id", "index", "limit", "prompt", "queue", "submitted", "tokens")

    def __init__(self, id_: str, index: int, prompt: int, limit: int, queue: "SimpleQueue[Token | None]") -> None:
        self.id = id_
        self.index = index
        self.prompt = prompt
        self.limit = limit
        self.queue = queue
        self.submitted = time.monotonic()
        self.first_at: float | None = None
        self.tokens = 0


class EngineClient:
    """Submitting is for any thread; `hear` and `died` are for the one that reads the link."""

    def __init__(self, link: Link, metrics: Metrics) -> None:
        self.dead = False
        self._link = link
        self._metrics = metrics
        self._tickets: dict[str, Ticket] = {}
        self._lock = threading.Lock()
        self._ids = itertools.count()

    @property
    def in_flight(self) -> int:
        """Requests that the engine has not finished."""
        return len(self._tickets)

    def submit(
        self, prompt: int, limit: int, reason: str, queue: "SimpleQueue[Token | None]", index: int = 0
    ) -> Ticket:
        """Have `limit` tokens made after a prompt of `prompt` tokens; it ends for `reason`. Raises EngineDeadError."""
        ticket = Ticket(f"r{next(self._ids)}", index, prompt, limit, queue)
        with self._lock:
            if self.dead:
                raise EngineDeadError
            self._tickets[ticket.id] = ticket
        # Should the engine be gone by now, `died` has answered or will answer the ticket.
        self._link.send({"id": ticket.id, "prompt": prompt, "limit": limit, "reason": reason})
        return ticket

    def abort(self, tickets: list[Ticket]) -> None:
        """Forget requests whose client is gone; those that ended are no error."""
        for ticket in tickets:
            with self._lock:
                known = self._tickets.pop(ticket.id, None)
            if known is not None:
                self._metrics.aborted()
                self._link.send({"abort": ticket.id})

    def hear(self, message: Message) -> None:
        """Hand out what one message of the engine brought."""
        now = time.monotonic()
        self._metrics.stepped(message, now)
        for id_, reason in message["outputs"]:
            with self._lock:
                ticket = self._tickets.pop(id_, None) if reason else self._tickets.get(id_)
            if ticket is None:
                continue
            ticket.tokens += 1
            if ticket.first_at is None:
                ticket.first_at = now
            if reason:
                self._metrics.finished(ticket, reason, now)
            ticket.queue.put((ticket.index, reason))

    def died(self) -> None:
        """Tell all who wait that nothing will come any more. Figures keep their last values (measured, 0.32)."""
        with self._lock:
            self.dead = True
            tickets = list(self._tickets.values())
            self._tickets.clear()
        for ticket in tickets:
            ticket.queue.put(None)
