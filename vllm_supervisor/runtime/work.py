"""The tasks that a state needs: started when it needs them, ended when it does not, and never forgotten."""

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from vllm_supervisor.domain.model import Blocker
from vllm_supervisor.ports import Engine, Level, Note
from vllm_supervisor.runtime.tasks import Post

RETRY = 1.0
"""Pause after a task of ours failed in a way that it should not (out of descriptors, for one)."""

Task = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Companions:
    """What accompanies an engine besides its probes. A daemon without them still supervises.

    Each is cancelled when the state no longer needs it, and tells what it learns through `Post`.
    """

    watch_start: Callable[[Engine, Post], Awaitable[None]] | None = None
    """While starting: where the start stands, and whether it still moves (`Condemned` with `startup_stall`)."""
    watch_liveness: Callable[[Engine, Post], Awaitable[None]] | None = None
    """While ready or unhealthy: whether the engine still steps (`Condemned` with `hang`)."""
    steps: Callable[[], int] | None = None
    """How often that watch saw the engine step: a health probe during which it did is no failure."""
    examine: Callable[[Engine, Post], Awaitable[None]] | None = None
    """Once the last member is gone, and before anything is launched: what the end says (`Judged`)."""
    accompany: Callable[[Engine, Post], Awaitable[None]] | None = None
    """For as long as the leader lives: notes of what the engine uses."""
    advice: Callable[[int], Mapping[str, object] | None] | None = None
    """What the status says on concurrency while that generation is ready."""
    clear_ground: Callable[[Post], Awaitable[Blocker | None]] | None = None
    """Before a launch: waits for what the engine before still holds, and returns what stands in the way."""


NONE = Companions()


class Work:
    """The running tasks, by key. The same key is the same task for as long as it stays wanted."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._scopes: dict[Hashable, anyio.CancelScope] = {}

    def reconcile(self, group: TaskGroup, wanted: Mapping[Hashable, Task]) -> None:
        """Start what is wanted and not there; end what is there and not wanted."""
        for key in [key for key in self._scopes if key not in wanted]:
            self._scopes.pop(key).cancel()
        for key, task in wanted.items():
            if key not in self._scopes:
                scope = self._scopes[key] = anyio.CancelScope()
                group.start_soon(self._run, key, scope, task, name=str(key))

    async def _run(self, key: Hashable, scope: anyio.CancelScope, task: Task) -> None:
        """Run one task to its end. A failure of our own is told and tried again; it never ends the daemon."""
        with scope:
            while True:
                try:
                    await task()
                except Exception as error:  # noqa: BLE001 -- a task boundary: becomes a note
                    self._post(Note("internal_error", Level.ERROR, {"where": str(key), "error": repr(error)}))
                    await anyio.sleep(RETRY)
                else:
                    return
