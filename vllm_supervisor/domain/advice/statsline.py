"""vLLM's periodic stats lines, of every version since 0.6, as samples.

Read by the names of their parts, not by position: parts come and go with versions and flags. Each data-parallel rank
prints a line of its own, all at about the same time. What a line quotes of a request is never read: users write what
they like.
"""

import re
from collections import deque
from dataclasses import dataclass, replace

from vllm_supervisor.domain.advice.sample import Sample
from vllm_supervisor.domain.diagnosis.lines import Line, normalise, parts
from vllm_supervisor.domain.diagnosis.marks import Mark, mark_of, own_words
from vllm_supervisor.domain.setting import Setting
from vllm_supervisor.domain.startup import StartupFigures
from vllm_supervisor.domain.startup.figures import read_figures

INTERVAL = 10.0
"""Seconds between two lines (VLLM_LOG_STATS_INTERVAL), where the lines bear no time."""
KEPT = 10_000
"""Samples that are kept, the last ones: more than a day without a pause."""
_TOGETHER = 5.0
"""Seconds within which the lines of all ranks come."""
_DAYS = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)
"""Days before each month, a leap year taken: what matters is that time goes on."""

_STATS = re.compile(r"(?:Engine \d+: |\d+ Engines Aggregated: )?Avg prompt throughput: ")
"""How the message begins, whatever is wrapped around it."""
_HINT = "Avg prompt throughput: "
_WHEN = re.compile(r"\b(?:\d{4}-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_RANK = re.compile(r"\b(Engine \d+|\d+ Engines Aggregated): ")
_RUNNING = re.compile(r"\bRunning: (\d{1,15})\b")
_WAITING = re.compile(r"\b(?:Waiting|Pending): (\d{1,15})\b")
_SWAPPED = re.compile(r"\bSwapped: (\d{1,15})\b")
_USAGE = re.compile(r"KV cache usage: (\d{1,15}(?:\.\d{1,15})?)%")
"""The first of a line: V0's second one is of the host's memory, and a CPU's engine says CPU."""
_PREEMPTED = re.compile(r"\bPreemptions: (\d{1,15})\b")
_PROMPTS = re.compile(r"\bAvg prompt throughput: (\d{1,15}(?:\.\d{1,15})?)")
_ANSWERS = re.compile(r"\bAvg generation throughput: (\d{1,15}(?:\.\d{1,15})?)")
_HITS = re.compile(r"(?<!External )(?<!external )\b[Pp]refix cache hit rate: (?:GPU: )?(\d{1,15}(?:\.\d{1,15})?)%")
_SEQS = re.compile(r"\bmax_num_seqs['\"]?[=:] ?(\d{1,15})\b")
_LENGTH = re.compile(r"\bmax_(?:model|seq)_len['\"]?[=:] ?(\d{1,15})\b")


@dataclass(frozen=True, slots=True)
class _Line:
    """One rank's line. Rates are tokens a second since the line before."""

    running: float
    waiting: float
    kv: float | None
    prompts: float
    answers: float
    hit_rate: float | None
    preemptions: float | None


class StatsReader:
    """Takes a log's lines in order and keeps the samples of the last start in them, the last ones.

    A start is seen by vLLM's banner, by our own line between two generations, and, where a log lacks these, by what is
    printed of the KV cache and when the server is up.
    """

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._tick: dict[str, _Line] = {}
        self._at: float | None = None
        self._prompt_tokens = 0.0
        self._generation_tokens = 0.0
        self._figures = StartupFigures()
        self._setting = Setting()
        self._shift = 0.0
        self.dropped = 0
        """How many starts before the last one had stats lines."""

    def feed(self, text: str) -> None:
        """Take the next line, whatever is wrapped around it."""
        for part in parts(text):
            # A prompt may quote a whole line, and `normalise` looks for one behind a prefix that it does not know.
            line = own_words(normalise(own_words(Line(part)).body))
            if _STATS.match(line.body) is not None and (found := _RUNNING.search(line.body)) is not None:
                self._take(line.body, found, text if text.startswith("{") else part)
            elif self._tick and (hits := _HITS.match(line.body)) is not None:
                self._late_hits(float(hits[1]) / 100)
            else:
                self._start(line)

    def _start(self, line: Line) -> None:
        """Take a line that is none of an engine at work."""
        text, mark = line.body, mark_of(line)
        if mark in (Mark.BANNER, Mark.LAUNCHED):
            self._begin()
            # The arguments follow the banner. What was printed of the KV cache will be printed again.
            self._setting = Setting()
        elif mark is Mark.STARTED:
            self._begin()
        elif "concurrency for" in text or "KV cache size" in text:
            self._begin()
            start = max(text.find("KV cache size") - 20, 0) if "KV cache size" in text else text.find("Maximum")
            self._figures = read_figures(self._figures, text[max(start, 0) :])
        elif "max_" in text:
            self._flags(text)

    def _begin(self) -> None:
        """Forget the start before. Several servers of one start print a banner each, all before the first stats."""
        if self._tick or self._samples:
            self._tick = {}
            self._samples.clear()
            self._figures = StartupFigures()
            self.dropped += 1

    def samples(self) -> list[Sample]:
        """Return what was read, in order of time."""
        self._flush()
        return list(self._samples)

    def setting(self) -> Setting:
        """Return what the log says of the engine."""
        return replace(
            self._setting, max_concurrency=self._figures.max_concurrency, kv_tokens=self._figures.kv_cache_tokens
        )

    def _take(self, text: str, running: re.Match[str], raw: str) -> None:
        """Take the line whose message is `text`; its time is in `raw`: before it, or in the record around it."""
        rank = found[1] if (found := _RANK.search(text)) is not None else ""
        at = self._time(raw)
        if self._tick and (
            rank in self._tick or (self._at is not None and at is not None and at - self._at > _TOGETHER)
        ):
            self._flush()
        if not self._tick:
            self._at = at if at is not None else self._next()
        waiting = _figure(_WAITING, text) or 0.0
        self._tick[rank] = _Line(
            running=float(running[1]),
            waiting=waiting + (_figure(_SWAPPED, text) or 0.0),
            kv=None if (usage := _figure(_USAGE, text)) is None else min(1.0, usage / 100),
            prompts=_figure(_PROMPTS, text) or 0.0,
            answers=_figure(_ANSWERS, text) or 0.0,
            hit_rate=None if (hits := _figure(_HITS, text)) is None else hits / 100,
            preemptions=_figure(_PREEMPTED, text),
        )

    def _late_hits(self, rate: float) -> None:
        """V0 tells of the prefix cache in a line of its own, after the stats."""
        rank, line = next(reversed(self._tick.items()))
        self._tick[rank] = replace(line, hit_rate=rate)

    def _flush(self) -> None:
        """Make a sample of the ranks' lines: requests and tokens add up, the rest is their mean."""
        if not self._tick or self._at is None:
            return
        lines = list(self._tick.values())
        self._tick = {}
        before = self._samples[-1] if self._samples else None
        passed = min(self._at - before.at, 2 * INTERVAL) if before is not None else INTERVAL
        self._prompt_tokens += passed * sum(line.prompts for line in lines)
        self._generation_tokens += passed * sum(line.answers for line in lines)
        preempted = [line.preemptions for line in lines if line.preemptions is not None]
        earlier = before.preemptions if before is not None else None
        self._samples.append(
            Sample(
                at=self._at,
                running=sum(line.running for line in lines),
                waiting=sum(line.waiting for line in lines),
                kv=_mean([line.kv for line in lines]),
                # The part is there only in an interval that had some, and counts those of the interval.
                preemptions=(earlier or 0.0) + sum(preempted),
                prompt_tokens=self._prompt_tokens,
                generation_tokens=self._generation_tokens,
                hit_rate=_mean([line.hit_rate for line in lines]),
            )
        )

    def _flags(self, text: str) -> None:
        seqs, length = _figure(_SEQS, text), _figure(_LENGTH, text)
        if seqs:
            self._setting = replace(self._setting, max_num_seqs=int(seqs))
        if length:
            self._setting = replace(self._setting, max_model_len=int(length))

    def _next(self) -> float:
        return self._samples[-1].at + INTERVAL if self._samples else 0.0

    def _time(self, raw: str) -> float | None:
        """Return seconds that go on; None where the line bears no date.

        The date has no year. Where it steps back (a New Year, a clock set back, logs put together), time goes on from
        the line before.
        """
        stamps = list(_WHEN.finditer(raw, 0, raw.find(_HINT))) or list(_WHEN.finditer(raw))
        if not stamps:
            return None
        month, day, hour, minute, second = (int(part) for part in stamps[-1].groups())
        if not 1 <= month <= len(_DAYS):
            return None
        at = self._shift + ((_DAYS[month - 1] + day) * 24 + hour) * 3600.0 + minute * 60 + second
        last = self._at if self._at is not None else at
        if at < last - _TOGETHER:
            self._shift += last + INTERVAL - at
            return last + INTERVAL
        return max(at, last)


def _figure(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) if found is not None else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
