"""The process table as an outsider reads it: which engines live, by a name that no daemon gave them."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

RUN = "CHAOS_RUN"
"""In the environment of every engine of a run, by the configuration: the run's token."""
ENGINE = "CHAOS_ENGINE"
"""In the environment of one engine's processes, by the script that launches it: that script's pid, so the leader's."""

_YOUNG = 3.0
"""Seconds for which a stranger may still turn into a member: between fork and exec it looks like its parent."""
_DEAD = "ZXx"


@dataclass(slots=True)
class Entry:
    """A process as last seen."""

    pid: int
    start: str
    parent: int
    letter: str
    engine: str
    """Empty for a stranger."""
    first_seen: float


class Table:
    """Remembers who was who: a process that erases its environment stays what it was."""

    def __init__(self, token: str) -> None:
        self._mark = f"{RUN}={token}".encode()
        self._known: dict[int, Entry] = {}

    def look(self) -> dict[int, Entry]:
        """Return the living members, in the order in which they were read."""
        known, self._known = self._known, {}
        for name in os.listdir("/proc"):  # noqa: PTH208 -- fifty times a second, names are all that is needed
            if name.isdigit() and (entry := self._read(int(name), known)) is not None:
                self._known[entry.pid] = entry
        return {pid: entry for pid, entry in self._known.items() if entry.engine and entry.letter not in _DEAD}

    def _read(self, pid: int, known: dict[int, Entry]) -> Entry | None:
        fields = stat(pid)
        if fields is None:
            return None
        letter, parent, start = fields
        entry = known.get(pid)
        if entry is None or entry.start != start:
            entry = Entry(pid, start, parent, letter, "", time.monotonic())
        entry.letter, entry.parent = letter, parent
        if not entry.engine and time.monotonic() - entry.first_seen < _YOUNG:
            mother = self._known.get(parent) or known.get(parent)
            entry.engine = self._engine_of(pid) or (mother.engine if mother else "") or self._launching(pid)
        return entry

    def _engine_of(self, pid: int) -> str:
        """Return the name in the environment: it comes with the launch script's exec."""
        items = _environ(pid)
        named = [item.partition(b"=")[2].decode() for item in items if item.startswith(f"{ENGINE}=".encode())]
        return named[0] if named and self._mark in items else ""

    def _launching(self, pid: int) -> str:
        """Return the name that a launch script will give: it bears the token already."""
        return str(pid) if self._mark in _environ(pid) else ""


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def engines(members: dict[int, Entry]) -> dict[str, list[int]]:
    """Return each engine's processes."""
    found: dict[str, list[int]] = {}
    for entry in members.values():
        found.setdefault(entry.engine, []).append(entry.pid)
    return found


def at_once(members: dict[int, Entry]) -> list[str]:
    """Return the engines that were certainly alive at one moment; empty where it cannot be said of two.

    The processes are not read at one moment. Whoever is still alive after the last one was read was alive then.
    """
    if len(engines(members)) < 2:
        return []
    last = next(reversed(members.values()))
    still = {last.engine}
    for entry in members.values():
        fields = stat(entry.pid)
        if fields is not None and fields[2] == entry.start and fields[0] not in _DEAD:
            still.add(entry.engine)
    return sorted(still) if len(still) > 1 else []


def orphans() -> list[str]:
    """Return who in this process namespace has lost its parent, whatever it erased of its past; we are not meant."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 -- as above
        fields = stat(int(name)) if name.isdigit() and int(name) not in (1, os.getpid()) else None
        if fields is not None and fields[1] == 1 and fields[0] not in _DEAD:
            found.append(f"{name} {Path(f'/proc/{name}/cmdline').read_bytes()!r}")
    return found


def stat(pid: int) -> tuple[str, int, str] | None:
    """Return the state's letter, the parent and the start in ticks; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1]), fields[19]


def starved(pid: int) -> dict[str, float]:
    """Return for each thread how long it has been ready to run without a processor, seconds since it began."""
    waits = {}
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 -- as above
    except OSError:
        return {}
    for thread in threads:
        try:
            waits[thread] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            continue
    return waits


def stalled() -> float:
    """Return for how long since the boot somebody has waited for a processor, seconds; 0 where it is not counted."""
    try:
        return int(Path("/proc/pressure/cpu").read_text().split()[4].removeprefix("total=")) / 1e6
    except (OSError, IndexError, ValueError):
        return 0.0
