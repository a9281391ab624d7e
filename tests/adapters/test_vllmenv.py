"""The parts of `install-vllm` that a whole run shows only by luck: odd files, and one lock for everybody."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from tests.cli.wheels import shared_object
from vllm_supervisor.adapters.vllmenv import Place
from vllm_supervisor.adapters.vllmenv.elf import needed
from vllm_supervisor.errors import SupervisorError


def test_what_a_shared_object_needs(tmp_path: Path) -> None:
    """In the order of the file; and so for one that a real linker made."""
    path = tmp_path / "x.so"
    path.write_bytes(shared_object("libcudart.so.13", "libc.so.6"))
    assert needed(path) == ("libcudart.so.13", "libc.so.6")
    real = Path(os.path.realpath(sys.executable))
    assert any(name.startswith(("libc.so", "libc.musl", "libpython")) for name in needed(real))


def test_whatever_is_no_shared_object_needs_nothing(tmp_path: Path) -> None:
    """Missing, empty, a directory, another format, cut off or damaged anywhere: never an exception."""
    path = tmp_path / "x.so"
    assert needed(path) == ()
    assert needed(tmp_path) == ()
    whole = shared_object("libcudart.so.13")
    for content in (b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(100), *(whole[:cut] for cut in range(len(whole)))):
        path.write_bytes(content)
        needed(path)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        needed(path)


def _hold(link: Path, rounds: int, log: int) -> None:
    place = Place(link)
    done = 0
    while done < rounds:
        try:
            with place.locked():
                os.write(log, b"(")
                os.write(log, b")")
            done += 1
        except SupervisorError:
            continue


def test_the_lock_is_one_although_its_file_comes_and_goes(tmp_path: Path) -> None:
    """The file is removed by the one who holds it: never do two hold what they take for the lock."""
    log = tmp_path / "log"
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_hold, args=(tmp_path / "vllm", 100, fd)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    os.close(fd)
    assert log.read_bytes() == b"()" * 400
    assert sorted(tmp_path.iterdir()) == [log]


def test_a_switch_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    """The directory vanished, or is full: the link is as it was."""
    place = Place(tmp_path / "vllm")
    first = place.new()
    first.mkdir(parents=True)
    place.switch(first, {})
    with pytest.raises(SupervisorError, match="cannot be switched"):
        place.switch(place.builds / "gone", {})
    assert place.current == first
    place.discard(first)
    assert first.is_dir()
