"""A big log in chunks of bytes: only lines that may matter are decoded and looked at."""

from vllm_supervisor.domain.diagnosis.catalogue import GATE
from vllm_supervisor.domain.diagnosis.diagnoser import Diagnoser
from vllm_supervisor.domain.diagnosis.lines import MAX_LINE
from vllm_supervisor.domain.diagnosis.marks import LAUNCHED_HINT, STATS_HINT
from vllm_supervisor.domain.diagnosis.paste import HEAD, Paste

TAIL = 64 * 1024
"""Bytes at the end in which stats lines are read: a hang is at the end of its log."""
MAX_CARRY = 256 * 1024
"""Bytes of an unfinished line that are kept. Of what follows in the same line, its end is."""

_SQUASHED = (
    (b"INFO", b"info"),
    (b"POST /", b"post /"),
    (b"HTTP/1.", b"http/1."),
    (b"0 OK", b"0 ok"),
    (b"(APIServer", b"(apiserver"),
    (b"Avg ", b"avg "),
)
"""The commonest capitals of a healthy log, none of them in a word of the gate: made small (offsets stay), they do not
make the gate stop. Worth a third of its time (measured on stats and access lines)."""

_LAUNCHED = LAUNCHED_HINT.encode()
_READY_MARKS = (b"Avg prompt throughput: ", b'HTTP/1.1" 200', b'HTTP/1.0" 200')


class Scanner:
    """Feeds a diagnoser from chunks of a log, at disk speed and in bounded memory."""

    def __init__(self, diagnoser: Diagnoser) -> None:
        self._diagnoser = diagnoser
        self._lines = 0
        self._carry = b""
        self._skipping = False
        self._end = b""
        """Of a line that is skipped, what came last."""
        self._tail = b""
        self._head: bytes | None = b""
        """The first bytes, until there are enough to tell how the log was pasted."""
        self._paste = Paste()

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk, cut anywhere."""
        if self._head is not None:
            self._head += chunk
            if len(self._head) < HEAD:
                return
            chunk = self._begin(self._head)
        self._take(chunk)

    def _begin(self, head: bytes) -> bytes:
        self._head, self._paste = None, Paste.of(head[:HEAD])
        return head

    def _take(self, chunk: bytes) -> None:
        if self._skipping:
            end = chunk.find(b"\n")
            if end < 0:
                self._end = (self._end + chunk)[-MAX_LINE:]
                return
            self._carry += (self._end + chunk[:end])[-MAX_LINE:]
            chunk = chunk[end:]
            self._skipping, self._end = False, b""
        data = self._carry + chunk
        end = data.rfind(b"\n")
        if end < 0:
            self._carry = data
            if len(data) > MAX_CARRY:
                self._carry, self._end = data[:MAX_CARRY], data[MAX_CARRY:][-MAX_LINE:]
                self._skipping = True
            return
        self._carry = data[end + 1 :]
        self._whole_lines(data[: end + 1])

    def finish(self) -> None:
        """Take what is left, and read the stats lines of the tail. To be called once, at the end."""
        if self._head is not None:
            self._take(self._begin(self._head))
        if self._carry:
            rest, self._carry = self._carry + self._end + b"\n", b""
            self._whole_lines(rest)
        lines = self._tail.decode("utf-8", "replace").split("\n")
        first = self._lines - len(lines) + 2
        self._diagnoser.forget_stats()
        for offset, line in enumerate(lines):
            if "server version" in line or LAUNCHED_HINT in line:
                self._diagnoser.forget_stats()
            elif STATS_HINT in line:
                self._diagnoser.feed_stats(line, first + offset)

    def _whole_lines(self, data: bytes) -> None:
        """Find the lines that may matter: the gate's, and, until readiness, the first signs of it.

        Stats and access lines are most of a healthy log: they are looked for only while they would tell something.
        """
        squashed = data
        for common, small in _SQUASHED:
            squashed = squashed.replace(common, small)
        number, done, sign, size = self._lines + 1, 0, -1, len(data)
        launch = _place_of(_LAUNCHED, data, 0)
        while done < size:
            place = done
            if not self._diagnoser.heeds_every_line:
                match = GATE.search(squashed, done)
                # Our own line has no capital letter by which the gate would find it.
                launch = launch if launch >= done else _place_of(_LAUNCHED, data, done)
                place = launch if match is None else min(launch, match.start())
                if not self._diagnoser.ready:
                    sign = sign if sign >= done else _next_sign(data, done)
                    place = min(place, sign)
                if place == size:
                    break
            begin = data.rfind(b"\n", done, place) + 1 or done
            begin, end = self._paste.whole(data, begin, data.find(b"\n", place), done)
            number += data.count(b"\n", done, begin)
            line = self._paste.bare(self._cut(data, begin, place, end))
            self._diagnoser.feed_raw(line.replace(b"\n", b""), number)
            number, done = number + data.count(b"\n", begin, end + 1), end + 1
        self._lines += data.count(b"\n")
        self._tail = (self._tail + data[-TAIL:])[-TAIL:]

    @staticmethod
    def _cut(data: bytes, begin: int, start: int, end: int) -> bytes:
        """Return the line, of a long one (a progress bar that ran for an hour) the part from the find on."""
        if end - begin > MAX_LINE and (turn := data.rfind(b"\r", begin, start)) >= 0:
            begin = turn + 1
        return data[begin:end]


def _next_sign(data: bytes, after: int) -> int:
    """Return the offset of the next sign of readiness, `len(data)` where there is none."""
    return min(_place_of(mark, data, after) for mark in _READY_MARKS)


def _place_of(mark: bytes, data: bytes, after: int) -> int:
    place = data.find(mark, after)
    return len(data) if place < 0 else place
