"""Who belongs to an engine, how it is ended, and the proof that it is gone."""

import errno
import os
import signal
from collections.abc import Container
from pathlib import Path

import anyio
import pytest

from tests.eventually import aeventually, eventually
from tests.process.lab import PATIENCE, Lab, alive, content, end, ending, gone, members, python, shell
from vllm_supervisor.adapters.process import ProcessTree
from vllm_supervisor.adapters.process.procfs import Proc, Stat
from vllm_supervisor.domain.member import Member
from vllm_supervisor.domain.model import ExitStatus, Sig

pytestmark = pytest.mark.asyncio


async def in_state(engine: ProcessTree, *states: str) -> None:
    """Wait until the kernel has the members in these states: it takes its time on a busy machine."""

    async def settled() -> bool:
        return tuple(member.state for member in await engine.members()) == states

    await aeventually(settled, PATIENCE, what=f"states {states}")


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", ExitStatus(code=0)), ("exit 3", ExitStatus(code=3)), ("kill -9 $$", ExitStatus(signal=9))],
)
async def test_leader_exit_is_reported_as_it_was(lab: Lab, script: str, status: ExitStatus) -> None:
    """To several waiters, to late ones, and after the proof."""
    async with lab.engine(*shell(script)) as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.wait_leader)
            assert await engine.wait_leader() == status
        await gone(engine)
        assert await engine.wait_leader() == status
        assert not engine.leader_alive


async def test_cancelled_waiter_disturbs_nobody(lab: Lab) -> None:
    """The loop cancels waits all the time; the next one must still hear of the exit."""
    async with lab.engine(*shell("exec sleep 1000")) as engine:
        with anyio.move_on_after(0.01):
            await engine.wait_leader()
        with anyio.move_on_after(0.01):
            await engine.wait_gone()
        assert engine.leader_alive
        assert await engine.signal(Sig.TERM) == 1
        with anyio.fail_after(PATIENCE):
            assert await engine.wait_leader() == ExitStatus(signal=signal.SIGTERM)


@pytest.mark.parametrize(("script", "names"), [("exec sleep 1000", ["sleep"]), ("sleep 1000; exit", ["sh", "sleep"])])
async def test_launcher_may_replace_itself_or_stay_as_parent(lab: Lab, script: str, names: list[str]) -> None:
    """A script with `exec` replaces itself; `uv run` and a script without it stay."""
    async with lab.engine(*shell(script)) as engine:
        assert engine.pid == (await members(engine, *names))[0]
        assert await engine.signal(Sig.TERM) == len(names)
        await gone(engine)


async def test_the_first_signal_keeps_a_picture_of_whom_it_found(lab: Lab) -> None:
    """The dead leader and who outlived it, as they were before; a later signal does not replace it."""
    async with lab.engine(*shell("sleep 1000 & sleep 1000 & wait")) as engine:
        pids = await members(engine, "sh", "sleep", "sleep")
        await in_state(engine, "S", "S", "S")  # amid its exec a process has a name, and no command yet
        looked = await engine.portraits(await engine.members())
        commands = sorted(portrait.command.rpartition("/")[2] for portrait in looked)
        assert commands == ["sh -c sleep 1000 & sleep 1000 & wait", "sleep 1000", "sleep 1000"]
        assert {portrait.parent for portrait in looked} == {os.getpid(), pids[0]}
        assert not engine.found
        os.kill(pids[0], signal.SIGKILL)
        await engine.wait_leader()
        assert await engine.signal(Sig.KILL) == 2
        await gone(engine)
        found = {(portrait.pid, portrait.name, portrait.state, portrait.command) for portrait in engine.found}
        assert found == {(pids[0], "sh", "Z", ""), (pids[1], "sleep", "S", ""), (pids[2], "sleep", "S", "")}
        assert await engine.portraits([Member(pids[1], 1, "sleep", "S")]) == (), "gone, or another's pid by now"


async def test_members_left_by_a_killed_leader_are_found_and_ended(lab: Lab) -> None:
    """vLLM's EngineCore and workers outlive a SIGKILL of the API server for ever (measured)."""
    async with lab.engine(*shell("sleep 1000 & sleep 1000 & sleep 1000 & wait")) as engine:
        pids = await members(engine, "sh", "sleep", "sleep", "sleep")
        os.kill(engine.pid, signal.SIGKILL)
        with anyio.fail_after(PATIENCE):
            assert await engine.wait_leader() == ExitStatus(signal=9)
        with anyio.move_on_after(0.05) as scope:
            await engine.wait_gone()
        assert scope.cancelled_caught
        assert await engine.signal(Sig.KILL) == 3
        await gone(engine)
        assert not any(map(alive, pids))
        assert await engine.members() == ()
        assert await engine.signal(Sig.KILL) == 0


@pytest.mark.parametrize(
    "script",
    [
        "(setsid sleep 1000 &) ; sleep 0.2; wait",
        "(setsid sh -c '(sleep 1000 &)' &) ; wait",
        "(setsid env -i sleep 1000 &) ; wait",
        "env -i sleep 1000 & exit",
    ],
    ids=["marker only", "double fork", "no marker, no session, no parent", "session only"],
)
async def test_process_that_left_the_group_is_still_a_member(lab: Lab, script: str) -> None:
    """Promise 1 says every process; the leader is gone before anybody looks."""
    async with lab.engine(*shell(script)) as engine:
        with anyio.fail_after(PATIENCE):
            await engine.wait_leader()
        await members(engine, "sleep")
        assert await engine.signal(Sig.KILL) == 1
        await gone(engine)


async def test_member_that_erases_itself_after_it_was_seen_stays_a_member(lab: Lab, tmp_path: Path) -> None:
    """Once seen is enough, by pid and start time."""
    go = tmp_path / "go"
    inner = f"echo $$ > {tmp_path}/pid; while ! [ -e {go} ]; do sleep 0.01; done; exec setsid env -i sleep 1000"
    script = f"sh -c '{inner}' & wait"
    async with lab.engine(*shell(script)) as engine:
        seen = int(content(tmp_path / "pid"))
        assert seen in {member.pid for member in await engine.members()}
        go.touch()
        os.kill(engine.pid, signal.SIGKILL)
        await engine.wait_leader()

        async def bare() -> bool:
            stat = alive(seen)
            return stat is not None and stat.session == seen and not Proc().environ(seen)

        await aeventually(bare, PATIENCE)
        assert seen in {member.pid for member in await engine.members()}


async def test_zombie_leader_with_a_living_thread_is_not_gone(lab: Lab, tmp_path: Path) -> None:
    """Its main thread has ended, another still computes on the GPU: relaunching now would make two engines."""
    go = tmp_path / "go"
    async with lab.engine(*python("headless.py", str(go))) as engine:

        async def zombie() -> bool:
            stat = alive(engine.pid)
            return stat is not None and stat.state == "Z"

        await aeventually(zombie, PATIENCE)
        with anyio.move_on_after(0.05) as scope:
            await engine.wait_leader()
        assert scope.cancelled_caught
        assert [member.state for member in await engine.members()] == ["Z"]
        go.touch()
        with anyio.fail_after(PATIENCE):
            assert await engine.wait_leader() == ExitStatus(code=7)


def texts(folder: Path, pattern: str) -> list[str]:
    return [path.read_text() for path in folder.glob(pattern)]


async def test_term_reaches_each_member_exactly_once(lab: Lab, tmp_path: Path) -> None:
    """A second one within a call could skip a shutdown that the first began."""
    script = f"trap 'echo got >> {tmp_path}/got.$$' TERM; echo > {tmp_path}/up.$$; while :; do sleep 0.01; done"
    async with lab.engine(*shell(f'sh -c "{script.replace("$$", chr(92) + "$$")}" & {script}')) as engine:

        async def up() -> bool:
            return texts(tmp_path, "up.*") == ["\n", "\n"]

        async def told() -> bool:
            return len("".join(texts(tmp_path, "got.*"))) >= len("got\n") * 2

        await aeventually(up, PATIENCE)
        await engine.signal(Sig.TERM)
        await aeventually(told, PATIENCE)
        assert engine.leader_alive
    assert texts(tmp_path, "got.*") == ["got\n", "got\n"]


async def test_kill_ends_stopped_and_deaf_members(lab: Lab) -> None:
    """A frozen worker handles no SIGTERM and needs no SIGCONT to die."""
    deaf = "trap '' TERM; exec sleep 1000"
    async with lab.engine(*shell(f'sh -c "{deaf}" & {deaf}')) as engine:
        pids = await members(engine, "sleep", "sleep")
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await engine.signal(Sig.TERM)
        with anyio.move_on_after(0.1) as scope:
            await engine.wait_gone()
        assert scope.cancelled_caught
        await in_state(engine, "T", "T")
        await engine.signal(Sig.KILL)
        await gone(engine)


async def test_out_of_descriptors_is_not_taken_for_gone(lab: Lab) -> None:
    """An engine must not look dead, and be launched a second time, because we cannot read /proc just now."""

    class Starved(Proc):
        tries = 0

        def table(self, skip: Container[int] = ()) -> dict[int, Stat]:
            self.tries += 1
            if self.tries <= 2:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().table(skip)

    async with lab.engine(*shell("exec sleep 1000")) as engine:
        engine._family.proc = starved = Starved()
        assert [member.pid for member in await engine.members()] == [engine.pid]
        assert starved.tries == 3


async def test_kill_overtakes_a_fork_bomb(lab: Lab) -> None:
    """Members forked while we kill are looked for again; each is in a session of its own."""
    async with lab.engine(*python("bomb.py", "9")) as engine:

        async def many() -> bool:
            return len(await engine.members()) > 30

        await aeventually(many, PATIENCE)
        assert await engine.signal(Sig.KILL) > 30
        await gone(engine)


async def test_dead_orphans_are_reaped(lab: Lab) -> None:
    """As subreaper we become the parent of the engine's orphans; nobody else takes their zombies away."""
    async with lab.engine(*shell("for i in 1 2 3; do (sleep 0.01 &); done; exec sleep 1000")) as engine:

        async def reaped() -> bool:
            await engine.members()
            table = Proc().table().values()
            return not [stat for stat in table if stat.session == engine.pid and stat.gone]

        await aeventually(reaped, PATIENCE)
        await members(engine, "sleep")


async def test_children_of_the_daemon_itself_are_no_members(lab: Lab) -> None:
    """Another part of the daemon may run a command; it stays in the daemon's session."""
    async with lab.engine(*shell("exec sleep 1000")) as engine:
        other = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})  # noqa: ASYNC221  it does not wait
        try:
            await members(engine, "sleep")
            await engine.signal(Sig.KILL)
            await gone(engine)
            assert alive(other)
        finally:
            end(other)
            os.waitpid(other, 0)  # noqa: ASYNC222  it was just killed


async def test_two_generations_do_not_mix(lab: Lab) -> None:
    """Not even members that are known by nothing but their marker.

    No daemon has two at once. Where one does, an orphan whose environment is blank may be either's, and amid its exec
    any is blank: none is looked for while the other's still are at that.
    """
    script = shell("(setsid sleep 1000 &) ; exec sleep 1000")
    first, second = lab.launcher(script), lab.launcher(script)

    async def settled(engine: ProcessTree) -> list[int]:
        pids = await members(engine, "sleep", "sleep")
        mark = lab.instance().encode()
        eventually(lambda: all(mark in (Proc().environ(pid) or b"") for pid in pids), PATIENCE)
        return pids

    async with ending(await first.spawn(1)) as one:
        ours = await settled(one)
        async with ending(await second.spawn(2)) as two:
            theirs = await settled(two)
            assert await members(one, "sleep", "sleep") == ours
            assert not set(ours) & set(theirs)
