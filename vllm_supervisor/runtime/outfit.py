"""What the loop works with that belongs to one configuration of the engine."""

from dataclasses import dataclass

from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.ports import EngineClient, Launcher, Observer
from vllm_supervisor.runtime.work import NONE, Companions


@dataclass(frozen=True, slots=True)
class Outfit:
    """How the engine is launched, asked and watched. Replaced as a whole, and only while there is no engine.

    `observers` are those that watch the engine by this configuration; they are told after all others.
    """

    launcher: Launcher
    client: EngineClient
    spec: EngineSpec
    companions: Companions = NONE
    observers: tuple[Observer, ...] = ()
