"""How long a start will take, from the starts before it on this host."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vllm_supervisor.domain.startup.phases import ORDER, StartPhase

MAX_STARTS = 64
"""Starts remembered, the oldest go: a host serves a handful of models."""
_OVERDUE = 2.0
"""A phase that lasts so many times as long as the last time (and `_SLACK`) is not like it: no forecast then."""
_SLACK = 5.0
_SOON = 1.0
"""The least that is forecast: it is over when it is over."""

_BANDS = {
    StartPhase.LAUNCHING: (0.0, 0.05),
    StartPhase.CONFIGURING: (0.05, 0.15),
    StartPhase.DOWNLOADING: (0.15, 0.4),
    StartPhase.LOADING_WEIGHTS: (0.4, 0.7),
    StartPhase.COMPILING: (0.7, 0.85),
    StartPhase.CAPTURING_GRAPHS: (0.85, 0.95),
    StartPhase.WARMING_UP: (0.95, 0.99),
}
"""Shares of a start, where no earlier one tells: rough, and in order."""

Durations = Mapping[StartPhase, float]


def arguments_digest(argv: Sequence[str]) -> str:
    """Return a name for a command: equal for equal ones. Not the command itself, which may hold a token.

    Where it listens makes no difference.
    """
    kept = [word for before, word in pairwise(("", *argv)) if not {before, word} & {"--host", "--port"}]
    return hashlib.sha256("\0".join(kept).encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PastStart:
    """A start that got ready. `arguments` is a digest of the command; `phases` are seconds."""

    model: str
    arguments: str
    vllm_version: str | None
    phases: Durations

    @property
    def key(self) -> tuple[str, str, str | None]:
        """What makes two starts alike."""
        return self.model, self.arguments, self.vllm_version


@dataclass(frozen=True, slots=True)
class PastStarts:
    """The starts of this host that got ready: the last of each kind, oldest first."""

    starts: tuple[PastStart, ...] = ()

    def with_start(self, start: PastStart) -> "PastStarts":
        """Return the history after one more start. It replaces the last one like it: caches are warm since then."""
        kept = [past for past in self.starts if past.key != start.key]
        return PastStarts((*kept, start)[-MAX_STARTS:])

    def expected(self, model: str, arguments: str, vllm_version: str | None) -> Durations | None:
        """Return how long each phase took the last time.

        As long as the version is not known, which takes vLLM a while to say, the latest of any version counts.
        """
        for past in reversed(self.starts):
            if (past.model, past.arguments) == (model, arguments) and vllm_version in (None, past.vllm_version):
                return past.phases
        return None


def eta(
    expected: Durations | None,
    phase: StartPhase,
    in_phase: float,
    ratio: float | None = None,
    download_left: float | None = None,
) -> float | None:
    """Return the seconds until ready; None where nothing can be said.

    `in_phase` is how long `phase` has lasted, `ratio` how far it has come where that is known. A download is not like
    the last one; `download_left` says how long it will take.
    """
    if expected is None:
        return None
    to_come = [after for after in ORDER[phase.rank + 1 :] if after is not StartPhase.DOWNLOADING]
    later = sum(expected.get(after, 0.0) for after in to_come)
    if phase is StartPhase.DOWNLOADING:
        return None if download_left is None else download_left + later
    usual = expected.get(phase, 0.0)
    if ratio is not None and ratio >= 0.1:  # noqa: PLR2004 -- before, the pace is anybody's guess
        return max(_SOON, in_phase * (1 - ratio) / ratio + later)
    if in_phase > _OVERDUE * usual + _SLACK:
        return None
    return max(_SOON, max(0.0, usual - in_phase) + later)


def overall(phase: StartPhase, ratio: float | None, elapsed: float, left: float | None) -> float:
    """Return how far the whole start has come, 0 to below 1."""
    if left is not None:
        return min(0.99, elapsed / (elapsed + left)) if elapsed + left > 0 else 0.0
    low, high = _BANDS[phase]
    return low + (high - low) * (ratio or 0.0)
