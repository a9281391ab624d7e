"""How a cause shows in a log, as data."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from vllm_supervisor.domain.retry import Retry


class Kind(StrEnum):
    """What a match is worth."""

    FATAL = "fatal"
    WARNING = "warning"
    """Counts only where the start failed and nothing fatal says why."""
    CONTEXT = "context"
    """Never counts alone; explains what else is found."""
    PENDING = "pending"
    """Something is waited for: counts, also without a failure, unless the start went on afterwards."""


class Tier(IntEnum):
    """How near to the cause. The lowest tier wins, within it the earliest line."""

    ROOT = 0
    VAGUE = 1
    """Names a cause, but many things look like it."""
    WARNED = 2
    WORKER = 3
    ENGINE = 4
    START = 5
    """It did not start, and the line does not say why."""
    KILLED = 6


Adjust = Callable[[dict[str, str]], dict[str, str]]
"""Works out further numbers for the remedy from the groups of the pattern."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One way in which a class shows.

    `pattern` is searched in a line's body (see `lines`). `remedy` may name the pattern's groups, and those that
    `adjust` adds; empty means the class's own. `source` says where the text was seen.
    """

    cls: str
    pattern: re.Pattern[str]
    source: str
    remedy: str = ""
    kind: Kind = Kind.FATAL
    tier: Tier = Tier.ROOT
    retry: Retry | None = None
    quiet: bool = False
    """Counts also on a line that its writer marked INFO or WARNING."""
    start_only: bool = False
    """A request can provoke the same text: after readiness it counts only if the engine died as well."""
    within: re.Pattern[str] | None = None
    """Counts only at the end of a traceback one of whose frames matches; other signatures yield to it there."""
    before_banner: bool = False
    """Printed before vLLM says anything of itself: where a run has come to something, it belongs to the next one."""
    adjust: Adjust | None = field(default=None, compare=False)


def pattern(text: str) -> re.Pattern[str]:
    """Compile one pattern: case counts, spaces are literal."""
    return re.compile(text)
