"""A configuration that is read by a process of its own, which may not come to an end, or not to a good one."""

import os
import signal
from pathlib import Path

import pytest

from vllm_supervisor.config.reading import Source
from vllm_supervisor.errors import ConfigError

CONFIG = "engine: {vllm: {model: o/m}}\n"


def source(tmp_path: Path, **environ: str) -> Source:
    (tmp_path / "config.yaml").write_text(CONFIG)
    return Source(tmp_path / "config.yaml", (), {**os.environ, **environ})


def test_a_reader_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    """A file system that hangs does not hang the daemon: what took how long, and what to do; its process is ended."""
    reading = source(tmp_path).begin()
    with pytest.raises(ConfigError) as caught:
        reading.result(within=0.0)
    (problem,) = caught.value.problems
    assert problem.why == "reading it took longer than 0 s"
    assert problem.remedy == "see whether its file system answers, then try again"
    reading._process.communicate(timeout=20)
    assert reading._process.returncode == -signal.SIGKILL


def test_a_reader_that_breaks_is_told_with_its_last_words(tmp_path: Path) -> None:
    """Never a traceback: the status, and the last line that it wrote."""
    (tmp_path / "json.py").write_text("raise RuntimeError('no json here')\n")
    with pytest.raises(ConfigError) as caught:
        source(tmp_path, PYTHONPATH=str(tmp_path)).begin().result()
    (problem,) = caught.value.problems
    assert problem.why == "reading it ended with status 1: RuntimeError: no json here"
