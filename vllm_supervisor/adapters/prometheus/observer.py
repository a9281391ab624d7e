"""Figures about the engine's life, for Prometheus. Names and labels are a contract: dashboards rely on them."""

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from vllm_supervisor.adapters.prometheus.families import (
    Histogram,
    counter,
    counters,
    gauge,
    gauges,
    histograms,
)
from vllm_supervisor.adapters.prometheus.logfigures import LogFigures
from vllm_supervisor.domain.diagnosis import CLASSES
from vllm_supervisor.domain.messages import Blocked, Event, Probed, Record, Spawned
from vllm_supervisor.domain.model import (
    RESTART_REASONS,
    Blocker,
    BlockerKind,
    Outcome,
    Phase,
    PublicState,
    State,
    public_state,
)
from vllm_supervisor.domain.startup import StartPhase
from vllm_supervisor.ports import Note

_START_BOUNDS = (1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)
"""Seconds: the simulator starts in 1, a small model in 30, a large one from a cold disk in half an hour."""
_PROBE_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_ROUTES = frozenset(
    {
        *("/v1/status", "/v1/models", "/v1/events", "/v1/logs", "/v1/advice"),
        *("/v1/start", "/v1/stop", "/v1/restart", "/v1/reload"),
        *("/metrics", "/livez", "/readyz"),
    }
)
_PROBES = ("health", "canary")
_UNKNOWN = "unknown"
"""Stands for an end whose cause was not found."""
_OTHER = "other"
"""Stands for every path that is no route: clients choose paths, and each would be a series."""
_ENDING = frozenset({Phase.STOPPING, Phase.KILLING, Phase.REAPING})
_START_PHASES = frozenset(phase.value for phase in StartPhase)
_SERVED = frozenset({Phase.READY, Phase.UNHEALTHY})


class PrometheusObserver:
    """Implements `ports.Observer`: counts, in a registry of its own.

    `started_at` and every `now` are monotonic seconds of one clock. `version` is the daemon's.
    """

    def __init__(self, version: str, started_at: float) -> None:
        self._version = version
        self._phase = Phase.STOPPED
        self._since = started_at
        self._seconds = dict.fromkeys(PublicState, 0.0)
        self._starts = 0
        self._restarts = Counter({reason.value: 0 for reason in RESTART_REASONS})
        self._exits = Counter(dict.fromkeys((*CLASSES, _UNKNOWN), 0))
        self._failures = 0
        self._backoff = 0.0
        self._start_duration = Histogram(_START_BOUNDS)
        self._phase_duration: dict[str, float] = {}
        self._start_ratio = 0.0
        self._probe_duration = {probe: Histogram(_PROBE_BOUNDS) for probe in _PROBES}
        self._probe_results: Counter[tuple[str, ...]] = Counter(
            {(probe, outcome.value): 0 for probe in _PROBES for outcome in Outcome}
        )
        self._progress: tuple[float, float | None] | None = None
        self._stop_began: float | None = None
        self._stop_duration: float | None = None
        self._gpu_wait: float | None = None
        self._log = LogFigures()
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._engine: tuple[str, str, str] | None = None
        self._recommended: int | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._collected_at = started_at
        self._registry.register(_Families(self))
        ProcessCollector(registry=self._registry)

    # --- what is heard

    def stepped(self, before: State, event: Event, after: State, now: float) -> None:
        """Count what happened to processes and probes."""
        self._failures = after.failures
        backing_off = after.phase is Phase.BACKOFF and after.deadline is not None
        self._backoff = max(0.0, (after.deadline or 0.0) - after.since) if backing_off else 0.0
        match event:
            case Spawned(generation=generation) if before.spawning and generation == before.generation:
                self._starts += 1
                if before.next_cause in RESTART_REASONS:
                    self._restarts[before.next_cause.value] += 1
            case Blocked(blocker=Blocker(kind=BlockerKind.LOG_FILE)) if after.blocked > before.blocked:
                self._log.blocked()
            case Probed():
                self.probed("health", event.outcome, event.latency)
        if after.was_ready and not before.was_ready and after.launched_at is not None:
            self._start_duration.observe(now - after.launched_at)

    def recorded(self, record: Record) -> None:
        """Book the time spent in the phase that ended."""
        spent = max(0.0, record.at - self._since)
        self._seconds[public_state(record.before)] += spent
        self._phase_duration[record.before.value] = spent
        if record.after is Phase.STARTING:
            self._start_ratio = 0.0
        self._phase, self._since = record.after, record.at
        if record.after in _ENDING:
            if record.after is not Phase.REAPING and record.before not in _ENDING:
                self._stop_began = record.at
        elif self._stop_began is not None:
            self._stop_duration = record.at - self._stop_began
            self._stop_began = None

    def noted(self, note: Note) -> None:
        """Count diagnosed ends, and book the times that notes tell; other notes are no figures."""
        if note.kind == "start_phase":
            self._start_phase(note.fields.get("before"), note.fields.get("seconds"))
        elif note.kind == "start_finished":
            phases = note.fields.get("phases")
            for phase, seconds in phases.items() if isinstance(phases, Mapping) else ():
                self._start_phase(phase, seconds)
        elif note.kind == "engine_diagnosed":
            name = note.fields.get("class")
            self._exits[name if isinstance(name, str) and name in CLASSES else _UNKNOWN] += 1
        elif note.kind == "gpu_released":
            seconds = note.fields.get("seconds")
            self._gpu_wait = float(seconds) if isinstance(seconds, int | float) else None
        else:
            self._log.noted(note)

    def _start_phase(self, phase: object, seconds: object) -> None:
        if isinstance(phase, str) and phase in _START_PHASES and isinstance(seconds, int | float):
            self._phase_duration[phase] = float(seconds)

    def started_so_far(self, ratio: float) -> None:
        """Say how far the start in progress has come, 0..1."""
        self._start_ratio = ratio

    def probed(self, probe: str, outcome: Outcome, seconds: float) -> None:
        """Count a probe. One that could not be made has no duration."""
        self._probe_results[probe, outcome.value] += 1
        if outcome is not Outcome.UNKNOWN:
            self._probe_duration.setdefault(probe, Histogram(_PROBE_BOUNDS)).observe(seconds)

    def progressed(self, at: float | None, canary: float | None) -> None:
        """Say when the engine was last seen to step (wall time; None: there is none), and how long a canary took."""
        self._progress = None if at is None else (at, canary)

    def requested(self, route: str, code: int) -> None:
        """Count a request on the control socket or the metrics address; paths that are no route count as `other`."""
        self._requests[route if route in _ROUTES else _OTHER, str(code)] += 1

    def described(self, model: str, revision: str | None, version: str | None) -> None:
        """Say which model is served, and by which version of vLLM; the latest word replaces the one before."""
        self._engine = (model, revision or "", version or "")

    def recommended(self, concurrency: int) -> None:
        """Say how many requests clients should keep in flight."""
        self._recommended = concurrency

    # --- what is told

    def exposition(self, now: float) -> bytes:
        """Return all figures in Prometheus text format 0.0.4; the state that lasts is counted up to `now`."""
        self._collected_at = now
        return generate_latest(self._registry)

    def families(self) -> Iterator[Metric]:
        """Yield the figures, each a metric family. Those that nothing has happened to yet have no sample."""
        yield from self._state_families()
        yield from self._restart_families()
        yield from self._duration_families()
        yield from self._log.families()
        yield counters(
            "control_requests_total",
            "Requests on the control socket and the metrics address.",
            ("route", "code"),
            self._requests,
        )
        yield gauges(
            "recommended_concurrency",
            "How many requests clients should keep in flight; the configured number until the load tells more.",
            (),
            {} if self._recommended is None else {(): self._recommended},
        )
        yield gauges(
            "engine_info",
            "The model served, its revision, and vLLM's version.",
            ("model", "revision", "vllm_version"),
            {self._engine: 1.0} if self._engine else {},
        )
        yield gauges("build_info", "The daemon's version.", ("version",), {(self._version,): 1.0})

    def _state_families(self) -> Iterator[Metric]:
        current = public_state(self._phase)
        lasting = max(0.0, self._collected_at - self._since)
        yield gauge("ready", "Whether the engine has served and is offered to clients.", self._phase is Phase.READY)
        yield gauges(
            "state",
            "1 for the current state.",
            ("state",),
            {(state.value,): float(state is current) for state in PublicState},
        )
        yield counters(
            "state_seconds_total",
            "Time spent in each state.",
            ("state",),
            {(state.value,): spent + lasting * (state is current) for state, spent in self._seconds.items()},
        )
        ratio = 1.0 if self._phase in _SERVED else self._start_ratio if self._phase is Phase.STARTING else 0.0
        yield gauge("startup_progress_ratio", "How far the start of the engine has come; 1 once it served.", ratio)

    def _restart_families(self) -> Iterator[Metric]:
        yield counter("starts_total", "Engines launched.", self._starts)
        yield counters(
            "restarts_total",
            "Engines launched to replace one, by the reason.",
            ("reason",),
            {(reason,): count for reason, count in self._restarts.items()},
        )
        yield counters(
            "engine_exits_total",
            "Ends of the engine that nobody asked for, by the class of their cause.",
            ("class",),
            {(name,): count for name, count in self._exits.items()},
        )
        yield gauge("consecutive_failures", "Exits and kills in a row that nobody asked for.", self._failures)
        yield gauge("backoff_seconds", "The pause before the next launch; 0 when none is on.", self._backoff)

    def _duration_families(self) -> Iterator[Metric]:
        yield histograms("start_duration_seconds", "From launch to ready.", (), {(): self._start_duration})
        yield gauges(
            "phase_duration_seconds",
            "How long a state of the machine, or a phase of a start, lasted when it was last left.",
            ("phase",),
            {(phase,): seconds for phase, seconds in self._phase_duration.items()},
        )
        yield histograms(
            "probe_duration_seconds",
            "How long probes took.",
            ("probe",),
            {(probe,): histogram for probe, histogram in self._probe_duration.items()},
        )
        yield counters("probe_results_total", "Probes, by what they found.", ("probe", "result"), self._probe_results)
        at, canary = self._progress or (None, None)
        yield gauges(
            "canary_duration_seconds",
            "How long the last canary took that was answered.",
            (),
            {} if canary is None else {(): canary},
        )
        yield gauges(
            "last_progress_timestamp_seconds",
            "When the engine was last seen to step.",
            (),
            {} if at is None else {(): at},
        )
        yield gauges(
            "stop_duration_seconds",
            "How long the last stop took, until no process of the engine was left.",
            (),
            {} if self._stop_duration is None else {(): self._stop_duration},
        )
        yield gauges(
            "gpu_release_wait_seconds",
            "How long the last launch waited for the GPUs of the engine before.",
            (),
            {} if self._gpu_wait is None else {(): self._gpu_wait},
        )


class _Families(Collector):
    """Hands the observer's figures to the registry."""

    def __init__(self, observer: PrometheusObserver) -> None:
        self._observer = observer

    def collect(self) -> Iterator[Metric]:
        return self._observer.families()
