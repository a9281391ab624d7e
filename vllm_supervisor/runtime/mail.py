"""What the loop finds in its mailbox, beside the machine's events and what is learnt of the engine."""

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from vllm_supervisor.domain.messages import Event
from vllm_supervisor.domain.model import Policy
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.ports import Note
from vllm_supervisor.runtime.facts import Configured, Fact
from vllm_supervisor.runtime.outfit import Outfit


@dataclass(slots=True)
class Asked:
    """An operator's request on its way to the machine. `refused` says why, once `done` is set."""

    event: Event
    done: anyio.Event = field(default_factory=anyio.Event)
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """Asks whether the loop still turns: `done` is set when its turn comes."""

    done: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, slots=True)
class Change:
    """What a new configuration changes.

    `policy` and `spec` hold at once; `spec` is still about the engine as it was launched. `follow` makes the outfit of
    the next engine that is launched at an operator's word, where that differs.
    """

    policy: Policy
    spec: EngineSpec
    config: Configured
    follow: Callable[[], Outfit] | None = None


@dataclass(slots=True)
class Reconfigured:
    """A valid configuration on its way into force.

    `apply` is called by the loop, between two steps: it returns the change, and has everything beside the loop follow
    at once. `restart` asks for a new engine where the change needs one. Once `done` is set, `refused` says why nothing
    was changed, and `restarted` whether a new engine comes.
    """

    apply: Callable[[], Change]
    restart: bool = False
    drain: bool = True
    done: anyio.Event = field(default_factory=anyio.Event)
    refused: str | None = None
    restarted: bool = False


Mail = Event | Fact | Note | Asked | Pulse | Reconfigured | Configured
