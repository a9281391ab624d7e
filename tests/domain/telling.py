"""Tell in one line what a step of the machine did, so that tables and transcripts can say all of it.

Every field that changed is named; what is not named did not change. `since` is left out and checked here instead: it
moves with the phase and with nothing else. So is `ended_at`, which moves with the leader, and so are the records: they
chain from the phase before to the phase after.
"""

from dataclasses import fields

from vllm_supervisor.domain.messages import Effect, Quit, Record, Refuse, Signal, Spawn
from vllm_supervisor.domain.model import Process, State

TIMES = frozenset({"deadline", "signal_due", "ready_since", "launched_at", "dead_since"})
FLAGS = frozenset({"draining", "spawning", "was_ready", "stuck"})


def tell(before: State, after: State, effects: tuple[Effect, ...], now: float, *, absolute: bool = False) -> str:
    """Return `phase>phase, field=value … | effects`. Times are relative to `now`, or absolute."""
    records = check_records(before, after, effects, now)
    check_end(before, after, now)
    parts = [">".join([records[0].before, *(record.after for record in records)])] if records else []
    for name in (field.name for field in fields(State) if field.name not in ("phase", "since", "ended_at")):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            parts.append(_tell_field(name, new, 0.0 if absolute else now, absolute=absolute))
    orders = [_tell_order(effect, after.generation) for effect in effects if not isinstance(effect, Record)]
    told = " ".join(parts) or "unchanged"
    return f"{told} | {', '.join(orders)}" if orders else told


def check_end(before: State, after: State, now: float) -> None:
    """Make sure that `ended_at` is when the leader was seen to go, and goes with the generation."""
    if before.leader_alive and not after.leader_alive and after.process is not None:
        assert after.ended_at == now
    elif after.generation != before.generation:
        assert after.ended_at is None
    else:
        assert after.ended_at == before.ended_at


def check_records(before: State, after: State, effects: tuple[Effect, ...], now: float) -> list[Record]:
    """Return the records among `effects`, having made sure that they tell each change of phase once and truly."""
    records = [effect for effect in effects if isinstance(effect, Record)]
    phase, since = before.phase, before.since
    for record in records:
        assert (record.before, record.at, record.seconds) == (phase, now, now - since), record
        assert (record.generation, record.cause) == (after.generation, after.cause), record
        phase, since = record.after, now
    assert phase is after.phase, f"{before.phase} became {after.phase}, but the records say {records}"
    assert since == after.since
    return records


def _tell_field(name: str, value: object, origin: float, *, absolute: bool) -> str:
    match value:
        case None:
            return f"no {name}"
        case bool() if name in FLAGS:
            return name if value else f"not {name}"
        case Process():
            return f"process={value.pid}" if value.leader_alive else "orphans"
        case float() if name in TIMES:
            return f"{name}={value - origin:{'' if absolute else '+'}g}"
        case _ if name == "blocker":
            return "blocker"
        case _:
            return f"{name}={value}"


def _tell_order(effect: Effect, generation: int) -> str:
    match effect:
        case Spawn():
            assert effect.generation == generation
            return "spawn"
        case Signal():
            assert effect.generation == generation
            return effect.signal.value
        case Quit():
            return f"quit {effect.status}"
        case Refuse():
            return f"refuse: {effect.why}"
        case _:
            raise AssertionError(effect)
