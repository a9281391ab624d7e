"""What the daemon keeps of its looks, and what it says of them, in virtual time."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from tests.fakes.client import FakeClient
from tests.fakes.house import House, build, wall
from tests.fakes.logs import FakeLogs
from vllm_supervisor.domain.advice import Setting
from vllm_supervisor.domain.engine import EngineMetrics
from vllm_supervisor.domain.liveness import Limits
from vllm_supervisor.ports import Request
from vllm_supervisor.runtime.advisor import KEPT, Advisor
from vllm_supervisor.runtime.api import Api
from vllm_supervisor.runtime.liveness import LivenessWatch
from vllm_supervisor.runtime.recorder import Recorder
from vllm_supervisor.runtime.reload import ReloadAsked, Reloaded
from vllm_supervisor.runtime.work import Companions

pytestmark = pytest.mark.anyio

GENERATION = ("0", "vllm:generation_tokens_total")
BUSY = EngineMetrics(running=32, waiting=0, kv_cache_usage=0.4, generation_tokens=0, prompt_tokens=0)
SETTING = Setting(concurrency=32, configured=32)


def first() -> int:
    """Return the generation of an engine that stays."""
    return 1


def told(advisor: Advisor) -> dict[str, Any]:
    found = advisor.told(1)
    assert found is not None
    return found


def fed(client: FakeClient, seconds: float, metrics: EngineMetrics = BUSY, setting: Setting = SETTING) -> Advisor:
    """Return an advisor whose engine was looked at each five seconds until now."""
    at = [anyio.current_time() - seconds]
    advisor = Advisor(client, setting, lambda: at[0])
    while at[0] <= anyio.current_time():
        advisor.see(1, replace(metrics, generation_tokens=100 * at[0], prompt_tokens=100 * at[0]))
        at[0] += 5
    advisor._now = anyio.current_time
    return advisor


async def test_the_daemon_advises_without_a_request_of_its_own() -> None:
    """The liveness watch's looks alone make the advice in the status, and none are made beside them."""
    house = build()
    advisor = Advisor(house.client, SETTING, anyio.current_time)
    watch = LivenessWatch(house.client, Limits(), anyio.current_time, look_timeout=30, seen=advisor.see)
    house.accompany(Companions(watch_liveness=watch, steps=lambda: watch.steps, advice=advisor.told))
    house.client.metrics_is = replace(BUSY, generation_tokens=None, counters={GENERATION: 1.0})
    async with house.run():
        await house.started()
        with anyio.fail_after(1000):
            while (advice := advice_in_status(house)) is None or advice["confidence"] != "high":  # noqa: ASYNC110
                await anyio.sleep(1)
        assert (advice["verdict"], advice["current_concurrency"]) == ("client_bound", 32)


def advice_in_status(house: House) -> dict[str, Any] | None:
    advice = house.supervisor.status()["advice"]
    assert advice is None or isinstance(advice, dict)
    return advice


async def test_nothing_is_said_before_there_are_figures() -> None:
    """Without a sample, or an engine that shows none, there is no advice; the metric says what is configured."""
    advisor = Advisor(build().client, SETTING, anyio.current_time)
    assert advisor.told(1) is None
    advisor.see(1, None)
    advisor.see(1, EngineMetrics())
    advisor.see(1, replace(BUSY, asleep=True))
    assert advisor.told(1) is None
    assert advisor.recommended(1) == 32


async def test_the_metric_keeps_the_last_advice_that_is_trusted() -> None:
    """64 by the load; idle afterwards, it stays."""
    advisor = fed(build().client, 60)
    assert (told(advisor)["target_concurrency"], advisor.recommended(1)) == (64, 64)
    for _ in range(20):
        await anyio.sleep(5)
        advisor.see(1, replace(BUSY, running=0, kv_cache_usage=0.0))
    assert told(advisor)["verdict"] == "no_load"
    assert advisor.recommended(1) == 64


async def test_old_figures_say_nothing_of_now() -> None:
    """Half a minute without a look ends the advice."""
    advisor = fed(build().client, 60)
    assert advisor.told(1)
    await anyio.sleep(31)
    assert advisor.told(1) is None


async def test_another_engine_is_not_judged_by_the_one_before(house: House) -> None:
    """After a restart nothing is said, and what is configured recommended, until the new one was looked at.

    Its own looks alone make the verdict, and its own pace is shown; the levels of before stay known, as the knee shows.
    """
    advisor = fed(house.client, 60)
    assert (told(advisor)["verdict"], advisor.recommended(1)) == ("client_bound", 64)
    await anyio.sleep(5)
    assert (advisor.told(2), advisor.recommended(2)) == (None, 32)
    crowded = replace(BUSY, running=10, waiting=10, kv_cache_usage=0.99)
    for tick in range(12):
        advisor.see(2, replace(crowded, generation_tokens=500 * tick))
        await anyio.sleep(5)
    advisor.see(1, BUSY)
    brief = advisor.told(2)
    assert brief is not None
    assert (brief["verdict"], brief["current_concurrency"], advisor.recommended(2)) == ("memory_bound", 10, 8)
    house.client.metrics_is = replace(crowded, generation_tokens=6000)
    answer = await advisor.ask(lambda: 2, None, None)
    advice, now = answer["advice"], answer["now"]
    assert isinstance(advice, dict)
    assert isinstance(now, dict)
    assert (advice["figures"]["window_s"], advice["knee"]["at"]) == (60, 20)
    assert now["generation_tokens_per_s"] == 100
    advisor.see(3, BUSY)
    newest = advisor._latest()
    assert newest is not None
    assert newest["generation_tokens_per_s"] is None


async def test_a_restart_while_it_is_looked_at_is_no_data(house: House) -> None:
    """The answer says so at once, whatever is known of either."""
    house.client.metrics_is = BUSY
    advisor = Advisor(house.client, SETTING, anyio.current_time)
    began = anyio.current_time()
    answer = await advisor.ask(lambda: 1 if anyio.current_time() < began + 3 else 2, 60, None)
    assert (answer["advice"], answer["why"]) == (None, "the engine was restarted meanwhile")
    assert anyio.current_time() - began < 10


async def test_a_look_at_an_engine_that_went_meanwhile_is_dropped(house: House) -> None:
    """Figures of the one before are not taken for those of its successor, nor told as what there is now."""
    generations = [1, 1]

    async def busy() -> float:
        generations.clear()
        return 0.5

    house.client.metrics_is = BUSY
    advisor = Advisor(house.client, SETTING, anyio.current_time, busy)
    answer = await advisor.ask(lambda: generations[0] if generations else 2, 60, None)
    assert answer == {"advice": None, "why": "the engine was restarted meanwhile", "now": None}
    assert advisor.told(2) is None


async def test_a_window_that_was_watched_is_answered_at_once(house: House) -> None:
    """One fresh look, and no waiting; an engine's capacity cuts the target."""
    house.client.metrics_is = replace(BUSY, max_concurrency=50.0, generation_tokens=1e9, prompt_tokens=1e9)
    advisor = fed(house.client, 60)
    began = anyio.current_time()
    answer = await advisor.ask(first, 30, None)
    assert anyio.current_time() == began
    advice, now = answer["advice"], answer["now"]
    assert isinstance(advice, dict)
    assert isinstance(now, dict)
    assert advice["target_concurrency"] == 50
    assert now["running"] == 32


async def test_a_window_that_was_not_is_looked_at(house: House) -> None:
    """So many seconds, often enough to judge; what the client is said to send reaches the judgement."""
    house.client.metrics_is = replace(BUSY, running=5, kv_cache_usage=0.01)
    advisor = Advisor(house.client, Setting(), anyio.current_time)
    began = anyio.current_time()
    answer = await advisor.ask(first, 10, 5)
    assert 9 <= anyio.current_time() - began <= 11
    advice = answer["advice"]
    assert isinstance(advice, dict)
    assert advice["figures"]["samples"] >= 6
    assert advice["verdict"] == "client_bound"


async def test_a_command_learns_how_busy_the_gpus_are(house: House) -> None:
    """They are asked with its own looks, and not with the watch's."""
    house.client.metrics_is = replace(BUSY, generation_tokens=None)
    asked = []

    async def busy() -> float:
        asked.append(anyio.current_time())
        return 0.97

    advisor = Advisor(house.client, SETTING, anyio.current_time, busy)
    advisor.see(1, BUSY)
    assert asked == []
    advice = (await advisor.ask(first, 10, None))["advice"]
    assert isinstance(advice, dict)
    assert advice["figures"]["gpu_utilization"] == 0.97
    assert "GPU utilization 97%" in advice["evidence"]


async def test_an_engine_without_figures_is_no_data(house: House) -> None:
    """The answer says why, after the stretch, and does not go on for ever."""
    house.client.metrics_is = EngineMetrics()
    with anyio.fail_after(70):
        answer = await Advisor(house.client, Setting(), anyio.current_time).ask(first, None, None)
    assert answer["advice"] is None
    assert "disable-log-stats" in str(answer["why"])


async def test_memory_is_bounded() -> None:
    """An hour's looks are kept."""
    advisor = fed(build().client, 5 * KEPT * 2)
    assert len(advisor._samples) == KEPT


@pytest.fixture
async def house() -> House:
    return build()


async def no_reload(asked: ReloadAsked) -> Reloaded:
    raise AssertionError(asked)


def api_of(house: House) -> Api:
    advisor = Advisor(house.client, SETTING, anyio.current_time)
    return Api(house.supervisor, Recorder(wall), FakeLogs(), lambda: b"", no_reload, partial(advisor.ask, first))


@pytest.mark.parametrize("query", [{"window": "0"}, {"window": "x"}, {"window": "nan"}, {"concurrency": "-1"}])
async def test_nonsense_is_refused(query: dict[str, str], house: House) -> None:
    """400, as for any other route."""
    response = await api_of(house).control(Request("GET", "/v1/advice", query))
    assert response.status == 400


async def test_nothing_is_advised_unless_ready(house: House) -> None:
    """200 with the reason: the command makes a status of it."""
    response = await api_of(house).control(Request("GET", "/v1/advice"))
    assert response.status == 200
    assert isinstance(response.body, bytes)
    assert b"the engine is not ready but stopped" in response.body


async def test_advice_follows_what_clients_are_told_from_now_on(house: House) -> None:
    """A reload changes what is configured, and forgets neither the samples nor what the engine was started with."""
    house.client.metrics_is = replace(BUSY, generation_tokens=1e9, prompt_tokens=1e9)
    advisor = fed(house.client, 60, setting=replace(SETTING, max_num_seqs=48))
    caps = ["engine.vllm.concurrency is 32", "--max-num-seqs is 48"]
    assert [clamp.split(":")[0] for clamp in await clamps(advisor)] == caps
    advisor.tune(Setting(concurrency=40, configured=40, max_concurrent_jobs=36))
    caps = ["resources.max_concurrent_jobs is 36", "engine.vllm.concurrency is 40", "--max-num-seqs is 48"]
    assert [clamp.split(":")[0] for clamp in await clamps(advisor)] == caps


async def test_what_is_recommended_without_figures_is_what_is_configured_now() -> None:
    """The metric follows a reload at once."""
    advisor = Advisor(build().client, SETTING, anyio.current_time)
    assert advisor.recommended(1) == 32
    advisor.tune(Setting(concurrency=64))
    assert advisor.recommended(1) == 64


async def clamps(advisor: Advisor) -> list[str]:
    advice = (await advisor.ask(first, 30, None))["advice"]
    assert isinstance(advice, dict)
    found = advice["clamps"]
    assert isinstance(found, list)
    return found


async def test_a_daemon_without_looks_says_so(house: House) -> None:
    """200 with the reason, once the engine is ready."""
    api = Api(house.supervisor, Recorder(wall), FakeLogs(), lambda: b"", no_reload)
    async with house.run():
        await house.started()
        response = await api.control(Request("GET", "/v1/advice"))
        assert isinstance(response.body, bytes)
        assert b"this daemon does not look at the figures" in response.body


async def test_advice_is_asked_for_as_the_query_says(house: House) -> None:
    """The window in seconds, and the concurrency as a whole number."""
    house.client.metrics_is = replace(BUSY, running=5, kv_cache_usage=0.01)
    async with house.run():
        await house.started()
        began = anyio.current_time()
        response = await api_of(house).control(Request("GET", "/v1/advice", {"window": "10", "concurrency": "5"}))
        assert 9 <= anyio.current_time() - began <= 11
        assert isinstance(response.body, bytes)
        assert json.loads(response.body)["advice"]["verdict"] == "client_bound"
