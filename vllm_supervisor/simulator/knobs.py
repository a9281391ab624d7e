"""What the simulator can be told beside vLLM's own flags. The package's docstring is the manual."""

import os
from collections.abc import Mapping
from typing import NamedTuple

FLAG = "sim-"
VARIABLE = "SIM_"


class Knobs(NamedTuple):
    """All of them, with their defaults. A fault that is None or False is off."""

    import_seconds: float = 0.0
    load_seconds: float = 0.0
    shards: int = 4
    download_seconds: float = 0.0
    download_bytes: int = 0
    compile_seconds: float = 0.0
    graph_seconds: float = 0.0
    tokens_per_second: float = 200.0
    prefill_seconds: float = 0.0
    answer_tokens: int = 64
    kv_tokens: int = 65536
    engine_exit_delay: float = 5.0
    max_seconds: float = 0.0

    never_ready: bool = False
    exit_code: int | None = None
    exit_signal: int | None = None
    exit_phase: str = "load"
    exit_after: float = 0.0
    replay: str | None = None
    lose_first_sigterm: bool = False

    engine_death_after: float | None = None
    worker_death_after: float | None = None
    leader_sigkill_after: float | None = None
    freeze_after: float | None = None
    health_delay: float = 0.0
    health_hang: bool = False
    health_status: int | None = None
    completions_status: int | None = None
    chat_status: int | None = None
    embeddings_status: int | None = None
    fault_after: float = 0.0
    fault_while: str | None = None
    no_metrics: bool = False

    ignore_sigterm: bool = False
    wait_for_streams: bool = False
    worker_setsid: bool = False
    log_flood: float = 0.0
    non_utf8: bool = False

    state_dir: str | None = None
    fault_starts: str | None = None


PACE = frozenset(
    {
        "import_seconds",
        "load_seconds",
        "shards",
        "download_seconds",
        "download_bytes",
        "compile_seconds",
        "graph_seconds",
        "tokens_per_second",
        "prefill_seconds",
        "answer_tokens",
        "kv_tokens",
        "engine_exit_delay",
        "max_seconds",
        "state_dir",
        "fault_starts",
    }
)
"""What holds in every start; the rest are faults, and follow `fault-starts`."""

PHASES = ("import", "load", "ready")

_KINDS: dict[str, object] = Knobs.__annotations__
SWITCHES = frozenset(name for name, kind in _KINDS.items() if kind is bool)


class KnobError(Exception):
    """A knob that does not exist, or has a value that it cannot take. The text is for the user."""


def knobs_from(environ: Mapping[str, str], flags: Mapping[str, str | None]) -> Knobs:
    """Merge variables and flags (`{"load_seconds": "3"}`; a switch given alone is None). Raises KnobError.

    Unknown variables are left alone: others may use the prefix. Unknown flags are errors.
    """
    given: dict[str, str | None] = {}
    for name in _KINDS:
        value = environ.get(VARIABLE + name.upper())
        if value:
            given[name] = value
    unknown = sorted(set(flags) - set(_KINDS))
    if unknown:
        raise KnobError("unrecognized arguments: " + " ".join("--" + FLAG + n.replace("_", "-") for n in unknown))
    given.update(flags)
    knobs = Knobs()._replace(**{name: _value(name, text) for name, text in given.items()})  # type: ignore[arg-type]  # the field's own kind
    if knobs.exit_phase not in PHASES:
        raise KnobError(f"argument --{FLAG}exit-phase: invalid choice: {knobs.exit_phase!r} (choose from {PHASES})")
    return knobs


def _value(name: str, text: str | None) -> object:
    kind = _KINDS[name]
    if kind is bool:
        return text is None or text.lower() not in {"0", "false", "no", "off"}
    if text is None:
        raise KnobError(f"argument --{FLAG}{name.replace('_', '-')}: expected one argument")
    if kind in {str, str | None}:
        return text
    try:
        return int(text) if kind in {int, int | None} else float(text)
    except ValueError:
        raise KnobError(f"argument --{FLAG}{name.replace('_', '-')}: invalid value: {text!r}") from None


def count_start(knobs: Knobs) -> Knobs:
    """Count this start in the state directory, if there is one, and drop the faults that are not for it."""
    if knobs.state_dir is None:
        return knobs
    os.makedirs(knobs.state_dir, exist_ok=True)  # noqa: PTH103 - pathlib costs 5 ms of each start
    counter = os.open(os.path.join(knobs.state_dir, "starts"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # noqa: PTH118 - as above
    try:
        # One byte a start: appending is atomic, so that two starts at once are counted as two.
        os.write(counter, b".")
        start = os.fstat(counter).st_size
    finally:
        os.close(counter)
    if knobs.fault_starts is None or _within(start, knobs.fault_starts):
        return knobs
    return Knobs()._replace(**{name: getattr(knobs, name) for name in PACE})


def _within(start: int, spec: str) -> bool:
    first, dash, last = spec.partition("-")
    try:
        if not dash:
            return start <= int(first)
        return int(first or 1) <= start and (not last or start <= int(last))
    except ValueError:
        raise KnobError(f"argument --{FLAG}fault-starts: not N, M-N or M-: {spec!r}") from None
