"""The outfit in use, and the one that a reload has left for the next engine."""

from collections.abc import Callable
from dataclasses import replace

from vllm_supervisor.domain.messages import Event, RestartAsked, StartAsked
from vllm_supervisor.domain.model import Phase, State
from vllm_supervisor.domain.spec import EngineSpec
from vllm_supervisor.runtime.outfit import Outfit

_UP = frozenset({Phase.STARTING, Phase.READY, Phase.UNHEALTHY})


class Wardrobe:
    """Knows when the outfit that waits is to be taken: for an engine that is launched at an operator's word.

    One that is launched after a crash keeps the outfit of the one before: it is to be the engine that served, and not
    a change that nobody is awake to see fail.
    """

    def __init__(self, outfit: Outfit) -> None:
        self.outfit = outfit
        self.taken = 0
        """How often the outfit was replaced."""
        self._follow: Callable[[], Outfit] | None = None
        self._due = False

    def adapt(self, spec: EngineSpec) -> None:
        """Have the same engine asked as `spec` says."""
        self.outfit = replace(self.outfit, spec=spec)
        self.outfit.client.adapt(spec)

    def leave(self, follow: Callable[[], Outfit] | None, *, due: bool) -> None:
        """Leave an outfit for the next engine, or none; `due` says that this engine is asked for."""
        self._follow = follow
        self._due = follow is not None and (self._due or due)

    def heed(self, event: Event, state: State) -> None:
        """Note whether an operator's word asks for another engine."""
        if isinstance(event, RestartAsked) or (isinstance(event, StartAsked) and state.phase not in _UP):
            self._due = self._follow is not None

    def refit(self, state: State) -> bool:
        """Take the outfit that waits, where it is due and there is no engine that the present one belongs to.

        Returns whether it did. What making it raises, it raises, and the outfit before stays.
        """
        if not self._due or self._follow is None or state.occupied:
            return False
        follow, self._follow, self._due = self._follow, None, False
        self.outfit = follow()
        self.taken += 1
        return True
