"""What a daemon that was killed leaves behind, and how the next one finds it."""

import json
import os
import resource
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from tests.eventually import eventually
from tests.process.lab import PATIENCE, Lab, adopt, alive, daemon, ending, gone, members, shell
from vllm_supervisor.adapters.process import EngineLauncher, lock_state_dir
from vllm_supervisor.adapters.process.procfs import Proc
from vllm_supervisor.adapters.process.record import Identity, Record, Records
from vllm_supervisor.domain.model import BlockerKind, ExitStatus, Sig
from vllm_supervisor.errors import AlreadyRunningError, ConfigError, ExitCode

ORPHANS = shell("(setsid sleep 1000 &) ; sleep 1000 & wait")


@pytest.mark.asyncio
@pytest.mark.parametrize("adopted", [False, True])
async def test_engine_outlives_its_daemon_and_is_found_and_ended(lab: Lab, adopted: bool) -> None:
    """Its leader is watched although it is a child of init, and the proof is the same."""
    with daemon(lab, *ORPHANS) as old:
        adopt(adopted)
        old.die()
        launcher = lab.launcher(ORPHANS)
        engine = await launcher.leftover()
        assert engine is not None
        async with ending(engine):
            assert (engine.generation, engine.pid, engine.leader_alive) == (1, old.leader, True)
            await members(engine, "sh", "sleep", "sleep")
            with anyio.move_on_after(0.05) as scope:
                await engine.wait_leader()
            assert scope.cancelled_caught
            assert await engine.signal(Sig.TERM) == 3
            await gone(engine)
        launcher.forget(1)
        assert await launcher.leftover() is None
        assert launcher.last_generation() == 1


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_leftovers_are_found_when_their_leader_is_gone_too(lab: Lab) -> None:
    """vLLM's orphans hold the GPU as well as a whole engine does."""
    with daemon(lab, *ORPHANS) as old:
        adopt(False)
        eventually(lambda: len([s for s in Proc().table().values() if s.name == "sleep" and bears(lab, s.pid)]) == 2)
        old.die()
        os.kill(old.leader, signal.SIGKILL)
        eventually(lambda: not alive(old.leader))
        engine = await lab.launcher(ORPHANS).leftover()
        assert engine is not None
        async with ending(engine):
            with anyio.fail_after(PATIENCE):
                await engine.wait_leader()
            await members(engine, "sleep", "sleep")
            assert await engine.signal(Sig.KILL) == 2
            await gone(engine)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_leftover_without_a_marker_is_known_by_its_session(lab: Lab) -> None:
    """An engine that erased its environment, with its leader alive."""
    script = shell("env -i sleep 1000 & exec env -i sleep 1000")
    with daemon(lab, *script) as old:
        eventually(lambda: alive(old.leader) and Proc().stat(old.leader).name == "sleep")  # type: ignore[union-attr]  # alive
        old.die()
        engine = await lab.launcher(script).leftover()
        assert engine is not None
        async with ending(engine):
            await members(engine, "sleep", "sleep")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_leader_that_became_our_child_has_a_status(lab: Lab) -> None:
    """Where the new daemon is an ancestor and subreaper, the kernel does tell how the leader ended."""
    with daemon(lab, *shell("exec sleep 1000")) as old:
        old.die()
        engine = await lab.launcher(ORPHANS).leftover()
        assert engine is not None
        async with ending(engine):
            await engine.signal(Sig.TERM)
            assert await engine.wait_leader() == ExitStatus(signal=signal.SIGTERM)


DAMAGED = ("", "{", "[]", '{"version": 1}', '{"version": 99}', "\x00\x00", "[" * 5000)
ENDLESS = '{"version": 1, "generation": 1e999, "boot_id": "", "daemon": {}, "leader": null, "gone": true}'


@pytest.mark.parametrize("damage", [*DAMAGED, ENDLESS])
def test_damaged_record_is_noted(lab: Lab, damage: str) -> None:
    """A full disk or an edited file is no reason to crash: it counts as none, and is said."""
    (lab.state_dir / "engine.json").write_text(damage)
    assert lab.launcher(ORPHANS).last_generation() == 0
    assert [note.kind for note in lab.notes] == ["state_not_read"]


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_engine_is_found_without_a_record(lab: Lab) -> None:
    """The marker names the instance, whatever became of the file; numbering goes on after what is alive."""
    with daemon(lab, *shell("exec sleep 1000")) as old:
        old.die()
        (lab.state_dir / "engine.json").write_text("{")
        engine = await lab.launcher(ORPHANS).leftover()
        assert engine is not None
        async with ending(engine):
            assert (engine.generation, engine.pid) == (1, old.leader)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_nothing_is_found_where_nothing_was_launched(lab: Lab) -> None:
    """A first start says nothing and finds nothing; neither does one after a reboot."""
    launcher = lab.launcher(ORPHANS)
    assert await launcher.leftover() is None
    assert launcher.last_generation() == 0
    assert lab.notes == []
    me = Proc().stat(os.getpid())
    assert me is not None
    identity = Identity(me.pid, me.start)
    Records(lab.state_dir).write(Record(7, "another boot", Identity(1, 1), leader=identity))
    assert await launcher.leftover() is None
    assert launcher.last_generation() == 7


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_an_end_that_nobody_examined_is_found_once(lab: Lab) -> None:
    """Daemon and engine are both gone, the end was not noted: who comes next learns where its log begins."""
    lab.log.parent.mkdir()
    lab.log.write_text("of an earlier generation\n")
    with daemon(lab, *shell("exec sleep 1000")) as old:
        old.die()
        os.kill(old.leader, signal.SIGKILL)
        eventually(lambda: not alive(old.leader))
        launcher = lab.launcher(ORPHANS)
        engine = await launcher.leftover()
        assert engine is not None
        assert (engine.generation, engine.pid, engine.leader_alive) == (1, old.leader, False)
        assert lab.log.read_bytes()[: engine.log_start].startswith(b"of an earlier generation\n")
        await gone(engine)
        launcher.forget(1)
        assert await launcher.leftover() is None


def test_a_record_from_before_it_said_where_the_log_begins(lab: Lab) -> None:
    """An upgrade reads what the version before wrote: the log from its start."""
    records = Records(lab.state_dir)
    records.write(Record(3, "boot", Identity(1, 1), Identity(2, 2), log_start=77))
    assert records.read() == Record(3, "boot", Identity(1, 1), Identity(2, 2), log_start=77)
    file = lab.state_dir / "engine.json"
    data = json.loads(file.read_text())
    del data["log_start"]
    file.write_text(json.dumps(data))
    assert records.read() == Record(3, "boot", Identity(1, 1), Identity(2, 2))


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_engine_of_a_living_daemon_is_not_touched(lab: Lab) -> None:
    """The second net, where the lock of the state directory does not hold (some network file systems)."""
    with daemon(lab, *shell("exec sleep 1000")) as other:
        with pytest.raises(AlreadyRunningError, match=f"pid {other.process.pid}"):
            await lab.launcher(ORPHANS).leftover()
        assert alive(other.leader)
        other.die()
        engine = await lab.launcher(ORPHANS).leftover()
        assert engine is not None
        async with ending(engine):
            pass


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_number_of_the_leader_taken_by_another_process_harms_nobody(lab: Lab) -> None:
    """A record from days ago names a pid that is a stranger's by now: start times differ, it is not signalled."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:  # noqa: ASYNC220  it is waited for by the test
        try:
            stat, me = Proc().stat(stranger.pid), Proc().stat(os.getpid())
            assert stat is not None
            assert me is not None
            record = Record(1, Proc().boot_id(), Identity(me.pid, me.start - 1), Identity(stat.pid, stat.start - 1))
            Records(lab.state_dir).write(record)
            engine = await lab.launcher(ORPHANS).leftover()
            assert engine is not None, "its end is yet to be examined"
            assert (engine.leader_alive, await engine.members(), await engine.signal(Sig.KILL)) == (False, (), 0)
            await gone(engine)
            assert stranger.poll() is None
        finally:
            stranger.kill()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_daemon_that_died_between_launch_and_note_is_covered(lab: Lab) -> None:
    """The record without a leader, written just before the launch, and the marker are enough."""
    records = Records(lab.state_dir)
    with daemon(lab, *shell("exec sleep 1000")) as old:
        old.die()
        record = records.read()
        assert isinstance(record, Record)
        records.write(replace(record, leader=None))
        engine = await lab.launcher(ORPHANS).leftover()
        assert engine is not None
        async with ending(engine):
            assert engine.pid == old.leader


def test_record_says_what_the_contract_lists(lab: Lab) -> None:
    """Boot id, the daemon, the leader, the generation; the marker is instance and generation."""
    with daemon(lab, *shell("exec sleep 1000")) as old:
        data = json.loads((lab.state_dir / "engine.json").read_text())
        old.die()
        os.kill(old.leader, signal.SIGKILL)
    assert data["boot_id"] == Proc().boot_id()
    assert data["daemon"]["pid"] == old.process.pid
    assert data["leader"]["pid"] == old.leader
    assert data["generation"] == 1
    assert not data["gone"]


def test_forgetting_another_generation_changes_nothing(lab: Lab) -> None:
    """A late word about an old engine must not hide the current one from the next daemon."""
    records = Records(lab.state_dir)
    records.write(Record(2, "boot", Identity(1, 1)))
    lab.launcher(ORPHANS).forget(1)
    assert records.read() == Record(2, "boot", Identity(1, 1))


def test_forgetting_the_engine_of_a_living_daemon_changes_nothing(lab: Lab) -> None:
    """Another daemon took a state directory that was removed under us, and its engine has the number of ours."""
    with daemon(lab, *shell("exec sleep 1000")) as other:
        lab.launcher(ORPHANS).forget(1)
        record = Records(lab.state_dir).read()
        other.die()
        os.kill(other.leader, signal.SIGKILL)
    assert isinstance(record, Record)
    assert not record.gone


def test_second_daemon_is_refused_and_touches_nothing(lab: Lab) -> None:
    """Exit 3, and the message names the holder; once that is dead the directory is free, crash or not."""
    with daemon(lab, *shell("exec sleep 1000")) as first:
        before = {path: path.read_bytes() for path in lab.state_dir.iterdir()}
        with pytest.raises(AlreadyRunningError, match=f"in use by pid {first.process.pid}") as caught:
            lock_state_dir(lab.state_dir)
        assert caught.value.exit_code is ExitCode.NO_DAEMON
        assert {path: path.read_bytes() for path in lab.state_dir.iterdir()} == before
        first.die()
        os.kill(first.leader, signal.SIGKILL)
        lock_state_dir(lab.state_dir).release()


def test_a_full_disk_keeps_no_lock_from_being_held(lab: Lab) -> None:
    """The pid in it is for a message only: a service whose disk is full starts again all the same."""
    lock_state_dir(lab.state_dir).release()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        with lock_state_dir(lab.state_dir), pytest.raises(AlreadyRunningError):
            lock_state_dir(lab.state_dir)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)


@pytest.mark.asyncio
async def test_a_removed_directory_is_locked_anew(lab: Lab) -> None:
    """Whoever comes next is refused as before; where somebody was faster, no engine is launched beside theirs."""
    with lock_state_dir(lab.state_dir) as lock:
        launcher = EngineLauncher(lab.spec(ORPHANS), lab.state_dir, note=lab.notes.append, lock=lock)
        assert not lock.renew()
        shutil.rmtree(lab.state_dir)
        assert await launcher.hold() is None
        assert [note.kind for note in lab.notes] == ["state_dir_renewed"]
        assert lab.instance() == launcher.instance
        with pytest.raises(AlreadyRunningError):
            lock_state_dir(lab.state_dir)
        assert not lock.renew()
        (lab.state_dir / "instance-id").unlink()
        (lab.state_dir / "instance-id.new").mkdir()
        blocker = await launcher.hold()
        assert blocker is not None
        assert "Is a directory" in blocker.why
        (lab.state_dir / "instance-id.new").rmdir()
        assert await launcher.hold() is None
        assert lab.instance() == launcher.instance
        assert await launcher.hold() is None
        assert len(lab.notes) == 2

        shutil.rmtree(lab.state_dir)
        with lock_state_dir(lab.state_dir):
            for blocker in (await launcher.check(), await launcher.hold()):
                assert blocker is not None
                assert blocker.kind is BlockerKind.STATE_DIR
                assert blocker.why == f"state directory {lab.state_dir} was removed, and is in use by pid {os.getpid()}"
        shutil.rmtree(lab.state_dir)
        lab.state_dir.touch()
        blocker = await launcher.hold()
        assert blocker is not None
        assert "cannot be used: something else is in its place" in blocker.why
        assert blocker.remedy == "remove that, or set another directory"
        lab.state_dir.unlink()
    assert not lock.renew(), "it was let go"
    assert not lab.state_dir.exists()


def test_lock_is_not_inherited_by_the_engine(lab: Lab) -> None:
    """An engine that outlives its daemon must not keep the next one out."""
    with lock_state_dir(lab.state_dir) as lock, subprocess.Popen(["sleep", "1000"], close_fds=False) as child:
        try:
            lock.release()
            lock_state_dir(lab.state_dir).release()
        finally:
            child.kill()


def test_state_directory_that_cannot_be_made_is_a_configuration_problem(tmp_path: Path) -> None:
    """Said before anything is launched, with the key to change."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="state_dir"):
        lock_state_dir(tmp_path / "file" / "state")


def bears(lab: Lab, pid: int) -> bool:
    return lab.instance().encode() in (Proc().environ(pid) or b"")
