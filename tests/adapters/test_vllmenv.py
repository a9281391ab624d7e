"""The parts of `install-vllm` that a whole run shows only by luck: odd files, and one lock for everybody."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from tests.cli.wheels import shared_object
from tests.eventually import eventually
from tests.proc import alive
from vllm_supervisor.adapters.vllmenv import Place
from vllm_supervisor.adapters.vllmenv.child import run
from vllm_supervisor.adapters.vllmenv.elf import needed
from vllm_supervisor.adapters.vllmenv.inspect import look_into
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


def test_a_program_that_builds_and_fails(tmp_path: Path) -> None:
    """What it printed passes through, blank lines apart; its end is told with its last line, and what cannot be run."""
    said: list[str] = []
    with (tmp_path / "lock").open("w") as lock:

        def building(*command: str) -> None:
            run(command, said.append, environ={"PATH": "/usr/bin:/bin"}, lock=lock.fileno())

        building("sh", "-c", "echo one; echo; echo ' two '")
        assert said == ["one", " two"]
        with pytest.raises(SupervisorError, match=r"sh: ended with status 3: no room; see its lines above"):
            building("sh", "-c", "echo no room >&2; exit 3")
        with pytest.raises(SupervisorError, match=r"sh: was killed by signal 9: it said nothing"):
            building("sh", "-c", "kill -9 $$")
        with pytest.raises(SupervisorError, match=r"uv: cannot be run: No such file or directory; repair it, or"):
            building(str(tmp_path / "uv"))


def test_an_interrupted_build_ends_its_whole_session(tmp_path: Path) -> None:
    """Also those of it that ignore SIGTERM: nothing writes on after us."""

    def interrupted(line: str) -> None:
        (tmp_path / "pid").write_text(line)
        raise KeyboardInterrupt

    script = "sh -c 'trap \"\" TERM; echo $$; exec sleep 1000' & wait"
    with (tmp_path / "lock").open("w") as lock, pytest.raises(KeyboardInterrupt):
        run(("sh", "-c", script), interrupted, environ={"PATH": "/usr/bin:/bin"}, lock=lock.fileno())
    deaf = int((tmp_path / "pid").read_text())
    eventually(lambda: not alive(deaf), what="the deaf one is ended")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (None, "No such file or directory"),
        ("echo Segmentation fault >&2; echo >&2; exit 139", "Python ended with status 139: Segmentation fault"),
        ("exit 1", "Python ended with status 1: "),
    ],
)
def test_an_environment_whose_python_does_not_work(tmp_path: Path, script: str | None, error: str) -> None:
    """It is a finding, with what can still be said, and no exception."""
    (tmp_path / "bin").mkdir()
    if script is not None:
        (tmp_path / "bin/python").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin/python").chmod(0o755)
    found = look_into(tmp_path, {"PATH": "/usr/bin:/bin"})
    assert error in found.error
    assert found.vllm == ""
