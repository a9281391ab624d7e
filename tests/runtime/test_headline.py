"""The public state in words, for systemd's STATUS."""

import pytest

from tests.fakes.engine import EngineScript
from tests.fakes.house import build
from tests.fakes.situations import blocked
from vllm_supervisor.domain.messages import ShutdownAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import Blocker, BlockerKind, Outcome, Phase, Policy, State
from vllm_supervisor.ports import Note
from vllm_supervisor.runtime.headline import Headline, headline
from vllm_supervisor.runtime.readiness import ReadinessNotice

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("exits", [True, False])
async def test_the_cause_is_the_last_that_is_told_of_a_daemon_that_gave_up(exits: bool) -> None:
    """Whether it ends with its failure or later: `ending` would take the cause away from whoever looks."""
    told: list[str] = []
    line = Headline(told.append)
    policy = Policy(exit_when_failed=exits, restart_enabled=False)
    house = build(EngineScript(exits_after=1.0), policy=policy, more=(line,))
    async with house.run():
        house.supervisor.post(StartAsked())
        if not exits:
            await house.until(Phase.FAILED)
            house.supervisor.post(ShutdownAsked())
        assert await house.ended() == (10 if exits else 0)
    assert told[-1] == line.text
    assert told[-1].startswith("failed: the engine ended and restart.enabled is false")


@pytest.mark.parametrize(("retries", "gives_up"), [(0.0, True), (30.0, False)])
async def test_whoever_waits_for_an_engine_that_will_not_come_is_let_go(retries: float, gives_up: bool) -> None:
    """Once, and not where it is tried again."""
    calls: list[str] = []
    notice = ReadinessNotice(lambda _: False, lambda _: calls.append("extend"), lambda: calls.append("give up"))
    policy = Policy(restart_enabled=False, retry_failed_every=retries)
    house = build(EngineScript(exits_after=1.0), EngineScript(exits_after=1.0), policy=policy, more=(notice,))
    async with house.run():
        house.supervisor.post(StartAsked())
        await house.until(Phase.FAILED)
        await house.supervisor.ask(StopAsked())
        assert calls == ["extend"] + ["give up"] * gives_up
        house.supervisor.post(ShutdownAsked())
        await house.ended()


async def test_each_line_is_told_once_as_the_state_changes() -> None:
    """Two generations and an end, as `systemctl status` shows them one after the other."""
    told: list[str] = []
    house = build(EngineScript(), EngineScript(), more=(Headline(told.append),))
    async with house.run():
        engine = await house.started()
        house.client.health_is = Outcome.TIMEOUT
        await house.until(Phase.UNHEALTHY)
        house.client.health_is = None
        await house.until(Phase.READY)
        engine.exit(1)
        await house.until(Phase.BACKOFF)
        await house.until(Phase.READY)
        await house.supervisor.ask(StopAsked())
        await house.until(Phase.STOPPED)
        house.supervisor.post(ShutdownAsked())
        await house.ended()
    assert told == [
        "starting, generation 1",
        "ready, generation 1",
        "unhealthy, 3 probes failed",
        "ready, generation 1",
        "stopping, ending what the engine left",
        "restart 1 follows 2 s after the last failure",
        "starting, generation 2",
        "ready, generation 2",
        "stopping, waiting for running requests",
        "stopping, SIGTERM sent",
        "stopped by an operator",
        "ending",
    ]


async def test_a_blocked_launch_is_told_with_its_remedy() -> None:
    """What an operator has to do is in the line."""
    told: list[str] = []
    house = build(more=(Headline(told.append),))
    async with house.run():
        await blocked(house)
    assert told[-1] == "cannot launch: taken; free it"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State(phase=Phase.KILLING), "stopping, SIGKILL sent"),
        (State(phase=Phase.FAILED, fail_why="5 starts in a row never got ready"), "failed: 5 starts in a row"),
        (State(phase=Phase.BACKOFF, failures=2, since=10.0, deadline=14.4), "restart 2 follows 4 s after"),
        (State(phase=Phase.BACKOFF, blocker=Blocker(BlockerKind.PORT, "taken", "free it")), "cannot launch: taken"),
    ],
)
def test_the_words(state: State, words: str) -> None:
    """Phases that the story above does not pass."""
    assert headline(state, 12.0).startswith(words)


def test_a_refused_configuration_is_told_until_one_is_not() -> None:
    """Beside the state, whatever that is meanwhile; a line that was not taken is told again with the next step."""
    lines: list[str] = []
    taken = [True, False, True, True, True]

    def tell(text: str) -> bool:
        lines.append(text)
        return taken.pop(0)

    headline = Headline(tell)
    ready = State(phase=Phase.READY, generation=3)
    headline.stepped(ready, StartAsked(), ready, 0.0)
    headline.noted(Note("config_refused", fields={"problems": ["f:1: k: is bad; mend it", "f:2: also"]}))
    headline.stepped(ready, StartAsked(), ready, 5.0)
    headline.stepped(ready, StartAsked(), ready, 10.0)
    headline.noted(Note("other"))
    headline.noted(Note("config_reloaded"))
    refused = "ready, generation 3; reload refused: f:1: k: is bad; mend it (and 1 more)"
    assert lines == ["ready, generation 3", refused, refused, "ready, generation 3"]
