"""The watch over a ready engine, in virtual time: what it asks, when, and what follows."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import pytest

from tests.fakes.house import House, build
from vllm_supervisor.domain.engine import EngineMetrics, ProbeResult
from vllm_supervisor.domain.liveness import Limits, Liveness
from vllm_supervisor.domain.model import Cause, Outcome, Phase, Policy
from vllm_supervisor.ports import Engine
from vllm_supervisor.runtime.liveness import EVIDENCE_TIMEOUT, LivenessWatch
from vllm_supervisor.runtime.work import Companions

pytestmark = pytest.mark.anyio

LIMITS = Limits(interval=30, timeout=120)
STEPS = ("0", "vllm:generation_tokens_total")
IDLE = EngineMetrics(running=0, waiting=0, counters={STEPS: 7.0}, gauges={("0", "running"): 0.0})
NOTHING = EngineMetrics()
"""What `--disable-log-stats` leaves."""


@dataclass
class Collector:
    """Implements `ports.EvidenceCollector`."""

    takes: float = 0.5
    error: Exception | None = None
    asked: list[tuple[float, Cause, str]] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    async def collect(self, engine: Engine, cause: Cause, detail: str) -> None:
        assert engine.leader_alive
        self.asked.append((anyio.current_time(), cause, detail))
        await anyio.sleep(self.takes)
        self.meanwhile()
        if self.error is not None:
            raise self.error


def watched(
    limits: Limits = LIMITS, evidence: Collector | None = None, policy: Policy | None = None
) -> tuple[House, list[tuple[Outcome, float]]]:
    """Return a house whose engine is idle, with figures, and what canaries came to."""
    canaries: list[tuple[Outcome, float]] = []
    house = build(policy=policy)
    watch = LivenessWatch(
        house.client,
        limits,
        anyio.current_time,
        look_timeout=30,
        evidence=evidence,
        count=lambda outcome, seconds: canaries.append((outcome, seconds)),
    )
    house.accompany(Companions(watch_liveness=watch, steps=lambda: watch.steps))
    house.client.metrics_is = IDLE
    return house, canaries


def verdict(house: House) -> str | None:
    part = house.supervisor.status()["liveness"]
    assert isinstance(part, dict)
    value = part["verdict"]
    assert value is None or isinstance(value, str)
    return value


def causes(house: House) -> list[Cause | None]:
    return [record.cause for record in house.observer.records if record.after is Phase.STOPPING]


async def condemned_after(house: House, since: float, within: float = 1000) -> float:
    """Return the seconds from `since` to the end of the engine, for a hang."""
    await house.until(Phase.STOPPING, within=within)
    assert causes(house) == [Cause.HANG]
    return house.observer.records[-1].at - since


async def test_an_idle_engine_is_asked_for_a_token_each_interval_and_no_more() -> None:
    """One at a time, `interval` after the last sign of life; each answer counts as one."""
    house, canaries = watched()
    async with house.run():
        await house.started()
        ready = anyio.current_time()
        await anyio.sleep(1000)
        times = house.client.calls.times("canary")
        gaps = [after - before for before, after in itertools.pairwise([ready, *times])]
        assert gaps == [pytest.approx(30, abs=0.5)] * len(times)
        assert len(times) == len(canaries) == 33
        assert {outcome for outcome, _ in canaries} == {Outcome.OK}
        assert verdict(house) in ("alive", "idle")
        part = house.supervisor.status()["liveness"]
        assert isinstance(part, dict)
        assert part["last_canary_s"] == 0.2
        assert part["last_progress_age_s"] <= 30
        assert house.observer.noticed("liveness") == []


async def test_an_engine_that_steps_is_never_asked() -> None:
    """Its counters are a heartbeat for free."""
    house, _ = watched()
    house.client.stepping = True
    async with house.run():
        await house.started()
        await anyio.sleep(1000)
        assert house.client.calls.times("canary") == []
        assert house.client.calls.times("load") == []
        assert verdict(house) == "alive"
        looks = house.client.calls.times("scrape")
        assert {round(b - a, 3) for a, b in itertools.pairwise(looks)} == {5.0}


async def test_an_engine_that_froze_while_idle_is_found_within_timeout_and_interval() -> None:
    """Its gauges read 0, `/health` is 200: the canary finds it. The evidence is collected before, without a drain."""
    collector = Collector()
    house, canaries = watched(evidence=collector)
    async with house.run():
        engine = await house.started()
        await anyio.sleep(95)
        house.client.frozen = True
        assert await condemned_after(house, anyio.current_time()) <= 120 + 30 + 1
        [(at, cause, detail)] = collector.asked
        assert cause is Cause.HANG
        await house.observer.until(lambda: engine.signals)
        assert at + 0.5 == pytest.approx(engine.signals[0][0], abs=0.01)
        assert "canary is unanswered" in detail
        assert canaries[-1][0] is Outcome.OK, "the one in flight was not counted as late: it was proof"
        [suspect, stuck] = house.observer.noticed("liveness")
        assert (suspect.fields["verdict"], stuck.fields["verdict"]) == ("suspect", "stuck")
        house.client.frozen = False
        await house.until(Phase.READY)
        assert house.supervisor.facts.restarts[Cause.HANG] == 1
        await anyio.sleep(1000)
        assert house.phase is Phase.READY


async def test_load_is_asked_for_only_where_it_can_add_something() -> None:
    """Not of an engine at rest, which answers its canaries; from the canary on that is late, and where none may be."""
    house, _ = watched()
    async with house.run():
        await house.started()
        await anyio.sleep(300)
        assert house.client.calls.times("load") == []
        house.client.frozen = True
        await house.until(Phase.STOPPING, within=200)
        asked = house.client.calls.times("load")
        assert len(asked) > 10
        assert asked[0] - house.client.calls.times("canary")[-1] < 6
    house, _ = watched(limits=Limits(mode="none"))
    async with house.run():
        await house.started()
        await anyio.sleep(100)
        assert len(house.client.calls.times("load")) > 10


async def test_a_freeze_under_load_is_found_by_the_same_clock() -> None:
    """Counted from the last step; where `/load` counts, it need not wait for the canary."""
    for load in (0, 3):
        house, _ = watched()
        house.client.stepping = True
        async with house.run():
            await house.started()
            await anyio.sleep(100)
            house.client.frozen, house.client.load_is = True, load
            house.client.metrics_is = EngineMetrics(
                running=3, waiting=9, counters={STEPS: 1e6}, gauges={("0", "running"): 3.0}
            )
            found = await condemned_after(house, anyio.current_time())
            assert found <= (120 + 11 if load else 120 + 30 + 6)


async def test_a_freeze_shorter_than_the_timeout_is_nothing() -> None:
    """The canary in flight is answered, or the counters move: no restart, and the suspicion is taken back."""
    house, canaries = watched()
    async with house.run():
        await house.started()
        house.client.calls.takes["canary"] = 115
        await anyio.sleep(1000)
        assert house.phase is Phase.READY
        assert canaries
        told = [note.fields["verdict"] for note in house.observer.noticed("liveness")]
        assert told[0] == "suspect"
        assert set(told) == {"suspect", "alive"}


async def test_one_canary_at_a_time_that_is_given_up_at_its_deadline() -> None:
    """While `/metrics` cannot be read, a late canary proves nothing: it is cancelled, and another is sent."""
    house, canaries = watched()
    async with house.run():
        await house.started()
        await anyio.sleep(10)
        house.client.frozen = True
        house.client.scrape_is = Outcome.TIMEOUT
        house.client.calls.takes["scrape"] = 30
        house.client.load_is = 64
        for _ in range(1000):
            await anyio.sleep(1)
            assert house.client.calls.active["canary"] <= 1
        assert house.phase is Phase.READY
        assert causes(house) == []
        assert verdict(house) == "suspect"
        assert canaries
        assert {outcome for outcome, _ in canaries} == {Outcome.TIMEOUT}
        assert all(120 <= seconds <= 120 + 45 for _, seconds in canaries)
        assert house.client.calls.active["canary"] <= 1


async def test_a_sleeping_or_paused_engine_is_never_asked() -> None:
    """Neither by its figure nor by its endpoint; work that waits for it meanwhile proves nothing."""
    for asleep in (True, False):
        house, _ = watched()
        house.client.load_is = 2
        if asleep:
            house.client.metrics_is = EngineMetrics(running=0, waiting=0, counters={STEPS: 7.0}, gauges={}, asleep=True)
        else:
            house.client.suspended_is = True
        async with house.run():
            await house.started()
            await anyio.sleep(1000)
            assert house.client.calls.times("canary") == []
            assert verdict(house) == "idle"
            assert house.phase is Phase.READY
            house.client.metrics_is, house.client.suspended_is = IDLE, False
            await anyio.sleep(40)
            assert len(house.client.calls.times("canary")) == 1, "awake again"


async def test_an_engine_without_such_an_endpoint_is_asked_for_a_pause_once() -> None:
    """A 404 each heartbeat would fill vLLM's log."""
    house, _ = watched()
    async with house.run():
        await house.started()
        await anyio.sleep(500)
        assert len(house.client.calls.times("suspended")) == 1


@pytest.mark.parametrize("status", [401, 404])
async def test_refused_canaries_make_blind_and_never_a_restart(status: int) -> None:
    """Said once, in an event and in the status."""
    house, canaries = watched()
    house.client.canary_is = ProbeResult(Outcome.ERROR, 0.01, f"completions: HTTP {status}", status)
    async with house.run():
        await house.started()
        await anyio.sleep(1000)
        assert verdict(house) == "blind"
        assert house.phase is Phase.READY
        [note] = house.observer.noticed("liveness")
        assert (note.fields["verdict"], f"HTTP {status}" in str(note.fields["detail"])) == ("blind", True)
        assert {outcome for outcome, _ in canaries} == {Outcome.ERROR}
        house.client.stepping = True
        await anyio.sleep(20)
        house.client.stepping = False
        await anyio.sleep(200)
        assert len(house.observer.noticed("liveness")) == 1, "still blind: not told again"
        house.client.canary_is = None
        await anyio.sleep(60)
        assert house.observer.noticed("liveness")[-1].fields["verdict"] in ("alive", "idle")


async def test_without_counters_a_late_canary_is_suspect_unless_load_proves_it() -> None:
    """`--disable-log-stats`; with `--enable-server-load-tracking` the canary is counted, and nobody before it."""
    for tracked in (False, True):
        house, _ = watched()
        house.client.metrics_is = NOTHING
        async with house.run():
            await house.started()
            await anyio.sleep(100)
            house.client.frozen = True
            house.client.load_is = int(tracked)
            if tracked:
                assert await condemned_after(house, anyio.current_time()) <= 150 + 10
            else:
                await anyio.sleep(1000)
                assert verdict(house) == "suspect"
                assert house.phase is Phase.READY


async def test_a_saturated_api_server_is_busy_and_not_unhealthy() -> None:
    """`/health` times out, and so does `/metrics` for the probe; the watch waits longer for it, and sees steps."""
    house, _ = watched()
    house.client.stepping = True
    async with house.run():
        await house.started()
        await anyio.sleep(20)
        house.client.health_is = Outcome.TIMEOUT
        house.client.calls.takes |= {"health": 10, "metrics": 10, "scrape": 20}
        house.client.metrics_next = [None] * 1000
        await anyio.sleep(1000)
        assert house.phase is Phase.READY
        assert Phase.UNHEALTHY not in house.observer.phases
        assert verdict(house) in ("alive", "busy")
        house.client.frozen = True
        await house.until(Phase.UNHEALTHY, within=120)


async def test_mode_none_sends_nothing() -> None:
    """Counters and `/load` still tell."""
    house, _ = watched(Limits(mode="none", interval=30, timeout=120))
    async with house.run():
        await house.started()
        await anyio.sleep(1000)
        assert house.client.calls.times("canary") == []
        assert verdict(house) == "idle"
        house.client.load_is = 1
        assert await condemned_after(house, anyio.current_time()) <= 120 + 11


async def test_a_collector_that_hangs_or_fails_does_not_keep_the_engine() -> None:
    """Evidence is bounded, and its failure is told."""
    for collector, kind in (
        (Collector(takes=1e6), "evidence_incomplete"),
        (Collector(error=OSError("disk full")), "internal_error"),
    ):
        house, _ = watched(evidence=collector)
        async with house.run():
            await house.started()
            house.client.frozen = True
            assert await condemned_after(house, anyio.current_time()) <= 150 + EVIDENCE_TIMEOUT + 1
            assert house.observer.noticed(kind)


async def test_an_engine_that_steps_while_evidence_is_collected_is_let_be() -> None:
    """The last look decides."""
    collector = Collector(takes=5)
    house, _ = watched(evidence=collector)

    def thaw() -> None:
        house.client.frozen, house.client.stepping = False, True

    collector.meanwhile = thaw
    async with house.run():
        await house.started()
        house.client.frozen = True
        await anyio.sleep(1000)
        assert len(collector.asked) == 1
        assert house.phase is Phase.READY
        assert house.observer.noticed("liveness")[-1].fields["verdict"] == "alive"


async def test_a_rank_in_doubt_is_asked_by_name() -> None:
    """Two ranks step, one with requests running does not: the canary goes to that one, and then it is condemned."""
    house, _ = watched()

    def ranks(steps: float) -> EngineMetrics:
        return EngineMetrics(
            running=2,
            waiting=0,
            counters={("0", "steps"): steps, ("1", "steps"): 5.0},
            gauges={("0", "running"): 1.0, ("1", "running"): 1.0},
        )

    async with house.run():
        await house.started()
        began = anyio.current_time()
        with anyio.move_on_after(300):
            for steps in itertools.count():
                house.client.metrics_is = ranks(float(steps))
                if causes(house):
                    break
                await anyio.sleep(2)
        assert causes(house) == [Cause.HANG]
        assert anyio.current_time() - began <= 155
        assert set(house.client.canary_ranks) == {"1"}
        stuck = house.observer.noticed("liveness")[-1]
        assert "rank 1" in str(stuck.fields["detail"])


async def test_nobody_listens_is_dead_and_left_to_others() -> None:
    """The health probe and the leader's exit decide about a dead engine."""
    house, _ = watched()
    async with house.run():
        await house.started()
        house.client.scrape_is = Outcome.REFUSED
        await anyio.sleep(20)
        assert verdict(house) == Liveness.DEAD
        house.client.scrape_is = None
        await anyio.sleep(20)
        assert house.phase is Phase.READY


async def test_the_verdict_goes_with_the_engine() -> None:
    """No verdict before ready, none after the end."""
    house, _ = watched()
    async with house.run():
        assert verdict(house) is None
        engine = await house.started()
        await anyio.sleep(1)
        assert verdict(house) == "alive"
        engine.exit(1)
        await house.until(Phase.BACKOFF)
        assert verdict(house) is None


async def test_a_stuck_engine_that_may_not_be_restarted_is_left_running() -> None:
    """Unhealthy, though `/health` says 200, until it steps again; the evidence is collected once, and nobody dies."""
    collector = Collector()
    house, _ = watched(evidence=collector, policy=Policy(restart_enabled=False))
    async with house.run():
        engine = await house.started()
        house.client.frozen = True
        await house.until(Phase.UNHEALTHY)
        await anyio.sleep(2000)
        assert house.phase is Phase.UNHEALTHY
        assert len(collector.asked) == 1
        assert engine.signals == []
        assert "left running" in house.observer.records[-1].detail
        house.client.frozen = False
        await house.until(Phase.READY)
        assert engine.generation == house.engine.generation
        house.client.frozen = True
        await house.until(Phase.UNHEALTHY)
        assert len(collector.asked) == 2


async def test_new_limits_hold_for_the_engine_that_is_watched() -> None:
    """Canaries come as often as they say from then on, and what was observed is not forgotten."""
    house = build()
    watch = LivenessWatch(house.client, LIMITS, anyio.current_time, look_timeout=30)
    house.accompany(Companions(watch_liveness=watch, steps=lambda: watch.steps))
    house.client.metrics_is = IDLE
    async with house.run():
        await house.started()
        await anyio.sleep(200)
        watch.tune(Limits(interval=100, timeout=300), look_timeout=40)
        tuned = anyio.current_time()
        await anyio.sleep(1000)
        late = [at for at in house.client.calls.times("canary") if at > tuned]
        assert late[0] - tuned < 100, "counted from the last answer, not from the change"
        assert [after - before for before, after in itertools.pairwise(late)] == [pytest.approx(100, abs=0.5)] * 9
        assert watch.look_timeout == 40


async def test_a_look_that_we_could_not_make_says_nothing_of_the_engine() -> None:
    """Out of descriptors, we ask in vain: an engine that answers its canaries stays alive."""
    house, _ = watched()
    async with house.run():
        await house.started()
        await anyio.sleep(10)
        house.client.scrape_is = Outcome.UNKNOWN
        await anyio.sleep(1000)
        assert (house.phase, causes(house)) == (Phase.READY, [])
        assert verdict(house) in ("alive", "idle")


async def test_a_late_answer_to_health_is_busy_where_figures_move_meanwhile() -> None:
    """The watch waits in its own look; the probe looks again and again, and a step makes it busy, not dead."""
    house = build()
    house.accompany(Companions(steps=lambda: 0))
    async with house.run():
        engine = await house.started()
        house.client.calls.takes["health"] = 10.0
        house.client.health_is = Outcome.TIMEOUT
        at_rest = EngineMetrics(running=1, waiting=0, counters={STEPS: 7.0})
        house.client.metrics_is = at_rest
        began = len(house.client.calls.times("metrics"))
        await house.until(Phase.UNHEALTHY)
        assert len(house.client.calls.times("metrics")) - began >= 4, "it looked again and again"
        house.client.stepping = True
        await house.until(Phase.READY)
        assert engine.generation == house.engine.generation
        await anyio.sleep(300)
        assert house.phase is Phase.READY
