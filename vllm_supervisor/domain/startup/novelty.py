"""Whether a line is news, so that a start which repeats itself is told from one that moves."""

import re

from vllm_supervisor.domain.diagnosis.lines import Line
from vllm_supervisor.domain.diagnosis.marks import STATS_HINT, is_access

MAX_FORMS = 2000
"""Forms that count in one phase. A start prints a few hundred; a process that babbles must not pass for progress."""
_LOOKED_AT = 400
"""Characters of a line that make its form."""

_VARYING = re.compile(
    r"0x[0-9a-fA-F]+|\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]{2,}){0,6}\b|\d+(?:[.,:]\d+)*"
)
_BAR = re.compile(r"^(?P<what>.{0,200}?):?\s*(?P<percent>\d{1,3})%(?:\||\s+Completed)")
_COUNT = re.compile(r"\b(?P<done>\d{1,15})/(?P<total>\d{1,15})\b\s*\[")


class Bar:
    """What a progress bar shows: `what` it is about, and `done` of `total` (100 where only a percentage is given)."""

    __slots__ = ("done", "total", "what")

    def __init__(self, what: str, done: int, total: int) -> None:
        self.what = what
        self.done = done
        self.total = total


def bar_of(body: str) -> Bar | None:
    """Return the progress bar in `body`, where there is one (tqdm's, in vLLM's wordings)."""
    found = _BAR.match(body) if "%" in body else None
    if found is None:
        return None
    count = _COUNT.search(body, found.end())
    if count is not None and int(count["total"]) > 0:
        return Bar(found["what"].strip(), min(int(count["done"]), int(count["total"])), int(count["total"]))
    return Bar(found["what"].strip(), min(int(found["percent"]), 100), 100)


class Novelty:
    """Remembers the forms of the lines of a phase. A form is a line without what varies: numbers, ids, addresses."""

    def __init__(self) -> None:
        self._forms: set[str] = set()
        self._bars: dict[str, float] = {}

    def forget(self) -> None:
        """Begin a phase: what was said in the one before may be said anew."""
        self._forms.clear()
        self._bars.clear()

    def hear(self, line: Line, bar: Bar | None) -> bool:
        """Say whether `line` is news, and remember it.

        A bar is news when it has come further than ever. Lines about requests never are: while starting, the requests
        are our own probes.
        """
        if bar is not None:
            return self._further(bar)
        if is_access(line) or STATS_HINT in line.body or not line.body.strip():
            return False
        form = _VARYING.sub("#", line.body[:_LOOKED_AT])
        if form in self._forms or len(self._forms) >= MAX_FORMS:
            return False
        self._forms.add(form)
        return True

    def _further(self, bar: Bar) -> bool:
        share = bar.done / bar.total
        if share <= self._bars.get(bar.what, -1.0):
            return False
        if bar.what not in self._bars and len(self._bars) >= MAX_FORMS:
            return False
        self._bars[bar.what] = share
        return True
