"""What a new configuration changes, and what has to be new for it to hold: nothing, the engine, or the daemon."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from vllm_supervisor.domain.spec import EngineSpec


class Reach(StrEnum):
    """How far a change goes."""

    LIVE = "live"
    """Holds at once."""
    ENGINE = "engine"
    """Holds for the next engine."""
    DAEMON = "daemon"
    """Holds for the next daemon."""


_VLLM = "engine.vllm."
_ENGINE = tuple(
    _VLLM + key for key in ("launcher", "model", "host", "port", "extra_args", "env", "cwd", "log_file", "api_key")
)
"""What decides about the command, its environment, or the address that it is reached at."""
_DAEMON = ("control.socket", "control.mode", "control.group", "logging.format", "metrics", "state_dir", "systemd")
"""What was bound, locked or told at the daemon's start."""


def reach(key: str) -> Reach:
    """Return how far a change of `key` (dotted) goes."""
    if _under(key, _ENGINE):
        return Reach.ENGINE
    return Reach.DAEMON if _under(key, _DAEMON) else Reach.LIVE


def _under(key: str, roots: tuple[str, ...]) -> bool:
    return any(key == root or key.startswith(root + ".") for root in roots)


@dataclass(frozen=True, slots=True)
class Changes:
    """Dotted keys that differ, by how far their change goes; sorted."""

    live: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    daemon: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.live or self.engine or self.daemon)


def compare(old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
    """Compare two configurations, each a mapping from dotted key to a digest of its value."""
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    by = {reach_: tuple(key for key in differing if reach(key) is reach_) for reach_ in Reach}
    return Changes(by[Reach.LIVE], by[Reach.ENGINE], by[Reach.DAEMON])


def in_force(launched: EngineSpec, new: EngineSpec) -> EngineSpec:
    """Return how an engine that was launched as `launched` says is asked and advertised once `new` is configured."""
    return replace(
        new, base_url=launched.base_url, model=launched.model, revision=launched.revision, api_key=launched.api_key
    )
