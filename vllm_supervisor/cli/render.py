"""The status object in words."""

import os
import sys

from vllm_supervisor.cli.client import Status

_COLOURS = {"ready": "32", "failed": "31", "unhealthy": "31"}
_OTHER = "33"


def colourful() -> bool:
    """Whether standard output is a terminal whose user did not refuse colours (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def status_text(status: Status, *, colour: bool) -> str:
    """Return a few aligned lines. What is unknown is left out, as is what an older or newer daemon does not say."""
    # Why nothing runs has a row of its own below.
    told = status.get("state") in ("backoff", "failed") and (status.get("fail_why") or status.get("blocker"))
    rows = [
        ("state", _state(status, colour=colour)),
        ("phase", None if told else _phase(status)),
        ("model", _join(status.get("model"), _prefixed("revision ", status.get("revision")))),
        ("base url", status.get("base_url") if status.get("ready") else None),
        ("blocked", hindrance(status)),
        ("failed", status.get("fail_why")),
        ("liveness", _liveness(status.get("liveness") or {})),
        ("load", _load(status.get("load") or {})),
        ("advice", (status.get("advice") or {}).get("headline")),
        ("restarts", _restarts(status.get("restarts") or {})),
        ("last exit", last_exit(status)),
        ("retried", None if status.get("fail_why") else (status.get("last_exit") or {}).get("retry_why")),
        ("log", (status.get("log") or {}).get("detail")),
        ("config", _config(status.get("config") or {})),
        ("evidence", _evidence(status.get("last_exit") or {})),
    ]
    return "\n".join(f"{name:<10} {value}" for name, value in rows if value)


def _config(config: Status) -> str | None:
    """Say what of the configuration does not hold yet, and what is wrong with its file; that all is well is no news."""
    refused = config.get("refused") or ()
    waits = [
        _prefixed("waits for a new engine: ", ", ".join(config.get("pending") or ()) or None),
        _prefixed("waits for a new daemon: ", ", ".join(config.get("pending_daemon") or ()) or None),
        _prefixed("reload refused: ", refused[0] if refused else None),
        f"and {len(refused) - 1} more problems" if len(refused) > 1 else None,
    ]
    return _join(*waits, between="; ") or None


def last_exit(status: Status) -> str | None:
    """Say how the last engine ended and why, where one has."""
    last = status.get("last_exit")
    if not last:
        return None
    how = f"code {last['code']}" if last.get("code") is not None else "nobody saw how"
    how = f"signal {last['signal']}" if last.get("signal") is not None else how
    diagnosis = last.get("diagnosis") or {}
    cause = diagnosis.get("summary") or (None if status.get("fail_why") else last.get("where_to_look"))
    if cause and diagnosis.get("class"):
        cause = f"{cause} ({_join(diagnosis.get('class'), diagnosis.get('retry'), between=', ')})"
    # Of a state that is failed, the reason says what to do.
    cause = _join(cause, None if status.get("fail_why") else diagnosis.get("action"), between="; ")
    reason = _join(last.get("reason"), last.get("detail"), between=": ")
    text = _join(how, f"({reason})" if reason else None, _prefixed("at ", last.get("at")))
    return f"{text}: {cause}" if cause else text


def _evidence(last: Status) -> str | None:
    return last.get("bundle") or _prefixed("not kept: ", last.get("bundle_lost"))


def why_failed(status: Status) -> str:
    """Say in one phrase why the state is `failed`."""
    blocker = status.get("blocker") or {}
    diagnosis = (status.get("last_exit") or {}).get("diagnosis") or {}
    causes = (status.get("fail_why"), blocker.get("why"), diagnosis.get("summary"), last_exit(status))
    return str(next((cause for cause in causes if cause), "no cause is known"))


def duration(seconds: float) -> str:
    """Return a length of time in the two largest units that say something."""
    if seconds < 60:  # noqa: PLR2004 - seconds in a minute
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - one digit
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:  # noqa: PLR2004 - minutes in an hour
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"  # noqa: PLR2004 - a day


def _state(status: Status, *, colour: bool) -> str:
    state = str(status.get("state"))
    shown = f"\033[{_COLOURS.get(state, _OTHER)}m{state}\033[0m" if colour else state
    details = [
        _prefixed("generation ", status.get("generation") or None),
        _prefixed("pid ", status.get("pid")),
        _prefixed("up ", _duration(status.get("uptime_s"))),
        _prefixed("next start in ", _duration(status.get("next_start_in_s"))),
        _prefixed("wanted: ", status.get("intent") if status.get("intent") != "up" else None),
    ]
    return _join(shown, *details, between=", ")


def progress_text(status: Status) -> str:
    """Say in one phrase what the engine is doing, and how long it still takes."""
    waits = _prefixed("next start in ", _duration(status.get("next_start_in_s")))
    return _join(status.get("state"), _phase(status), waits, between=", ")


def _phase(status: Status) -> str | None:
    phase = status.get("phase") or {}
    if phase.get("name") == status.get("state") and not phase.get("detail"):
        return None
    progress, eta = phase.get("progress"), _duration(phase.get("eta_s"))
    percent = f"{progress:.0%}" if progress is not None else None
    left = f"about {eta} left" if eta else None
    return _join(phase.get("name"), percent, phase.get("detail"), left, between=", ")


def _restarts(restarts: Status) -> str | None:
    if not restarts.get("total") and not restarts.get("consecutive"):
        return None
    reasons = [f"{count} {name}" for name, count in (restarts.get("by_reason") or {}).items() if count]
    counted = f"{restarts.get('total', 0)}" + (f" ({', '.join(reasons)})" if reasons else "")
    return f"{counted}, {restarts.get('consecutive', 0)} failures in a row"


def _liveness(liveness: Status) -> str | None:
    """Say what is wrong with the engine's stepping; what is right is no news."""
    if liveness.get("verdict") not in ("suspect", "stuck", "blind", "dead"):
        return None
    return _join(liveness["verdict"], liveness.get("evidence"), between=": ")


def _load(load: Status) -> str | None:
    usage = load.get("kv_cache_usage")
    parts = [f"{load[key]:g} {key}" for key in ("running", "waiting") if load.get(key) is not None]
    return _join(*parts, f"KV cache {usage:.0%}" if usage is not None else None, between=", ") or None


def hindrance(status: Status) -> str | None:
    """Say what keeps an engine from being launched, and what to do about it; None where nothing does."""
    blocker = status.get("blocker")
    return _join(blocker.get("why"), blocker.get("remedy"), between="; ") if blocker else None


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else duration(seconds)


def _prefixed(prefix: str, value: object) -> str | None:
    return None if value is None else f"{prefix}{value}"


def _join(*parts: object, between: str = " ") -> str:
    return between.join(str(part) for part in parts if part is not None)
