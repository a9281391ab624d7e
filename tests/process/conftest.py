import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.eventually import eventually
from tests.process.lab import Lab, adopt, descendants
from vllm_supervisor.adapters.process import become_subreaper, normalize_signals


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each asynchronous test on the loop that users get and on the one that other tests use."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Make the test's process what the daemon is, and undo it."""
    become_subreaper()
    yield
    adopt(False)


@pytest.fixture(autouse=True)
def _nothing_left(subreaper: None) -> Iterator[None]:
    """Fail the test that leaves a process behind: as subreaper we would have become its parent."""
    normalize_signals()
    before = descendants(os.getpid())
    yield
    eventually(lambda: descendants(os.getpid()) <= before, what="a process was left behind")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)
