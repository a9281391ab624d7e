"""Engines for whole daemons: the simulator everywhere, a real vLLM where one is given."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.rig import Rig


@dataclass(frozen=True)
class Kit:
    """What differs between engines: how they are launched, and how long they may take to be ready, seconds."""

    name: str
    section: dict[str, Any] = field(default_factory=dict)
    ready_within: float = 20.0
    engine_exists_within: float = 10.0

    @property
    def model(self) -> str:
        model: str = self.section.get("model", "demo/model")
        return model


SIMULATED = Kit("simulator", {"env": {"SIM_MAX_SECONDS": "300", "SIM_ENGINE_EXIT_DELAY": "0.5"}})


def real_vllm() -> Kit:
    """Return the kit of the real vLLM, or skip."""
    program, model = os.environ.get("VLLM_BIN"), os.environ.get("VLLM_TINY_MODEL")
    if not program or not model:
        pytest.skip("VLLM_BIN and VLLM_TINY_MODEL do not name a real vLLM")
    section = {
        "launcher": [program, "serve"],
        "model": model,
        "extra_args": ["--enforce-eager", "--dtype", "float32", "--max-model-len", "1024"],
        "env": {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        },
    }
    return Kit("vllm", section, ready_within=240, engine_exists_within=120)


@pytest.fixture(params=["simulator", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(900)])])
def kit(request: pytest.FixtureRequest) -> Kit:
    """Run the test on each engine there is."""
    return SIMULATED if request.param == "simulator" else real_vllm()


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Make daemons (not started yet) that leave nothing behind."""
    made: list[Rig] = []

    def make(engine: dict[str, Any] | None = None, **top: Any) -> Rig:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        section = dict(engine or {})
        section["env"] = SIMULATED.section["env"] | section.get("env", {})
        rig = Rig(folder, section, **top)
        made.append(rig)
        return rig

    yield make
    left = [line for rig in made for line in rig.clean_up()]
    assert not left, left


QUICK = {
    "probe": {"interval": 0.1, "timeout": 1, "failure_threshold": 2, "restart_after": 0.3},
    "stop": {"drain_timeout": 0, "grace": 10},
}
"""Settings under which faults are found, and ends reached, within seconds, and a busy machine makes none."""


@pytest.fixture
def pliable(make_rig: Callable[..., Rig]) -> Callable[..., Rig]:
    """Make daemons that react quickly, on a simulator whose knobs can be changed between its starts."""

    def make(engine: dict[str, Any] | None = None, **top: Any) -> Rig:
        rig = make_rig(QUICK | (engine or {}), **top)
        if "launcher" not in (engine or {}):
            rig.config["engine"]["vllm"]["launcher"] = rig.launch_script()
        return rig

    return make
