"""The flight recorder: the last events, for `events`, and for whoever follows them."""

import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime

import anyio

from vllm_supervisor.domain.messages import (
    Adopted,
    Blocked,
    Event,
    GroupEmpty,
    LeaderExited,
    Probed,
    ProcessEvent,
    Record,
    RestartAsked,
    ShutdownAsked,
    Spawned,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import DEAD_OUTCOMES, Outcome, Phase, State
from vllm_supervisor.ports import Note

CAPACITY = 500


class Recorder:
    """An Observer that remembers. Entries are JSON objects with `seq`, `at` (RFC 3339), `generation`, `event`."""

    def __init__(self, wall: Callable[[], float], capacity: int = CAPACITY) -> None:
        self._wall = wall
        self._entries: deque[tuple[int, bytes]] = deque(maxlen=capacity)
        self._seq = 0
        self._generation = 0
        self._changed = anyio.Event()
        self._failing = False
        self._repeated = False
        """The step led from one attempt that was blocked to the next, blocked by the same."""

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:  # noqa: ARG002 -- Observer's shape
        """Record operators' words, process facts, and the first probe of a run of failures."""
        self._generation = after.generation
        self._repeated = before.blocker is not None and before.blocker == after.blocker and before.process is None
        if isinstance(event, ProcessEvent) and event.generation != before.generation:
            return
        match event:
            case StartAsked() | StopAsked() | RestartAsked() | ShutdownAsked():
                self._append(_name(event), {"intent": after.intent.value})
            case Blocked() if not self._repeated:
                blocker = event.blocker
                self._append(
                    "launch_blocked", {"kind": blocker.kind.value, "why": blocker.why, "remedy": blocker.remedy}
                )
            case Spawned() | Adopted():
                self._append(_name(event), {"pid": event.pid})
            case LeaderExited() if before.leader_alive:
                cause = after.cause.value if after.cause else None
                self._append(
                    "leader_exited", {"code": event.status.code, "signal": event.status.signal, "cause": cause}
                )
            case GroupEmpty() if before.process is not None and after.process is None:
                self._append("group_empty", {})
            case Probed() if before.phase in (Phase.READY, Phase.UNHEALTHY):
                self._probed(event)
            case _:
                pass

    def _probed(self, event: Probed) -> None:
        failing = event.outcome in DEAD_OUTCOMES or event.outcome is Outcome.TIMEOUT
        if failing != self._failing and event.outcome is not Outcome.UNKNOWN:
            self._append("probe_failed" if failing else "probe_recovered",
                         {"outcome": event.outcome.value, "detail": event.detail})  # fmt: skip
            self._failing = failing

    def recorded(self, record: Record) -> None:
        """Record a change of phase.

        Launches that the same thing blocks again and again are told once: in a night they would push out the story.
        """
        self._generation = record.generation
        if self._repeated and {record.before, record.after} == {Phase.STARTING, Phase.BACKOFF}:
            return
        # A run of failures goes on from ready to unhealthy, and ends with the engine.
        self._failing = self._failing and record.after in (Phase.READY, Phase.UNHEALTHY)
        self._append(
            "phase_changed",
            {
                "before": record.before.value,
                "after": record.after.value,
                "seconds": round(record.seconds, 3),
                "cause": record.cause.value if record.cause else None,
                "detail": record.detail,
            },
        )

    def noted(self, note: Note) -> None:
        """Record a note."""
        self._append(note.kind, {"level": note.level.value, **note.fields})

    def entries(self) -> bytes:
        """Return what is remembered, a JSON object a line, oldest first."""
        return b"".join(line for _, line in self._entries)

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Yield what is remembered and then what comes. A reader too slow is told how many it missed."""
        last = self._seq - len(self._entries)
        while True:
            changed = self._changed
            fresh = [(seq, line) for seq, line in self._entries if seq > last]
            if fresh:
                missed = fresh[0][0] - last - 1
                gap = json.dumps({"event": "missed", "count": missed}).encode() + b"\n" if missed > 0 else b""
                last = fresh[-1][0]
                yield gap + b"".join(line for _, line in fresh)
            await changed.wait()

    def _append(self, event: str, fields: Mapping[str, object]) -> None:
        self._seq += 1
        at = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        ours = {"seq": self._seq, "at": at, "generation": self._generation, "event": event}
        entry = {**ours, **fields, **ours}  # ours stand first, and no field replaces them
        self._entries.append((self._seq, json.dumps(entry, default=str).encode() + b"\n"))
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


def _name(event: Event) -> str:
    """Return `start_asked` for StartAsked."""
    name = type(event).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
