"""Watches a start: where it stands, when it will be over, and whether it still moves."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import anyio

from vllm_supervisor.domain.capacity.measured import Key, gpu_key, measured
from vllm_supervisor.domain.diagnosis import shortened
from vllm_supervisor.domain.messages import Condemned, Event, Probed, Record
from vllm_supervisor.domain.model import Cause, Outcome, Phase, State
from vllm_supervisor.domain.redaction import redacted
from vllm_supervisor.domain.startup import (
    Activity,
    Download,
    PastStart,
    PastStarts,
    Progress,
    Pulse,
    StartPhase,
    StartReader,
    StartupFigures,
    eta,
    overall,
    stalled,
)
from vllm_supervisor.ports import (
    Engine,
    EvidenceCollector,
    Gpus,
    Level,
    Measurements,
    Note,
    StartHistory,
    StartLog,
    StartSigns,
)
from vllm_supervisor.runtime.facts import LOG_NOT_READ, Printed, StartMoved, unread
from vllm_supervisor.runtime.tasks import Post

LOOK = 0.5
"""Seconds between looks at the log and the cache."""
ACTIVITY = 5.0
"""Seconds between looks at processes and GPUs, which cost milliseconds each."""
ANNOUNCED = 3.0
"""How long after vLLM announced that it loads weights a download may begin; later, it loads them."""
DOWNLOAD = 32 << 20
"""Bytes that came, or are missing, from which on it is a download of weights before vLLM announced that it loads them:
tokenizers and configurations, which come then, are smaller. After the announcement whatever comes is weights."""
PACE = 30.0
"""Seconds over which the pace of a download is taken."""
_GB, _MB = 1e9, 1e6
_QUOTED = 200
"""Characters of a line of the log."""
EVIDENCE = 30.0
"""Most seconds for evidence before a stalled engine is ended."""


@dataclass(slots=True)
class _Start:
    """One generation's start, as far as it was seen. Times are of the watch's clock."""

    generation: int
    post: Post
    log: StartLog
    began: float
    pulse: Pulse
    past: PastStarts
    last_line: str = ""
    reader: StartReader = field(default_factory=StartReader)
    phase: StartPhase = StartPhase.LAUNCHING
    phase_began: float = 0.0
    spent: dict[StartPhase, float] = field(default_factory=dict)
    activity: Activity | None = None
    activity_at: float = 0.0
    announced_at: float | None = None
    pace: deque[tuple[float, int]] = field(default_factory=deque)
    """(when, bytes) of the last looks at the cache."""
    present_at_first: int | None = None
    download: Download | None = None
    grew: bool = False
    """There is more in the cache than at the look before."""
    ratio: float = 0.0
    moved: StartMoved | None = None
    figures: StartupFigures = field(default_factory=StartupFigures)
    gpus: tuple[str, ...] = ()
    """What the GPUs are called."""
    ready: bool = False
    """It is over, and well."""


@dataclass(frozen=True, slots=True)
class Senses:
    """What a start is watched by, and what keeps the evidence of one that has stalled."""

    open_log: Callable[[Engine], StartLog]
    signs: StartSigns
    gpus: Gpus | None = None
    evidence: EvidenceCollector | None = None
    measurements: Measurements | None = None
    """Where the memory that a start took is remembered."""
    mask: Callable[[str], str] = redacted
    """Takes secrets out of what is quoted from the log."""


class StartWatch:
    """Accompanies starts (`watch`), and hears from the loop, as an Observer, how they go on and end."""

    def __init__(
        self,
        senses: Senses,
        history: StartHistory,
        *,
        model: str,
        arguments: str,
        stall_timeout: float,
        now: Callable[[], float],
        look: float = LOOK,
    ) -> None:
        """Watch starts of `model` with `arguments` (a digest); `now` is the loop's monotonic clock."""
        self._senses = senses
        self._history = history
        self._model = model
        self._arguments = arguments
        self._look_interval = look
        self._now = now
        self._start: _Start | None = None
        self._told_unread = False
        self.tune(stall_timeout)

    def tune(self, stall_timeout: float) -> None:
        """Allow so many seconds without movement from now on, also in the start under way."""
        self._stall_timeout = stall_timeout
        self._pause = min(self._look_interval, stall_timeout / 4)

    async def watch(self, engine: Engine, post: Post) -> None:
        """Look until cancelled; tell what moved, and condemn the engine once nothing does.

        Begins where it was when it is started again for the same generation.
        """
        start = self._start
        if start is None or start.generation != engine.generation:
            start = self._start = self._begin(engine, post)
        try:
            while True:
                await self._look(start, engine)
                why = stalled(start.pulse, self._now(), self._stall_timeout)
                if why is not None:
                    await self._condemn(start, engine, why)
                    return
                await anyio.sleep(self._pause)
        finally:
            # The last figures are printed within a look before the end.
            if start.ready:
                with anyio.move_on_after(LOOK, shield=True):
                    await self._read(start)
                    self._tell(start)
                self._learn(start)

    # --- what the loop tells

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:  # noqa: ARG002 -- Observer's shape
        """Take note that the engine listens: the log may not say so yet."""
        start = self._start
        listens = isinstance(event, Probed) and event.outcome is Outcome.OK and after.phase is Phase.STARTING
        if start is not None and listens and start.generation == after.generation:
            start.reader.advance(StartPhase.WARMING_UP)
            self._turn(start)

    def recorded(self, record: Record) -> None:
        """Take note of the end of a start, and remember how long it took if it got ready."""
        start = self._start
        if start is None or record.before is not Phase.STARTING or record.generation != start.generation:
            return
        self._start = None
        start.spent[start.phase] = self._now() - start.phase_began
        spent = {phase.value: round(seconds, 3) for phase, seconds in start.spent.items()}
        if record.after is not Phase.READY:
            return
        start.ready = True
        start.post(Note("start_finished", Level.INFO, {"phases": spent}))
        past = PastStart(self._model, self._arguments, start.reader.figures.vllm_version, dict(start.spent))
        self._history.save(start.past.with_start(past))

    def noted(self, note: Note) -> None:
        """Take note that a log was found unreadable at the end of its engine."""
        self._told_unread = self._told_unread or note.kind == LOG_NOT_READ

    # --- looking

    def _begin(self, engine: Engine, post: Post) -> _Start:
        now = self._now()
        log, past = self._senses.open_log(engine), self._history.load()
        start = _Start(engine.generation, post, log, now, Pulse(now, now), past, phase_began=now)
        self._tell_phase(start, None, 0.0)
        return start

    async def _look(self, start: _Start, engine: Engine) -> None:
        await self._read(start)
        await self._weigh(start)
        if self._now() - start.activity_at >= min(ACTIVITY, self._stall_timeout / 4) or start.activity is None:
            await self._feel(start, engine)
        self._place(start)
        self._turn(start)
        self._tell(start)

    async def _read(self, start: _Start) -> None:
        """Read on in the log. One that cannot be read is silent."""
        lines = None
        with anyio.move_on_after(ACTIVITY), suppress(OSError):
            lines = await start.log.read()
        if start.log.unread is not None and not self._told_unread:
            self._told_unread = True
            for item in unread(start.log.unread):
                start.post(item)
        for line in lines or ():
            start.last_line = line if line.strip() else start.last_line
            before = start.reader.phase
            if start.reader.feed(line) or start.reader.phase is not before:
                start.pulse = start.pulse.moved(self._now(), "the log")
            self._turn(start)

    async def _weigh(self, start: _Start) -> None:
        """Look at the cache. A file system that does not answer in time tells nothing."""
        found: Download | None = None
        with anyio.move_on_after(ACTIVITY), suppress(OSError):
            found = await self._senses.signs.download()
        if found is None:
            return
        now, before = self._now(), start.download
        start.download = found
        if start.present_at_first is None:
            start.present_at_first = found.present
        start.grew = before is not None and found.present > before.present
        if start.grew:
            start.pulse = start.pulse.moved(now, "the download")
        start.pace.append((now, found.present))
        while now - start.pace[0][0] > PACE:
            start.pace.popleft()

    async def _feel(self, start: _Start, engine: Engine) -> None:
        """Look at the processes and the GPUs."""
        found: Activity | None = None
        with anyio.move_on_after(ACTIVITY):
            found = await self._senses.signs.activity(await engine.members())
            gpus = await self._senses.gpus.look() if self._senses.gpus is not None else None
            if gpus is not None:
                start.gpus = tuple(gpu.name for gpu in gpus)
                found = replace(found, gpu_bytes=sum(gpu.used for gpu in gpus))
        now = self._now()
        if found is not None:
            if start.activity is not None:
                start.pulse = start.pulse.looked(start.activity, found, now - start.activity_at, now)
            start.activity = found
        start.activity_at = now

    def _place(self, start: _Start) -> None:
        """Tell downloading from loading, which vLLM announces alike."""
        reader, now = start.reader, self._now()
        if reader.load_announced and start.announced_at is None:
            start.announced_at = now
        if self._comes(start):
            reader.advance(StartPhase.DOWNLOADING)
            start.announced_at = now if start.announced_at is not None else None
        elif start.announced_at is not None:
            waits = start.download is not None and now - start.announced_at < ANNOUNCED
            if not waits:
                reader.advance(StartPhase.LOADING_WEIGHTS)

    def _comes(self, start: _Start) -> bool:
        """Whether weights are being downloaded."""
        found, first = start.download, start.present_at_first
        if found is None or first is None:
            return False
        if start.reader.load_announced:
            # A small one is there, and finished, within two looks.
            return found.partial or start.grew
        if not found.partial:
            return False
        missing = found.expected is not None and found.expected - found.present >= DOWNLOAD
        return missing or found.present - first >= DOWNLOAD

    def _learn(self, start: _Start) -> None:
        """Remember what a start that got ready took of the GPUs."""
        figures = measured(start.reader.figures)
        if self._senses.measurements is not None and figures.useful:
            version = start.reader.figures.vllm_version
            self._senses.measurements.keep(Key(self._model, self._arguments, version, gpu_key(start.gpus)), figures)

    # --- telling

    def _turn(self, start: _Start) -> None:
        """Tell a change of phase."""
        if start.reader.phase is start.phase or start.ready:
            return
        now, before = self._now(), start.phase
        start.spent[before] = now - start.phase_began
        start.phase, start.phase_began = start.reader.phase, now
        self._tell_phase(start, before, start.spent[before])

    def _tell_phase(self, start: _Start, before: StartPhase | None, seconds: float) -> None:
        fields: dict[str, object] = {"phase": start.phase.value}
        if before is not None:
            fields |= {"before": before.value, "seconds": round(seconds, 3)}
        start.post(Note("start_phase", Level.INFO, fields))

    def _tell(self, start: _Start) -> None:
        """Tell where the start stands, where that is news."""
        if start.reader.figures != start.figures:
            start.figures = start.reader.figures
            start.post(Printed(start.generation, start.figures))
        if start.ready:
            return
        moved = self._moved(start)
        if _differs(start.moved, moved):
            start.moved = moved
            start.post(moved)

    def _moved(self, start: _Start) -> StartMoved:
        now = self._now()
        progress, left_of_download = self._progress(start)
        expected = start.past.expected(self._model, self._arguments, start.reader.figures.vllm_version)
        left = eta(expected, start.phase, now - start.phase_began, progress.ratio, left_of_download)
        start.ratio = max(start.ratio, overall(start.phase, progress.ratio, now - start.began, left))
        ready_by = None if left is None else now + left
        return StartMoved(
            start.generation, start.phase.value, progress.detail, progress.ratio, round(start.ratio, 3), ready_by
        )

    def _progress(self, start: _Start) -> tuple[Progress, float | None]:
        """Return how far the phase has come, and how many seconds a download still takes where that is known."""
        counted, found = start.reader.progress, start.download
        early = start.phase in (StartPhase.DOWNLOADING, StartPhase.LOADING_WEIGHTS) and counted.ratio is None
        if found is None or not early or not self._comes(start):
            return counted, None
        (began, least), (now, present) = start.pace[0], start.pace[-1]
        pace = (present - least) / (now - began) if now > began else 0.0
        return _download_progress(found, max(0.0, pace))

    async def _condemn(self, start: _Start, engine: Engine, why: str) -> None:
        moved = start.moved
        where = ", ".join(filter(None, (start.phase.value, moved.detail if moved is not None else "")))
        line = shortened(self._senses.mask(start.last_line.strip()), _QUOTED)
        why = f"{why}; the last line of its log: {line}" if line else why
        fields = {"phase": start.phase.value, "detail": why}
        start.post(Note("start_stalled", Level.ERROR, fields))
        if self._senses.evidence is not None:
            with anyio.move_on_after(EVIDENCE):
                await self._senses.evidence.collect(engine, Cause.STARTUP_STALL, f"{where}: {why}")
        start.post(Condemned(start.generation, Cause.STARTUP_STALL, f"{where}: {why}"))


def _download_progress(found: Download, pace: float) -> tuple[Progress, float | None]:
    """Return a download in figures, at `pace` bytes a second, and the seconds that it still takes."""
    unit, name = (_GB, "GB") if max(found.present, found.expected or 0) >= _GB else (_MB, "MB")
    words = f"{found.present / unit:.1f} {name}"
    ratio = left = None
    if found.expected:
        words = f"{found.present / unit:.1f} of {found.expected / unit:.1f} {name}"
        ratio = min(1.0, found.present / found.expected)
        left = max(0, found.expected - found.present) / pace if pace > 0 else None
    return Progress(ratio, f"{words}, {pace / _MB:.1f} MB/s"), left


def _differs(before: StartMoved | None, after: StartMoved) -> bool:
    """Say whether `after` is worth a message: words, a hundredth, or a forecast that moved by more than a second."""
    if before is None or (before.name, before.detail) != (after.name, after.detail):
        return True
    if abs((before.progress or 0.0) - (after.progress or 0.0)) >= 0.01 or after.ratio - before.ratio >= 0.01:  # noqa: PLR2004
        return True
    if before.ready_by is None or after.ready_by is None:
        return before.ready_by is not after.ready_by
    return abs(after.ready_by - before.ready_by) > 1.0
