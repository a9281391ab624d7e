from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulator.sim import Sim


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Sim]]:
    """Launch simulators; whatever of them is left afterwards is killed, and the test fails where that is not enough."""
    launched: list[Sim] = []

    def start(*flags: str, port: int | None = None, env: dict[str, str] | None = None) -> Sim:
        root = tmp_path / str(len(launched))
        root.mkdir()
        sim = Sim(root, *flags, port=port, env=env)
        launched.append(sim)
        return sim

    yield start
    for sim in launched:
        sim.clear()
