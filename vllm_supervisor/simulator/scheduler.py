"""Continuous batching, reduced to what shows outside: who runs, who waits, how full the KV cache is."""

from collections import deque
from typing import NamedTuple


class Job:
    """A request inside the engine. `generated` tokens so far, of at most `limit`; then it ends for `reason`."""

    __slots__ = ("generated", "id", "limit", "prompt", "reason")

    def __init__(self, id_: str, prompt: int, limit: int, reason: str) -> None:
        self.id = id_
        self.prompt = prompt
        self.limit = limit
        self.reason = reason
        self.generated = 0

    @property
    def tokens(self) -> int:
        """Tokens that it holds in the KV cache."""
        return self.prompt + self.generated


class Step(NamedTuple):
    """What one step of the engine did. `outputs`: one token each, with the reason where the request ended."""

    outputs: tuple[tuple[str, str | None], ...]
    prompt_tokens: int
    preempted: int


class Scheduler:
    """First come, first served; at most `max_seqs` at once, and no more than fit in `kv_tokens`."""

    def __init__(self, max_seqs: int, kv_tokens: int) -> None:
        self._max_seqs = max_seqs
        self._kv_tokens = kv_tokens
        self._used = 0
        self._running: list[Job] = []
        self._waiting: deque[Job] = deque()

    @property
    def running(self) -> int:
        """Requests that get tokens."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that do not, yet."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return min(1.0, self._used / self._kv_tokens)

    @property
    def busy(self) -> bool:
        """Whether there is anything to step for."""
        return bool(self._running or self._waiting)

    def add(self, job: Job) -> None:
        """Queue a request."""
        self._waiting.append(job)

    def abort(self, id_: str) -> None:
        """Forget a request; one that is already gone is no error."""
        for job in self._running:
            if job.id == id_:
                self._running.remove(job)
                self._used -= job.tokens
                return
        self._waiting = deque(job for job in self._waiting if job.id != id_)

    def step(self) -> Step:
        """Admit what fits, then give each running request one token."""
        preempted = self._make_room()
        prompt_tokens = self._admit()
        outputs = []
        for job in self._running:
            job.generated += 1
            outputs.append((job.id, job.reason if job.generated >= job.limit else None))
        self._used += len(self._running)
        self._used -= sum(job.tokens for job in self._running if job.generated >= job.limit)
        self._running = [job for job in self._running if job.generated < job.limit]
        return Step(tuple(outputs), prompt_tokens, preempted)

    def _make_room(self) -> int:
        preempted = 0
        while len(self._running) > 1 and self._used + len(self._running) > self._kv_tokens:
            job = self._running.pop()
            self._used -= job.tokens
            self._waiting.appendleft(job)
            preempted += 1
        return preempted

    def _admit(self) -> int:
        prompt_tokens = 0
        while self._waiting and len(self._running) < self._max_seqs:
            job = self._waiting[0]
            # One that alone exceeds the cache is admitted when nothing else runs, lest it wait for ever.
            if self._running and self._used + job.tokens + len(self._running) + 1 > self._kv_tokens:
                break
            self._running.append(self._waiting.popleft())
            self._used += job.tokens
            if not job.generated:
                prompt_tokens += job.prompt
        return prompt_tokens
