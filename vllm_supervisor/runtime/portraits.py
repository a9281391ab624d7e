"""The process table of an engine that has ended, from the pictures that were taken of it."""

from collections.abc import Sequence

from vllm_supervisor.domain.member import Portrait

Row = dict[str, object]


def process_table(
    at_end: Sequence[Portrait], ended_at: str | None, in_life: Sequence[Portrait], seen_at: str | None
) -> list[Row]:
    """Return a row for each process: as it was when the engine ended, else as it was last seen in life.

    Each says when: members that went with the leader were seen only before. Command lines come from the look in life.
    """
    commands = {_key(portrait): portrait.command for portrait in in_life}
    rows = [_row(portrait, portrait.command or commands.get(_key(portrait), ""), ended_at) for portrait in at_end]
    later = {_key(portrait) for portrait in at_end}
    return rows + [_row(portrait, portrait.command, seen_at) for portrait in in_life if _key(portrait) not in later]


def in_short(rows: Sequence[Row]) -> list[Row]:
    """Return who was there, and when, without what each was doing."""
    return [{name: row[name] for name in ("pid", "name", "state", "seen_at")} for row in rows]


def _key(portrait: Portrait) -> tuple[int, int]:
    return portrait.pid, portrait.start_ticks


def _row(portrait: Portrait, command: str, at: str | None) -> Row:
    return {
        "pid": portrait.pid,
        "parent": portrait.parent,
        "name": portrait.name,
        "state": portrait.state,
        "wchan": portrait.wchan,
        "command": command,
        "kernel_stack": list(portrait.stack),
        "seen_at": at,
    }
