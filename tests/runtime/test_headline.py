"""The public state in words, for systemd's STATUS."""

import pytest

from tests.fakes.engine import EngineScript
from tests.fakes.house import build
from tests.fakes.situations import blocked
from vllm_supervisor.domain.messages import ShutdownAsked, StartAsked, StopAsked
from vllm_supervisor.domain.model import Blocker, BlockerKind, Outcome, Phase, State
from vllm_supervisor.ports import Note
from vllm_supervisor.runtime.headline import Headline, headline

pytestmark = pytest.mark.anyio


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
