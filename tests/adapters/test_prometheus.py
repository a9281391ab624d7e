import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from vllm_supervisor.adapters.prometheus import PrometheusObserver
from vllm_supervisor.domain import machine
from vllm_supervisor.domain.diagnosis import CLASSES
from vllm_supervisor.domain.messages import (
    Blocked,
    Cleared,
    DeadlinePassed,
    Event,
    GroupEmpty,
    LeaderExited,
    Probed,
    Record,
    RestartAsked,
    Served,
    Spawned,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import Blocker, BlockerKind, Cause, ExitStatus, Outcome, Phase, Policy, State
from vllm_supervisor.ports import Note, Observer

PREFIX = "vllm_supervisor_"
NAMES = {
    "ready": "gauge",
    "state": "gauge",
    "state_seconds_total": "counter",
    "starts_total": "counter",
    "restarts_total": "counter",
    "engine_exits_total": "counter",
    "consecutive_failures": "gauge",
    "backoff_seconds": "gauge",
    "start_duration_seconds": "histogram",
    "phase_duration_seconds": "gauge",
    "startup_progress_ratio": "gauge",
    "probe_duration_seconds": "histogram",
    "probe_results_total": "counter",
    "stop_duration_seconds": "gauge",
    "gpu_release_wait_seconds": "gauge",
    "canary_duration_seconds": "gauge",
    "last_progress_timestamp_seconds": "gauge",
    "log_problems_total": "counter",
    "log_lost_bytes_total": "counter",
    "control_requests_total": "counter",
    "recommended_concurrency": "gauge",
    "engine_info": "gauge",
    "build_info": "gauge",
}
Figures = dict[tuple[str, tuple[str, ...]], float]


def figures(observer: PrometheusObserver, now: float) -> Figures:
    """Return (name without prefix, label values) -> value."""
    text = observer.exposition(now).decode()
    return {
        (sample.name.removeprefix(PREFIX), tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Life:
    """The real machine, in made-up time, with the observer told what the loop would tell it."""

    def __init__(self) -> None:
        self.observer = PrometheusObserver("1.2.3", 100.0)
        self.state = State(since=100.0)
        self.now = 100.0
        self.policy = Policy(min_backoff=1.0, max_backoff=60.0)

    def at(self, now: float, *events: Event) -> "Life":
        self.now = now
        for event in events:
            before = self.state
            self.state, effects = machine.step(before, event, now, self.policy, 0.5)
            self.observer.stepped(before, event, self.state, now)
            for effect in effects:
                if isinstance(effect, Record):
                    self.observer.recorded(effect)
        return self

    @property
    def generation(self) -> int:
        return self.state.generation

    def launched(self, now: float) -> "Life":
        return self.at(now, Cleared(self.generation)).at(now, Spawned(self.generation, 7))

    def ready(self, now: float) -> "Life":
        return self.at(now, Probed(self.generation, Outcome.OK, 0.004), Served(self.generation))

    def gone(self, now: float) -> "Life":
        return self.at(now, LeaderExited(self.generation, ExitStatus(code=0)), GroupEmpty(self.generation))

    def __getitem__(self, key: str | tuple[str, ...]) -> float:
        name, *labels = (key,) if isinstance(key, str) else key
        return figures(self.observer, self.now)[name, tuple(labels)]


@pytest.fixture
def life() -> Life:
    return Life()


def test_it_is_an_observer(life: Life) -> None:
    """The port's signatures are met."""
    observer: Observer = life.observer
    observer.noted(Note("anything"))


def test_names_and_types_are_the_contract(life: Life) -> None:
    """Every name has its type and a help text from the first exposition on, and there is no other."""
    text = life.observer.exposition(101.0).decode()
    assert dict(re.findall(rf"^# TYPE {PREFIX}(\S+) (\S+)$", text, re.MULTILINE)) == NAMES
    assert set(re.findall(rf"^# HELP {PREFIX}(\S+) .", text, re.MULTILINE)) == set(NAMES)
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


def test_every_fixed_label_value_is_there_from_the_start(life: Life) -> None:
    """A counter that appears only with its first event hides that event from `rate`."""
    seen = figures(life.observer, 101.0)
    states = ("stopped", "starting", "ready", "unhealthy", "stopping", "backoff", "failed")
    assert [seen["state", (state,)] for state in states] == [1, 0, 0, 0, 0, 0, 0]
    assert [seen["state_seconds_total", (state,)] for state in states] == [1, 0, 0, 0, 0, 0, 0]
    for reason in ("crash", "hang", "unhealthy", "startup_stall", "requested", "config"):
        assert seen["restarts_total", (reason,)] == 0
    for cls in (*CLASSES, "unknown"):
        assert seen["engine_exits_total", (cls,)] == 0
    for outcome in Outcome:
        assert seen["probe_results_total", ("health", outcome.value)] == 0


def test_start_to_ready(life: Life) -> None:
    """A first start is a start and no restart; its duration runs from launch to ready."""
    life.at(100.0, StartAsked()).launched(101.0)
    assert (life["ready"], life["startup_progress_ratio"], life["starts_total"]) == (0, 0, 1)
    life.ready(113.0)
    assert (life["ready"], life["state", "ready"], life["state", "starting"]) == (1, 1, 0)
    assert life["startup_progress_ratio"] == 1
    assert (life["start_duration_seconds_sum"], life["start_duration_seconds_count"]) == (12, 1)
    assert (life["start_duration_seconds_bucket", "10"], life["start_duration_seconds_bucket", "15"]) == (0, 1)
    assert life["phase_duration_seconds", "starting"] == 13
    assert sum(value for (name, _), value in figures(life.observer, 113.0).items() if name == "restarts_total") == 0


def test_state_seconds_run_on_between_events(life: Life) -> None:
    """The state that lasts is counted up to the moment of asking, and all states add up to the time passed."""
    life.at(100.0, StartAsked()).launched(101.0).ready(110.0)
    seen = figures(life.observer, 150.0)
    assert seen["state_seconds_total", ("ready",)] == 40
    assert sum(value for (name, _), value in seen.items() if name == "state_seconds_total") == 50


def test_a_crash_is_a_failure_and_a_restart_once_relaunched(life: Life) -> None:
    """The failure counts at once; the restart when it is made; exit 0 is a failure as any other."""
    life.at(100.0, StartAsked()).launched(100.0).ready(110.0).gone(120.0)
    assert life["consecutive_failures"] == 1
    assert (life["state", "backoff"], life["restarts_total", "crash"]) == (1, 0)
    due = life.state.deadline
    assert due is not None
    assert life["backoff_seconds"] == pytest.approx(due - 120.0)
    life.at(due, DeadlinePassed()).launched(due)
    assert (life["restarts_total", "crash"], life["starts_total"], life["backoff_seconds"]) == (1, 2, 0)


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        pytest.param("oom_runtime", "oom_runtime", id="a class"),
        pytest.param("unknown", "unknown", id="no cause found"),
        pytest.param("new_word", "unknown", id="a word that is none of the vocabulary"),
        pytest.param(None, "unknown", id="nothing"),
    ],
)
def test_an_end_counts_by_its_class(life: Life, told: str | None, counted: str) -> None:
    """The diagnosis counts an end nobody asked for, and the label's values stay a fixed set."""
    before = figures(life.observer, 100.0)
    life.observer.noted(Note("engine_diagnosed", fields={"class": told}))
    after = figures(life.observer, 100.0)
    changed = {key: value for key, value in after.items() if before.get(key) != value and "process" not in key[0]}
    assert changed == {("engine_exits_total", (counted,)): 1}


@pytest.mark.parametrize(
    ("kind", "told", "counted"),
    [
        ("log_file_missing", "missing", "missing"),
        ("log_disk_full", "disk_full", "disk_full"),
        ("log_rotation_failed", "not_writable", "not_writable"),
        ("log_not_prepared", "a surprise", "other"),
    ],
)
def test_troubles_with_the_log(life: Life, kind: str, told: str, counted: str) -> None:
    """Each is counted by its kind, and the label's values stay a fixed set."""
    life.observer.noted(Note(kind, fields={"problem": told}))
    assert life["log_problems_total", counted] == 1
    assert sum(value for key, value in figures(life.observer, 100.0).items() if key[0] == "log_problems_total") == 1


def test_a_log_that_cannot_be_opened_for_a_launch(life: Life) -> None:
    """The launch is blocked, and the log is why."""
    life.at(101, StartAsked()).at(102, Blocked(1, Blocker(BlockerKind.LOG_FILE, "why", "remedy")))
    assert life["log_problems_total", "not_writable"] == 1


def test_bytes_lost_in_rotations_add_up(life: Life) -> None:
    """Those that are known to be lost."""
    for lost in (10, 0, 5):
        life.observer.noted(Note("log_rotated", fields={"moved": 100, "lost": lost, "how": "truncate"}))
    assert life["log_lost_bytes_total"] == 15


def test_the_wait_for_gpus(life: Life) -> None:
    """The last wait, and no sample where there was none."""
    assert ("gpu_release_wait_seconds", ()) not in figures(life.observer, 100.0)
    life.observer.noted(Note("gpu_released", fields={"seconds": 3.5}))
    assert life["gpu_release_wait_seconds"] == 3.5


def test_a_requested_restart_is_no_failure(life: Life) -> None:
    """What an operator asked for is counted under `requested` and nowhere else; the stop has its duration."""
    life.at(100.0, StartAsked()).launched(100.0).ready(110.0)
    life.at(120.0, RestartAsked(drain=False)).gone(124.0).launched(124.0)
    assert life["restarts_total", "requested"] == 1
    assert (life["consecutive_failures"], life["stop_duration_seconds"]) == (0, 4)


def test_a_stop_is_measured_to_the_last_member(life: Life) -> None:
    """From the order to the proof, whatever phases lie between; what follows a crash is no stop."""
    life.at(100.0, StartAsked()).launched(100.0).ready(110.0).gone(111.0)
    assert ("stop_duration_seconds", ()) not in figures(life.observer, 112.0)
    life.at(115.0, DeadlinePassed()).launched(115.0).ready(120.0)
    life.at(130.0, StopAsked(drain=False))
    life.at(160.0, DeadlinePassed())
    assert life.state.phase is Phase.KILLING
    life.at(161.0, LeaderExited(life.generation, ExitStatus(signal=9))).at(161.5, GroupEmpty(life.generation))
    assert life["stop_duration_seconds"] == 31.5


def test_stale_facts_count_nothing(life: Life) -> None:
    """Facts about an earlier generation are dropped by the machine, and here."""
    life.at(100.0, StartAsked()).launched(100.0)
    life.at(101.0, Spawned(life.generation - 1, 9), LeaderExited(life.generation - 1, ExitStatus(code=1)))
    assert life["starts_total"] == 1


def test_restart_reason_needs_to_be_one(life: Life) -> None:
    """A launch after a leftover, or after a stop, is a start but no restart."""
    before = State(phase=Phase.STARTING, generation=1, spawning=True, next_cause=Cause.LEFTOVER)
    life.observer.stepped(before, Spawned(1, 7), before, 101.0)
    seen = figures(life.observer, 101.0)
    assert seen["starts_total", ()] == 1
    assert {labels for name, labels in seen if name == "restarts_total"} == {
        (reason,) for reason in ("crash", "hang", "unhealthy", "startup_stall", "requested", "config")
    }


def test_probes_by_result_and_duration(life: Life) -> None:
    """A probe that could not be made is counted, and has no duration."""
    life.at(100.0, StartAsked()).launched(100.0)
    for outcome in (Outcome.REFUSED, Outcome.UNKNOWN):
        life.at(101.0, Probed(life.generation, outcome, 0.2))
    assert life["probe_results_total", "health", "refused"] == 1
    assert life["probe_results_total", "health", "unknown"] == 1
    assert life["probe_duration_seconds_count", "health"] == 1
    assert (
        life["probe_duration_seconds_bucket", "0.1", "health"],
        life["probe_duration_seconds_bucket", "0.25", "health"],
    ) == (0, 1)


def test_clients_cannot_make_series(life: Life) -> None:
    """Paths that are no route share one label value."""
    life.observer.requested("/v1/status", 200)
    for number in range(1000):
        life.observer.requested(f"/{number}", 404)
    assert life["control_requests_total", "200", "/v1/status"] == 1
    assert life["control_requests_total", "404", "other"] == 1000
    assert sum(name == "control_requests_total" for name, _ in figures(life.observer, 100.0)) == 2


def test_engine_info_has_one_series_and_survives_any_name(life: Life) -> None:
    """The latest description replaces the one before; quotes and newlines are escaped."""
    assert not [name for name, _ in figures(life.observer, 100.0) if name == "engine_info"]
    life.observer.described("m", "main", None)
    life.observer.described('odd "name"\n\\', None, "0.32.0")
    infos = [labels for name, labels in figures(life.observer, 100.0) if name == "engine_info"]
    assert infos == [('odd "name"\n\\', "", "0.32.0")]
    assert life["build_info", "1.2.3"] == 1


def lively() -> str:
    life = Life()
    life.at(100.0, StartAsked()).launched(100.0).ready(110.0).at(120.0, StopAsked(drain=False)).gone(121.0)
    life.observer.described("m", None, "0.32.0")
    life.observer.requested("/metrics", 200)
    return life.observer.exposition(130.0).decode()


def test_promtool_rules() -> None:
    """The rules of `promtool check metrics`, on our own families: suffixes, base units, help, no type in the name."""
    text = lively()
    for name, kind in re.findall(rf"^# TYPE ({PREFIX}\S+) (\S+)$", text, re.MULTILINE):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert not name.endswith(("_bucket", "_count", "_sum")), name
        assert not re.search(r"_(milliseconds|ms|minutes|hours|kilobytes|percent|gauge|counter|histogram)(_|$)", name)
        assert re.search(rf"^# HELP {name} .+$", text, re.MULTILINE), name
    samples = [line for line in text.splitlines() if line.startswith(PREFIX)]
    assert len(samples) == len({line.rpartition(" ")[0] for line in samples}), "no series twice"
    assert len(samples) < 160


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_itself() -> None:
    """Prometheus' own linter finds nothing."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=lively(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_phases_of_a_start_are_figures() -> None:
    """Each has its duration, whatever else a note may say; the whole start's progress counts while it lasts."""
    life = Life().at(101.0, StartAsked())
    observer = life.observer
    observer.noted(Note("start_phase", fields={"phase": "configuring", "before": "launching", "seconds": 13.5}))
    observer.noted(Note("start_phase", fields={"phase": "configuring", "before": "flying", "seconds": 1.0}))
    observer.noted(Note("start_finished", fields={"phases": {"launching": 13.5, "warming_up": 2.0, "flying": 1.0}}))
    observer.noted(Note("start_finished", fields={"phases": None}))
    observer.started_so_far(0.4)
    told = figures(observer, 102.0)
    assert told["phase_duration_seconds", ("launching",)] == 13.5
    assert told["phase_duration_seconds", ("warming_up",)] == 2.0
    assert ("phase_duration_seconds", ("flying",)) not in told
    assert told["startup_progress_ratio", ()] == 0.4
    life.at(103.0, StopAsked())
    assert figures(observer, 104.0)["startup_progress_ratio", ()] == 0
