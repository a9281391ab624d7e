"""One engine at most: nothing of an engine outlives it, whoever died first, and no second daemon takes it over."""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from tests.proc import alive
from tests.rig import Rig

Make = Callable[..., Rig]


def noted(rig: Rig) -> dict[int, str]:
    """Return what the simulators noted of every process they ever made: pid -> name."""
    path = rig.folder / "sim" / "pids"
    lines = path.read_text().splitlines() if path.exists() else []
    return {int(pid): name for pid, _, name in (line.partition(" ") for line in lines)}


def living(pids: set[int]) -> set[int]:
    return {pid for pid in pids if alive(pid)}


def order(rig: Rig) -> list[str]:
    """Return what happened to processes, in order."""
    kinds = {"spawned", "adopted", "leader_exited", "group_empty"}
    return [event["event"] for event in rig.events() if event["event"] in kinds]


def signals(rig: Rig) -> list[str]:
    return [event["signal"] for event in rig.events("signal_sent")]


def test_processes_that_left_the_session_end_with_their_engine(pliable: Make) -> None:
    """A worker with a session of its own and a daemonised one are gone before the next launch, and after a stop."""
    rig = pliable()
    rig.simulate(worker_setsid=1, state_dir=rig.folder / "sim")
    rig.start()
    rig.wait_state("ready")
    first = noted(rig)
    away = {pid for pid in living(set(first)) if os.getsid(pid) != rig.leader()}
    assert {first[pid] for pid in away} == {"Worker", "stray"}
    assert living(set(first)) == {process.pid for process in rig.members()}
    os.kill(rig.leader(), signal.SIGKILL)
    rig.wait_state("ready", after=1)
    assert living(set(first)) == set()
    assert order(rig) == ["spawned", "leader_exited", "group_empty", "spawned"]
    rig.post("stop")
    rig.wait_state("stopped")
    assert living(set(noted(rig))) == set()
    assert len(noted(rig)) == 2 * len(first)


def test_nobody_heeds_sigterm(pliable: Make) -> None:
    """SIGTERM is given the grace, then SIGKILL reaches every member, those with their own session included."""
    rig = pliable({"stop": {"drain_timeout": 0, "grace": 0.8}})
    rig.simulate(ignore_sigterm=1, worker_setsid=1, load_seconds=60, state_dir=rig.folder / "sim")
    rig.start()
    rig.until(lambda: "stray" in noted(rig).values(), what="the whole tree")
    asked = time.monotonic()
    rig.post("stop")
    rig.wait_state("stopped")
    # The server itself obeys once its engine exists; its worker in the other session and the stray do not.
    assert time.monotonic() - asked > 0.8
    assert signals(rig)[0] == "SIGTERM"
    assert "SIGKILL" in signals(rig)
    assert living(set(noted(rig))) == set()
    assert rig.members() == []


def test_a_sigterm_that_is_lost_is_repeated(pliable: Make) -> None:
    """vLLM loses a SIGTERM that arrives while its engine starts: the second one ends it, well within the grace."""
    rig = pliable()
    rig.simulate(lose_first_sigterm=1, load_seconds=60)
    rig.start()
    rig.until(lambda: "Starting to load model" in rig.engine_log(), what="the engine loads")
    rig.post("stop")
    rig.wait_state("stopped")
    assert signals(rig) == ["SIGTERM", "SIGTERM"]
    assert rig.members() == []


def test_strays_of_a_killed_daemon_and_a_killed_leader(pliable: Make) -> None:
    """What is left of an engine without leader and without daemon is ended by the next daemon, before its launch."""
    rig = pliable()
    rig.simulate(worker_setsid=1, state_dir=rig.folder / "sim")
    rig.start()
    rig.wait_state("ready")
    leader = rig.leader()
    rig.send(signal.SIGKILL)
    rig.wait_exit()
    os.kill(leader, signal.SIGKILL)
    old = set(noted(rig))
    rig.until(lambda: leader not in living(old), what="the leader's end")
    assert len(living(old)) >= 3, "the orphans live on"
    rig.start()
    status = rig.wait_state("ready", after=1)
    assert living(old) == set()
    assert order(rig)[0] == "adopted"
    assert order(rig)[-2:] == ["group_empty", "spawned"]
    assert status["restarts"]["total"] == 0


def one_line(rig: Rig) -> str:
    text = rig.daemon_log().strip()
    assert text.startswith("vllm-supervisor: ")
    assert "\n" not in text
    return text


def test_a_second_daemon_touches_nothing(pliable: Make) -> None:
    """The same state directory or socket: exit 3; a metrics port that is taken: exit 4. The first one goes on."""
    first = pliable()
    first.start()
    before = first.wait_state("ready")
    members = {process.pid for process in first.members()}

    same_state = pliable(state_dir=str(first.state_dir))
    same_state.start(wait=False)
    same_socket = pliable(control={"socket": str(first.socket)})
    same_socket.start(wait=False)
    same_metrics = pliable(metrics={"port": first.metrics_port})
    same_metrics.start(wait=False)
    taken = pliable()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(taken.socket))
        other.listen()
        taken.start(wait=False)
        assert [rig.wait_exit() for rig in (same_state, same_socket, same_metrics, taken)] == [3, 3, 4, 4]
        assert "another program" in one_line(taken)
        assert taken.socket.exists()
    assert str(first.state_dir) in one_line(same_state)
    assert str(first.pid) in one_line(same_socket)
    assert str(first.metrics_port) in one_line(same_metrics)
    assert not same_metrics.socket.exists()

    status = first.status()
    assert (status["generation"], status["pid"]) == (before["generation"], before["pid"])
    assert {process.pid for process in first.members()} == members


def test_a_stale_socket_and_a_wrong_configuration(pliable: Make) -> None:
    """A socket left by a killed daemon is replaced; every problem of a configuration is told at once, with exit 2."""
    rig = pliable({"port": 70000, "lod_file": "x"})
    rig.start(wait=False)
    assert rig.wait_exit() == 2
    lines = rig.daemon_log().splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"vllm-supervisor: {rig.folder / 'config.yaml'}:") for line in lines)
    assert [key for key in ("engine.vllm.port", "engine.vllm.lod_file") if key not in rig.daemon_log()] == []
    assert not rig.state_dir.exists()
    assert not rig.socket.exists()

    rig.config["engine"]["vllm"] |= {"port": rig.port}
    del rig.config["engine"]["vllm"]["lod_file"]
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(rig.socket))
    rig.start()
    rig.wait_state("ready")
    assert rig.stop() == 0
    assert not rig.socket.exists()
    record = json.loads(Path(rig.state_dir / "engine.json").read_text())
    assert record["gone"] is True


def test_a_state_directory_that_is_removed_is_made_and_locked_again(pliable: Make) -> None:
    """Whoever tidies up under a living daemon lets no second one in, and a later one still finds its engine."""
    rig = pliable()
    rig.start()
    rig.wait_state("ready")
    name = (rig.state_dir / "instance-id").read_text()
    shutil.rmtree(rig.state_dir)
    rig.until(lambda: bool(rig.events("state_dir_renewed")), what="it to be made again")
    second = pliable(state_dir=str(rig.state_dir))
    second.start(wait=False)
    assert second.wait_exit() == 3
    assert f"in use by pid {rig.pid}" in one_line(second)
    assert (rig.state_dir / "instance-id").read_text() == name
    members = {process.pid for process in rig.members()}

    rig.send(signal.SIGKILL)
    rig.wait_exit()
    rig.start()
    rig.wait_state("ready")
    assert not members & {process.pid for process in rig.members()}


def test_a_control_socket_that_is_removed_is_made_again(pliable: Make) -> None:
    """With its lock and its folder; whoever was connected stays so, and a second daemon is refused as before."""
    rig = pliable()
    rig.socket = rig.folder / "run" / "s"
    rig.config["control"]["socket"] = str(rig.socket)
    rig.start()
    before = rig.wait_state("ready")
    with socket.socket(socket.AF_UNIX) as follower:
        follower.connect(str(rig.socket))
        follower.sendall(b"GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert follower.recv(12) == b"HTTP/1.1 200"
        shutil.rmtree(rig.socket.parent)
        rig.until(rig.socket.is_socket, what="the socket to be made again")
        status = rig.status()
        assert (status["generation"], status["pid"]) == (before["generation"], before["pid"])
        assert rig.socket.stat().st_mode & 0o777 == 0o660
        rig.until(lambda: b"control_socket_renewed" in follower.recv(65536), what="the follower to be told")
    second = pliable(control={"socket": str(rig.socket)})
    second.start(wait=False)
    assert second.wait_exit() == 3
    assert f"pid {rig.pid}" in one_line(second)
    assert rig.stop() == 0
    assert not rig.socket.exists()


def test_an_engine_whose_daemon_lives_is_left_alone(pliable: Make) -> None:
    """Somebody removed the lock's file: the state file still names a living daemon, and the second one exits 3."""
    rig = pliable()
    rig.start()
    rig.wait_state("ready")
    members = {process.pid for process in rig.members()}
    (rig.state_dir / "lock").unlink()
    second = pliable(state_dir=str(rig.state_dir))
    second.start(wait=False)
    assert second.wait_exit() == 3
    assert str(rig.pid) in second.daemon_log()
    assert "Traceback" not in second.daemon_log()
    assert {process.pid for process in rig.members()} == members
    assert rig.status()["ready"]
