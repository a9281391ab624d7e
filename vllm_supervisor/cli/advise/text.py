"""Advice in words."""

from vllm_supervisor.cli.client import Status


def advice_text(advice: Status) -> str:
    """Return a few aligned lines. What is not known is left out."""
    rows: list[tuple[str, object]] = [("verdict", f"{advice.get('verdict')} ({advice.get('confidence')} confidence)")]
    rows += [("why", advice.get("reason")), ("in flight", _in_flight(advice))]
    rows += _listed("seen", advice.get("evidence"))
    knee = advice.get("knee") or {}
    rows += [("throughput", knee.get("why")), ("", advice.get("last_raise"))]
    if knee.get("flat"):
        rows.append(("settle at", knee.get("settle")))
    rows += _listed("capped by", advice.get("clamps"))
    change = advice.get("next")
    rows.append(("next", f"{change['change']}: {change['why']}" if change else None))
    rows += _listed("then", [f"{knob['change']}: {knob['why']}" for knob in advice.get("later") or []])
    return "\n".join(f"{name:<11} {value}" for name, value in rows if value is not None)


def _in_flight(advice: Status) -> str:
    goal, now = advice.get("target_concurrency"), advice.get("current_concurrency")
    if goal is None:
        return f"no advice: {advice.get('target_doubt')}"
    text = f"{now} now, keep {goal}"
    if not advice.get("target_trusted"):
        text += " (not to be trusted)"
    remarks = [str(remark) for remark in (advice.get("target_cut"), advice.get("target_doubt")) if remark]
    return "; ".join([text, *remarks])


def _listed(name: str, phrases: object) -> list[tuple[str, object]]:
    """Return a row a phrase, named once."""
    known = phrases if isinstance(phrases, list) else []
    return [(name if not index else "", phrase) for index, phrase in enumerate(known)]
