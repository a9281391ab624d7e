"""What a paste does to a whole log: a margin before every line, and lines broken at the width of a terminal."""

import re
from dataclasses import dataclass

from vllm_supervisor.domain.diagnosis.lines import begins_a_line

HEAD = 8192
"""Bytes from which it is told."""
MAX_JOINED = 40
"""Lines that one line was broken into at most."""
_MIN_MARGIN = 4
"""Markdown's indentation of a block; less of it is a traceback's own."""
_NUMBERED = re.compile(rb"\s{0,8}\d{1,9}\t")
_WIDTHS = range(60, 251)
_MIN_FULL = 3
"""Lines of the full width that make it a width, and not the longest line of a log."""


@dataclass(frozen=True, slots=True)
class Paste:
    """How a log was pasted. Where nothing was done to it, this does nothing."""

    margin: re.Pattern[bytes] | None = None
    width: int = 0
    """At which lines were broken; 0 where they were not."""

    @classmethod
    def of(cls, head: bytes) -> "Paste":
        """Tell from the first bytes of a log. The last of their lines may be cut."""
        lines = [line.rstrip(b"\r") for line in head.split(b"\n")[: -1 if len(head) >= HEAD else None]]
        return cls(_margin([line for line in lines if line.strip()]), _width(lines))

    def bare(self, line: bytes) -> bytes:
        """Return `line` without its margin."""
        found = None if self.margin is None else self.margin.match(line)
        return line if found is None else line[found.end() :]

    def whole(self, data: bytes, begin: int, end: int, first: int) -> tuple[int, int]:
        """Return where the line that was broken begins and ends; [begin, end) is a part of it, `first` the limit."""
        if not self.width:
            return begin, end
        for _ in range(MAX_JOINED):
            before = data.rfind(b"\n", first, max(first, begin - 1)) + 1 or first
            if begin == first or not self._goes_on(data, before, begin - 1):
                break
            begin = before
        last = data.rfind(b"\n", begin, end) + 1 or begin
        for _ in range(MAX_JOINED):
            if not self._goes_on(data, last, end):
                break
            last, end = end + 1, data.find(b"\n", end + 1)
        return begin, end

    def _goes_on(self, data: bytes, begin: int, end: int) -> bool:
        """Whether the line [begin, end) was broken at its end."""
        if end - begin != self.width or data.find(b"\n", end + 1) < 0:
            return False
        return not _begins(data[end + 1 : end + 1 + self.width])


def _margin(lines: list[bytes]) -> re.Pattern[bytes] | None:
    if not lines:
        return None
    if all(_NUMBERED.match(line) for line in lines):
        return _NUMBERED
    margin = min(len(line) - len(line.lstrip(b" ")) for line in lines)
    if margin < _MIN_MARGIN or not any(_begins(line[margin:]) for line in lines):
        return None
    return re.compile(b" {%d}" % margin)


def _width(lines: list[bytes]) -> int:
    width = max((len(line) for line in lines), default=0)
    full = [place for place, line in enumerate(lines[:-1]) if len(line) == width]
    if width not in _WIDTHS:
        return 0
    broken = sum(not _begins(lines[place + 1]) for place in full)
    # One may be as long as that by chance.
    return width if broken >= max(_MIN_FULL, 3 * len(full) / 4) else 0


def _begins(line: bytes) -> bool:
    return begins_a_line(line.decode("utf-8", "replace").split("\n", 1)[0])
