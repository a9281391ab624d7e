"""The watch over starts, in virtual time: what is told of a start, and when it counts as stalled."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import anyio
import pytest

from tests.fakes.engine import Calls, EngineScript
from tests.fakes.house import House, build
from tests.fakes.instruments import FakeGpus
from tests.fakes.start import FakeEvidence, FakeHistory, FakeMeasurements, FakeSigns, FakeStartLog
from vllm_supervisor.domain.messages import RestartAsked, StartAsked
from vllm_supervisor.domain.model import Cause, Phase, Policy
from vllm_supervisor.domain.startup import PastStart, PastStarts, StartPhase
from vllm_supervisor.ports import Engine, Gpu
from vllm_supervisor.runtime.headline import Headline
from vllm_supervisor.runtime.startup import Senses, StartWatch
from vllm_supervisor.runtime.work import Companions

pytestmark = pytest.mark.anyio

HOUR = 3600.0
NEVER = EngineScript(healthy_after=None)
BAR = "Loading safetensors checkpoint shards: {}% Completed | {}/4 [00:01<00:01,  1.61it/s]"
START = [
    (10.0, "INFO 11-29 19:33:40 [api_utils.py:319] vLLM server version 0.32.0, serving model m"),
    (20.0, "INFO 11-29 19:33:50 [x.py:1] Starting to load model m..."),
    (21.0, BAR.format(0, 0)),
    (31.0, BAR.format(25, 1)),
    (61.0, BAR.format(100, 4)),
    (62.0, "INFO 11-29 19:34:50 [x.py:1] Model loading took 14.99 GiB memory and 41.000000 seconds"),
    (63.0, "INFO 11-29 19:34:51 [x.py:1] Starting torch.compile"),
    (
        83.0,
        "INFO 11-29 19:34:59 [x:1] GPU KV cache size: 73,856 tokens, Maximum concurrency for 4 tokens per request: 2x",
    ),
    (84.0, "INFO 11-29 19:35:00 [x.py:1] init engine (profile, create kv cache, warmup model) took 46.10 s"),
]


@dataclass
class Watched:
    """A house whose starts are watched."""

    house: House
    log: FakeStartLog
    signs: FakeSigns
    history: FakeHistory
    evidence: FakeEvidence
    measurements: FakeMeasurements
    headlines: list[tuple[float, str]]

    def phase(self) -> dict[str, Any]:
        found = self.house.supervisor.status()["phase"]
        assert isinstance(found, dict)
        return found

    def phases(self) -> list[object]:
        return [note.fields["phase"] for note in self.house.observer.noticed("start_phase")]


def watched(
    *scripts: EngineScript,
    lines: list[tuple[float, str]] | None = None,
    look: float = 0.5,
    cards: tuple[Gpu, ...] = (),
    collects: bool = True,
    **signs: Any,
) -> Watched:
    """Build such a house; a test of hours says at which pace to `look` and to probe."""
    log, feelings = FakeStartLog(list(lines or [])), FakeSigns(**signs)
    history, evidence, measurements = FakeHistory(), FakeEvidence(), FakeMeasurements()
    gpus = FakeGpus(Calls())
    gpus.seen = [cards]

    def open_log(_engine: Engine) -> FakeStartLog:
        log.began = feelings.began = anyio.current_time()
        return log

    watch = StartWatch(
        Senses(
            open_log,
            feelings,
            gpus=gpus if cards else None,
            evidence=evidence if collects else None,
            measurements=measurements,
        ),
        history,
        model="m",
        arguments="a",
        stall_timeout=900.0,
        now=anyio.current_time,
        look=look,
    )
    headlines: list[tuple[float, str]] = []
    headline = Headline(lambda text: headlines.append((anyio.current_time(), text)), lambda: house.supervisor.facts)
    house = build(
        *scripts,
        policy=Policy(restart_enabled=False, startup_probe_interval=0.3 * look),
        more=(watch, headline),
        companions=Companions(watch_start=watch.watch),
    )
    return Watched(house, log, feelings, history, evidence, measurements, headlines)


async def test_a_start_phase_by_phase() -> None:
    """Phases in order, each told once; progress moves; figures are known; durations are remembered."""
    w = watched(EngineScript(healthy_after=90.0), lines=START)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await anyio.sleep(5)
        assert w.phase() == {"name": "launching", "progress": None, "detail": None, "eta_s": None}
        await anyio.sleep(30)
        assert w.phase() == {"name": "loading_weights", "progress": 0.25, "detail": "1 of 4 shards", "eta_s": None}
        await w.house.until(Phase.READY)
        await w.house.a_moment()
        order = ["launching", "configuring", "loading_weights", "compiling", "warming_up"]
        assert w.phases() == order
        finished = w.house.observer.noticed("start_finished")[0].fields["phases"]
        assert isinstance(finished, dict)
        assert list(finished) == order
        assert finished == pytest.approx(
            {"launching": 10, "configuring": 11, "loading_weights": 42, "compiling": 21, "warming_up": 6.5}, abs=1
        )
        engine = w.house.supervisor.status()["engine"]
        assert isinstance(engine, dict)
        assert engine["kv_cache_tokens"] == 73856
        assert engine["startup"]["weights_gib"] == 14.99
        assert w.history.starts.starts[0].key == ("m", "a", "0.32.0")
        assert w.house.observer.noticed("internal_error") == []


async def test_what_a_start_took_is_remembered() -> None:
    """Once it got ready, by the names of the GPUs."""
    cards = (Gpu(0, "H100", 1 << 30, 80 << 30), Gpu(1, "H100", 1 << 30, 80 << 30))
    w = watched(EngineScript(healthy_after=90.0), lines=START, cards=cards)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await anyio.sleep(89)
        assert w.measurements.kept == []
        await w.house.until(Phase.READY)
        await anyio.sleep(2)
        ((key, figures),) = w.measurements.kept
        assert key == ("m", "a", "0.32.0", "2 H100")
        assert (figures.weights, figures.tokens) == (int(14.99 * (1 << 30)), 73856)
        assert (figures.request_tokens, figures.concurrency) == (4, 2.0)


async def test_the_second_start_is_forecast() -> None:
    """With a start like it in the history, what is left is said from the beginning, and counts down."""
    w = watched(EngineScript(healthy_after=90.0), lines=START)
    usual = {StartPhase.LAUNCHING: 10.0, StartPhase.CONFIGURING: 11.0, StartPhase.LOADING_WEIGHTS: 42.0}
    w.history.starts = PastStarts((PastStart("m", "a", "0.32.0", usual | {StartPhase.COMPILING: 27.0}),))
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await anyio.sleep(4)
        assert w.phase()["eta_s"] == pytest.approx(86, abs=1)
        await anyio.sleep(66)
        assert (w.phase()["name"], w.phase()["eta_s"]) == ("compiling", pytest.approx(20, abs=1))
        ratio = w.house.supervisor.facts.moved
        assert ratio is not None
        assert ratio.ratio == pytest.approx(70 / 90, abs=0.02)
        await w.house.until(Phase.READY)


async def test_a_start_that_failed_is_not_remembered() -> None:
    """What never got ready says nothing about how long it takes."""
    w = watched(EngineScript(healthy_after=None, exits_after=30.0), lines=START)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.FAILED)
        assert w.history.starts == PastStarts()
        assert w.measurements.kept == []
        assert w.house.observer.noticed("start_finished") == []


async def test_a_long_download_never_stalls() -> None:
    """65 GB over a slow line, ten hours without a line in the log: downloading, with figures, and then ready."""
    total = 65_000_000_000
    lines = [(30.0, "vLLM server version 0.32.0"), (90.0, "Starting to load model m...")]
    w = watched(
        EngineScript(healthy_after=11 * HOUR),
        lines=lines,
        download_total=total,
        download_from=100.0,
        download_rate=total / 10 / HOUR,
        look=20.0,
    )
    w.log.lines.append((10 * HOUR + 105, BAR.format(100, 4)))
    w.history.starts = PastStarts((PastStart("m", "a", "0.32.0", {StartPhase.LOADING_WEIGHTS: 60.0}),))
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await anyio.sleep(HOUR)
        phase = w.phase()
        assert (phase["name"], phase["progress"]) == ("downloading", pytest.approx(0.1, abs=0.01))
        assert phase["detail"] == "6.3 of 65.0 GB, 1.8 MB/s"
        assert phase["eta_s"] == pytest.approx(9 * HOUR + 60, rel=0.05)
        await anyio.sleep(8.9 * HOUR)
        assert (w.house.phase, w.phase()["name"]) == (Phase.STARTING, "downloading")
        w.signs.cpu_rate = 0.9  # it reads what came, and says nothing for the hour
        w.signs.io_rate = 1e7
        await w.house.until(Phase.READY, within=2 * HOUR)
        assert len(w.house.launcher.engines) == 1
        assert w.phases()[:4] == ["launching", "configuring", "downloading", "loading_weights"]


@pytest.mark.parametrize(("total", "rate"), [(5_000_000, 1e6), (30_000_000, 6e6), (90_000_000, 9e6), (60_000_000, 1e9)])
async def test_a_small_download_is_one_too(total: int, rate: float) -> None:
    """Once vLLM loads weights, whatever comes into the cache is weights, also what is there within a look."""
    lines = [(2.0, "vLLM server version 0.32.0"), (5.0, "Starting to load model m...")]
    w = watched(
        EngineScript(healthy_after=40.0), lines=lines, download_total=total, download_from=6.2, download_rate=rate
    )
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await anyio.sleep(7)
        assert w.phase()["name"] == "downloading"
        await w.house.until(Phase.READY)
        await w.house.a_moment()
        assert w.phases() == ["launching", "configuring", "downloading", "loading_weights", "warming_up"]


async def test_a_tokenizer_is_no_download_of_weights() -> None:
    """What comes before the weights are announced, and is small, is something else; and so is what is there already."""
    lines = [(2.0, "vLLM server version 0.32.0"), (30.0, "Starting to load model m...")]
    w = watched(
        EngineScript(healthy_after=40.0), lines=lines, download_total=17_000_000, download_from=3.0, download_rate=2e6
    )
    async with w.house.run():
        await w.house.started()
        await w.house.a_moment()
        assert w.phases() == ["launching", "configuring", "loading_weights", "warming_up"]


async def test_a_silent_start_stalls_with_evidence_first() -> None:
    """Nothing for `stall_timeout`: evidence is collected, and the engine ends with reason `startup_stall`."""
    w = watched(NEVER, lines=START[:2], look=5.0)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.STOPPING)
        assert anyio.current_time() == pytest.approx(20 + 900 + 1, abs=10)
        assert w.house.state.cause is Cause.STARTUP_STALL
        where = (
            "loading_weights: nothing moved for 900 s; the last sign of life was the log; the last line of its log: "
        )
        ((_, cause, seen),) = w.evidence.collected
        assert cause is Cause.STARTUP_STALL
        assert seen.startswith(f"{where}INFO ")
        assert seen.endswith("Starting to load model m...")
        note = w.house.observer.noticed("start_stalled")[0]
        assert note.fields["phase"] == "loading_weights"
        await w.house.until(Phase.FAILED)
        last_exit = w.house.supervisor.status()["last_exit"]
        assert isinstance(last_exit, dict)
        assert last_exit["reason"] == "startup_stall"


async def test_a_stall_says_how_far_it_came_and_shows_no_secret() -> None:
    """Two of four shards, and then a line with a token in it."""
    shards = "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.00it/s]"
    token = "hf_" + "aB3d" * 8
    w = watched(NEVER, lines=[*START[:3], (25.0, shards), (26.0, f"fetching the next with {token}")], look=5.0)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.STOPPING, within=2000)
        ((_, _, seen),) = w.evidence.collected
        assert seen.startswith("loading_weights, 2 of 4 shards: nothing moved for 900 s")
        assert seen.endswith("fetching the next with ***")


async def test_evidence_that_takes_for_ever_holds_nothing_up() -> None:
    """The collector promises seconds; a broken promise costs half a minute."""
    w = watched(NEVER, look=5.0)
    w.evidence.takes = 1e9
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.STOPPING, within=2000)
        assert anyio.current_time() == pytest.approx(930, abs=10)


async def test_a_warning_repeated_every_minute_is_no_progress() -> None:
    """A collective that waits for a dead peer says so each minute; that is the same line, however the number grows."""
    waiting = "(Worker_TP0 pid=3) INFO 11-29 19:34:51 [shm_broadcast.py:466] No block found in {} seconds"
    lines = START[:3] + [(60.0 * minute, waiting.format(60 * minute)) for minute in range(1, 100)]
    w = watched(NEVER, lines=lines, look=5.0)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.STOPPING, within=2000)
        assert anyio.current_time() == pytest.approx(60 + 900 + 1, abs=10)


async def test_our_own_probes_are_no_progress() -> None:
    """`/health` answers 503 and each answer is logged: the start has stalled all the same."""
    access = 'INFO:     127.0.0.1:{} - "GET /health HTTP/1.1" 503 Service Unavailable'
    w = watched(NEVER, lines=[(float(second), access.format(40000 + second)) for second in range(1, 2000)], look=5.0)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.STOPPING, within=2000)
        # The first line of all ends `launching`.
        assert anyio.current_time() == pytest.approx(1 + 900 + 1, abs=10)


@pytest.mark.parametrize(("rate", "after"), [(0.05, 900), (1.0, 1800)])
async def test_cpu_time_alone_counts_for_twice_the_timeout(rate: float, after: float) -> None:
    """An idle poll is no sign of life; a spinning core is one, up to twice the timeout."""
    w = watched(NEVER, cpu_rate=rate, look=5.0)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.STOPPING, within=4000)
        assert anyio.current_time() == pytest.approx(after + 1, abs=12)


async def test_a_disk_that_reads_is_progress() -> None:
    """Weights from a slow disk: no line for hours, and no stall."""
    w = watched(NEVER, io_rate=1e6, look=20.0)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await anyio.sleep(5 * HOUR)
        assert w.house.phase is Phase.STARTING


async def test_a_file_system_that_hangs_does_not_stop_the_watch() -> None:
    """A cache on a dead network mount: looks end unanswered, and the stall is found."""
    w = watched(NEVER, hangs=True)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.STOPPING, within=2000)
        assert 900 <= anyio.current_time() < 930


async def test_a_log_that_cannot_be_read_is_a_silent_one() -> None:
    """The start goes on, and stalls when nothing else moves."""
    w = watched(NEVER, look=5.0)
    w.log.error = PermissionError("no")
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.STOPPING, within=2000)
        assert w.house.observer.noticed("internal_error") == []


async def test_a_log_that_is_not_ours_to_read_is_told_once() -> None:
    """The status says so, and so does one note, however often it is looked at, and at whatever start."""
    w = watched(EngineScript(healthy_after=20.0))
    w.log.unread = "not allowed"
    async with w.house.run():
        await w.house.started()
        w.house.supervisor.post(RestartAsked())
        await anyio.sleep(100)
        assert w.house.supervisor.status()["log"] == {"readable": False, "detail": "not allowed"}
        assert len(w.house.observer.noticed("log_not_read")) == 1


async def test_a_listening_engine_is_warming_up_whatever_the_log_says() -> None:
    """`/health` is 200: the phase follows the probe, and its hurdle is the detail."""
    w = watched(EngineScript(healthy_after=30.0), lines=START[:3])
    w.house.client.models_is = replace(w.house.client.models_is, names=None, status=401, detail="wrong key")
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await anyio.sleep(40)
        assert (w.phase()["name"], w.phase()["detail"]) == ("warming_up", "wrong key")
        assert w.phases()[-1] == "warming_up"


async def test_the_headline_says_where_the_start_stands_once_a_second_at_most() -> None:
    """systemd shows phase, percent and what is left, and is not flooded."""
    w = watched(EngineScript(healthy_after=90.0), lines=START)
    usual = {StartPhase.LOADING_WEIGHTS: 42.0, StartPhase.COMPILING: 27.0}
    w.history.starts = PastStarts((PastStart("m", "a", "0.32.0", usual),))
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.READY)
        texts = [text for _, text in w.headlines]
        assert any(
            text.startswith("starting, generation 1: loading_weights 25%, 1 of 4 shards, about") for text in texts
        )
        assert texts[-1] == "ready, generation 1"
        starting = [at for at, text in w.headlines if ": " in text]
        assert len(starting) < 60
        assert all(later - earlier >= 1 for earlier, later in pairwise(starting))


async def test_a_watch_that_failed_goes_on_where_it_was() -> None:
    """A failure of ours is told and tried again; phases do not begin anew."""
    w = watched(EngineScript(healthy_after=90.0), lines=START)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await anyio.sleep(30)
        w.house.engine.calls.fail("members", RuntimeError("out of descriptors"))
        await w.house.until(Phase.READY)
        assert w.phases() == ["launching", "configuring", "loading_weights", "compiling", "warming_up"]
        assert len(w.house.observer.noticed("internal_error")) == 1


async def test_a_download_of_unknown_size_is_told_by_what_came() -> None:
    """Neither a ratio nor a forecast is made up; the words have what is there and how fast it comes."""
    lines = [(5.0, START[1][1])]
    w = watched(NEVER, lines=lines, download_total=10**11, download_from=6.0, download_rate=1e8, total_is_told=False)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await anyio.sleep(106)
        phase = w.phase()
        assert (phase["name"], phase["progress"], phase["eta_s"]) == ("downloading", None, None)
        assert str(phase["detail"]).startswith(("9.9 GB, 100", "10.0 GB, 100"))


async def test_a_stall_without_a_collector_ends_all_the_same() -> None:
    """The evidence is a service, not a condition."""
    w = watched(NEVER, lines=START[:3], collects=False, look=15.0)
    async with w.house.run():
        w.house.supervisor.post(StartAsked())
        await w.house.until(Phase.STOPPING)
        assert w.house.observer.records[-1].cause is Cause.STARTUP_STALL
        assert w.evidence.collected == []
