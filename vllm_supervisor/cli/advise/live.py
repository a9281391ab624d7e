"""Asks the daemon for its advice."""

from typing import NamedTuple

from vllm_supervisor.cli.client import TIMEOUT, Status, get_json
from vllm_supervisor.errors import SupervisorError

_MARGIN = 15.0
"""Seconds beyond the window: each look at a busy engine may take some."""


class Question(NamedTuple):
    """What is asked, and of whom."""

    socket: str
    window: float | None
    concurrency: int | None

    def ask(self) -> Status:
        """Return the daemon's answer with an advice in it. Raises NoDaemonError, SupervisorError (1) for no data."""
        answer = self.try_ask()
        if answer.get("advice") is None:
            why = str(answer.get("why") or "the daemon has no figures")
            remedy = "wait until it serves (`vllm-supervisor wait`), or judge a log with --log FILE"
            raise SupervisorError("no data to judge", why, remedy)
        return answer

    def try_ask(self) -> Status:
        """Return the daemon's answer, `advice` null where there is nothing to go by. Raises NoDaemonError."""
        query = [
            f"{name}={value:g}" for name, value in (("window", self.window), ("concurrency", self.concurrency)) if value
        ]
        target = "/v1/advice" + (f"?{'&'.join(query)}" if query else "")
        return get_json(self.socket, target, TIMEOUT + _MARGIN + (self.window or 0.0))
