"""One process, held and signalled by descriptor, also where the host has none to give."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.proc import open_files
from vllm_supervisor.adapters.process import pidfd
from vllm_supervisor.adapters.process.procfs import Proc, Stat
from vllm_supervisor.domain.model import ExitStatus


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@contextmanager
def out_of_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def start_of(pid: int) -> int:
    stat = Proc().stat(pid)
    assert stat is not None
    return stat.start


def test_a_member_dies_although_no_descriptor_is_left(sleeper: subprocess.Popen[bytes]) -> None:
    """By its number then; and one that is gone was not reached, with or without descriptors."""
    start = start_of(sleeper.pid)
    with out_of_descriptors():
        assert pidfd.send(Proc(), sleeper.pid, start, signal.SIGKILL)
    assert sleeper.wait(20) == -signal.SIGKILL
    with out_of_descriptors():
        assert not pidfd.send(Proc(), sleeper.pid, start, signal.SIGKILL)
    assert not pidfd.send(Proc(), sleeper.pid, start, signal.SIGKILL)


def test_a_later_process_with_its_number_is_not_hit(sleeper: subprocess.Popen[bytes]) -> None:
    """It began at another time."""
    assert not pidfd.send(Proc(), sleeper.pid, start_of(sleeper.pid) - 1, signal.SIGKILL)
    assert sleeper.poll() is None


def test_what_cannot_be_compared_is_not_held(sleeper: subprocess.Popen[bytes]) -> None:
    """The descriptor is given back where the process table cannot be read."""

    class Starved(Proc):
        def stat(self, pid: int) -> Stat | None:
            raise OSError(24, "Too many open files")

    before = open_files()
    with pytest.raises(OSError, match="Too many"):
        pidfd.hold(Starved(), sleeper.pid, 0)
    assert open_files() == before


def test_a_status_that_is_not_ours_to_know(sleeper: subprocess.Popen[bytes]) -> None:
    """Of a child that still runs and of a process that is no child: unknown."""
    for pid in (sleeper.pid, os.getppid()):
        fd = os.pidfd_open(pid)
        try:
            assert pidfd.status(fd) == ExitStatus()
        finally:
            os.close(fd)
