"""Reads an engine's log while it starts."""

from vllm_supervisor.domain.diagnosis.lines import normalise, parts
from vllm_supervisor.domain.startup.figures import StartupFigures, read_figures
from vllm_supervisor.domain.startup.novelty import Bar, Novelty, bar_of
from vllm_supervisor.domain.startup.phases import LOAD_ANNOUNCED, NOTHING, Progress, StartPhase, phase_of

_MIXED, _DECODE = "mixed prefill-decode", "decode, FULL"
"""vLLM 0.11 and later may capture twice: with one bar over mixed batches, then with one over decoding only."""
_OURS = "[vllm-supervisor"
"""What the daemon itself writes into the engine's log."""


class StartReader:
    """Takes the lines of one generation in order; any bytes, decoded anyhow, will do.

    `phase` never goes back: of several workers, the foremost counts. `load_announced` says that the engine is about to
    load weights, which it may have to download first.
    """

    def __init__(self) -> None:
        self.phase = StartPhase.LAUNCHING
        self.figures = StartupFigures()
        self.load_announced = False
        self._progress = NOTHING
        self._novelty = Novelty()

    @property
    def progress(self) -> Progress:
        """How far the phase has come, as far as the log counts it. The ratio never goes back within a phase."""
        return self._progress

    def feed(self, raw: str) -> bool:
        """Take one line; say whether it is a sign of life."""
        if raw.startswith(_OURS):
            return False
        news = False
        for part in parts(raw):
            line = normalise(part)
            if not line.body.strip():
                continue
            bar = bar_of(line.body)
            self._place(line.body)
            news = self._novelty.hear(line, bar) or news
            if bar is not None:
                self._count(bar)
            self.figures = read_figures(self.figures, line.body)
        return news

    def advance(self, phase: StartPhase) -> None:
        """Move on to `phase`, unless it lies behind. Also for what the log does not say: downloads, a 200."""
        if phase.rank > self.phase.rank:
            self.phase = phase
            self._progress = NOTHING
            self._novelty.forget()

    def _place(self, body: str) -> None:
        self.advance(StartPhase.CONFIGURING)
        if LOAD_ANNOUNCED.search(body):
            self.load_announced = True
        phase = phase_of(body)
        if phase is not None:
            self.advance(phase)

    def _count(self, bar: Bar) -> None:
        """Take a bar as the progress of the phase that it belongs to. One of a phase gone by says nothing."""
        if phase_of(f"{bar.what}: 0%|") is not self.phase:
            return
        ratio = bar.done / bar.total
        if self.phase is StartPhase.CAPTURING_GRAPHS:
            words = f"{bar.done} of {bar.total} graphs"
            if _MIXED in bar.what:
                ratio, words = ratio / 2, f"pass 1, {words}"
            elif _DECODE in bar.what:
                ratio, words = (1 + ratio) / 2, f"pass 2 of 2, {words}"
        elif self.phase is StartPhase.LOADING_WEIGHTS:
            words = f"{bar.done} of {bar.total} shards"
        else:
            return  # of several files at once, which the file system counts better
        if self._progress.ratio is None or ratio >= self._progress.ratio:
            self._progress = Progress(ratio, words)
