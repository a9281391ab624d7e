"""A big log in chunks of bytes: only lines that may matter are decoded and looked at."""

from collections.abc import Iterator
from itertools import chain

from vllm_supervisor.domain.diagnosis.catalogue import GATE
from vllm_supervisor.domain.diagnosis.diagnoser import Diagnoser
from vllm_supervisor.domain.diagnosis.lines import MAX_LINE

TAIL = 64 * 1024
"""Bytes at the end in which stats lines are read: a hang is at the end of its log."""
MAX_CARRY = 256 * 1024
"""Bytes of an unfinished line that are kept. What follows in the same line is dropped."""

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

_READY_MARKS = (b"Avg prompt throughput: ", b'HTTP/1.1" 200', b'HTTP/1.0" 200')


class Scanner:
    """Feeds a diagnoser from chunks of a log, at disk speed and in bounded memory."""

    def __init__(self, diagnoser: Diagnoser) -> None:
        self._diagnoser = diagnoser
        self._lines = 0
        self._carry = b""
        self._skipping = False
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk, cut anywhere."""
        if self._skipping:
            end = chunk.find(b"\n")
            if end < 0:
                return
            chunk = chunk[end:]
            self._skipping = False
        data = self._carry + chunk
        end = data.rfind(b"\n")
        if end < 0:
            self._carry = data
            if len(data) > MAX_CARRY:
                self._carry = data[:MAX_CARRY]
                self._skipping = True
            return
        self._carry = data[end + 1 :]
        self._whole_lines(data[: end + 1])

    def finish(self) -> None:
        """Take what is left, and read the stats lines of the tail. To be called once, at the end."""
        if self._carry:
            rest, self._carry = self._carry + b"\n", b""
            self._whole_lines(rest)
        lines = self._tail.decode("utf-8", "replace").split("\n")
        first = self._lines - len(lines) + 2
        self._diagnoser.forget_stats()
        for offset, line in enumerate(lines):
            if "server version" in line:
                self._diagnoser.forget_stats()
            elif "Avg prompt throughput" in line:
                self._diagnoser.feed_stats(line, first + offset)

    def _whole_lines(self, data: bytes) -> None:
        done = counted = 0
        number = self._lines + 1
        for place in chain((-1,), self._places(data)):  # -1: a traceback may go on from the chunk before
            if place >= done:
                begin = data.rfind(b"\n", 0, place) + 1
                number += data.count(b"\n", counted, begin)
                done = counted = self._line(data, begin, place, number)
                number += 1
            while self._diagnoser.in_request and done < len(data):
                done = counted = self._line(data, done, done, number)
                number += 1
        self._lines += data.count(b"\n")
        self._tail = (self._tail + data[-TAIL:])[-TAIL:]

    def _line(self, data: bytes, begin: int, place: int, number: int) -> int:
        """Hand over the line around `place`, and return where the next one begins."""
        end = data.find(b"\n", place)
        self._diagnoser.feed_raw(self._cut(data, begin, place, end), number)
        return end + 1

    def _places(self, data: bytes) -> Iterator[int]:
        """Yield the offsets at which a line may matter, in order: the gate's, and, until readiness, the first signs.

        Stats and access lines are most of a healthy log: they are looked for only while they would tell something.
        """
        squashed = data
        for common, small in _SQUASHED:
            squashed = squashed.replace(common, small)
        found = GATE.finditer(squashed)
        sign: int | None = None
        at = 0
        for gate in chain((match.start() for match in found), (len(data),)):
            while not self._diagnoser.ready:
                sign = _next_sign(data, at) if sign is None else sign
                if sign >= gate:
                    break
                at = sign + 1
                yield sign
                sign = None
            else:
                sign = None
            if gate < len(data):
                at = gate
                yield gate

    @staticmethod
    def _cut(data: bytes, begin: int, start: int, end: int) -> bytes:
        """Return the line, of a long one (a progress bar that ran for an hour) the part around the find."""
        if end - begin > MAX_LINE and (turn := data.rfind(b"\r", begin, start)) >= 0:
            begin = turn + 1
        return data[begin : min(end, begin + MAX_LINE)]


def _next_sign(data: bytes, after: int) -> int:
    """Return the offset of the next sign of readiness, `len(data)` where there is none."""
    return min((place for mark in _READY_MARKS if (place := data.find(mark, after)) >= 0), default=len(data))
