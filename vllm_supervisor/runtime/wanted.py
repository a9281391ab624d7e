"""Which tasks a state needs. The keys say when a task is still the same one."""

from collections.abc import Hashable
from functools import partial

from vllm_supervisor.domain.model import Needs, State
from vllm_supervisor.ports import Engine
from vllm_supervisor.runtime import tasks
from vllm_supervisor.runtime.outfit import Outfit
from vllm_supervisor.runtime.tasks import Post, Prober
from vllm_supervisor.runtime.work import Task


def launch_work(wants: Needs, state: State, outfit: Outfit, fitted: int, post: Post) -> dict[Hashable, Task]:
    """Return the checks before a launch, where they are due. `fitted` numbers the outfits."""
    if not wants.clearing:
        return {}
    ground, generation = outfit.companions.clear_ground, state.generation
    return {("clear", generation, fitted): partial(tasks.clear, outfit.launcher, generation, ground, post)}


def engine_work(
    wants: Needs, state: State, engine: Engine, prober: Prober, outfit: Outfit, post: Post
) -> dict[Hashable, Task]:
    """Return what goes on around an engine."""
    companions, generation = outfit.companions, state.generation
    wanted: dict[Hashable, Task] = {}
    if state.leader_alive:
        wanted["leader", generation] = partial(tasks.watch_leader, engine, post)
        if companions.accompany is not None:
            wanted["accompany", generation] = partial(companions.accompany, engine, post)
    if wants.proving:
        wanted["prove", generation] = partial(tasks.prove, engine, outfit.launcher, companions.examine, post)
    if wants.starting_probe:
        wanted["starting", generation] = partial(prober.watch_start, wants.probe_interval)
    if wants.serving_probe:
        interval = wants.probe_interval
        wanted["serving", generation, interval] = partial(prober.watch_serving, interval)
    if wants.start_watch and companions.watch_start is not None:
        wanted["start watch", generation] = partial(companions.watch_start, engine, post)
    if wants.liveness_watch and companions.watch_liveness is not None:
        wanted["liveness", generation] = partial(companions.watch_liveness, engine, post)
    if wants.draining:
        wanted["drain", generation] = prober.watch_drain
    return wanted
