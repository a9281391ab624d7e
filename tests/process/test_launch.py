"""What a child is given, and what is said when it cannot be launched."""

import json
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.process.lab import PATIENCE, Lab, content, daemon, ending, gone, python, shell
from vllm_supervisor.adapters.process import EngineLauncher
from vllm_supervisor.adapters.process.outlet import Outlet, open_log
from vllm_supervisor.adapters.process.procfs import Proc, Stat
from vllm_supervisor.adapters.process.spawn import launch
from vllm_supervisor.domain.model import ExitStatus
from vllm_supervisor.errors import LaunchError, SupervisorError


def shown(lab: Lab) -> dict[str, object]:
    lines = content(lab.log).splitlines()
    data: dict[str, object] = json.loads(next(line for line in lines if line.startswith("{")))
    return data


@pytest.mark.asyncio
async def test_child_gets_what_was_promised_and_nothing_besides(lab: Lab, tmp_path: Path) -> None:
    """Own session and group, null stdin, the log as output, no inherited descriptor, the marker, the directory."""
    extra = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(extra, True)
    try:
        launcher = lab.launcher(python("show.py"), cwd=str(tmp_path))
        async with ending(await launcher.spawn(3)) as engine:
            assert await engine.wait_leader() == ExitStatus(code=0)
    finally:
        os.close(extra)
    seen = shown(lab)
    assert seen["pid"] == seen["session"] == seen["group"] == engine.pid
    assert seen["fds"] == {"0": "/dev/null", "1": str(lab.log), "2": str(lab.log)}
    assert seen["cwd"] == str(tmp_path)
    assert seen["env"] == {
        "PATH": os.environ["PATH"],
        "SUPERVISED_ENGINE": f"{lab.instance()}.3",
        "LC_CTYPE": "C.UTF-8",
        "VLLM_RPC_BASE_PATH": "/nowhere",
    }
    assert "on stderr" in lab.log.read_text()
    assert stat.S_IMODE(lab.log.stat().st_mode) & ~0o640 == 0


@pytest.mark.asyncio
async def test_log_is_appended_to(lab: Lab) -> None:
    """A relaunch does not destroy what the failed engine said."""
    lab.log.parent.mkdir()
    lab.log.write_text("before\n")
    async with lab.engine(*shell("echo after")) as engine:
        await gone(engine)
    first, mark, last = lab.log.read_text().splitlines()
    assert (first, last) == ("before", "after")
    assert mark.startswith("[vllm-supervisor] generation 1 is launched at ")


DEAF = """
import os, signal, sys
for number in {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM, signal.SIGUSR2])
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_dispositions_are_default_although_the_daemon_was_started_deaf(lab: Lab) -> None:
    """Under `nohup`, or after `&` in a script, the daemon ignores signals; its engine must not."""
    with daemon(lab, "cat", "/proc/self/status", prefix=(sys.executable, "-c", DEAF)):
        lines = eventually(lambda: [line for line in content(lab.log).splitlines() if line.startswith("Sig")], PATIENCE)
    seen = dict(line.split(":\t") for line in lines)
    # 32 and 33 are glibc's own: its posix_spawn, as make uses it, leaves them ignored, and no program can change that.
    assert int(seen["SigIgn"], 16) & ~(0b11 << 31) == 0
    assert int(seen["SigBlk"], 16) == 0


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
def test_a_fifo_is_no_log(tmp_path: Path, read: bool) -> None:
    """To open one waits for its reader, and the thread that waits keeps the daemon from ending."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if read else -1
    try:
        with pytest.raises(OSError, match="it is a FIFO"):
            open_log(str(path))
    finally:
        if read:
            os.close(reader)


def test_a_log_that_is_written_to_may_block(tmp_path: Path) -> None:
    """A terminal that is slow, or a full pipe behind it, must not make the engine's writes fail."""
    log = open_log(str(tmp_path / "log"))
    try:
        assert os.get_blocking(log)
    finally:
        os.close(log)


def test_journal_stream_begins_as_journald_expects(tmp_path: Path) -> None:
    """`log_file: journal`: the engine writes to journald itself, so its lines outlive the daemon there too."""
    path = str(tmp_path / "stdout")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen()
        stream = open_log("journal", path)
        accepted, _ = server.accept()
        with accepted:
            os.write(stream, b"a line\n")
            os.close(stream)
            with accepted.makefile("rb") as received:
                assert received.read() == b"vllm\n\n6\n0\n0\n0\n0\na line\n"


def test_a_generations_part_of_the_journal_is_marked(tmp_path: Path) -> None:
    """The first line of its stream, and the last one once all of it is gone, are ours; between them it writes."""
    path = str(tmp_path / "stdout")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen()
        outlet = Outlet("journal", "me", journal=path)
        outlet.prepare(3)
        assert outlet.begin(3) == 3
        log = outlet.open(3)
        accepted, _ = server.accept()
        with accepted:
            os.write(log, b"a line\n")
            os.close(log)
            outlet.ended(3)
            outlet.ended(3)
            with accepted.makefile("rb") as received:
                ours, lines = b"[vllm-supervisor] generation 3 is ", received.read().splitlines()[7:]
        assert lines == [ours + b"launched by instance me", b"a line", ours + b"gone"]


@pytest.mark.asyncio
@pytest.mark.parametrize("argv", [("no-such-launcher",), ("./no-such-launcher",)])
async def test_missing_launcher_raises_and_leaves_nothing(lab: Lab, argv: tuple[str, ...]) -> None:
    """The message says where it was looked for."""
    with pytest.raises(LaunchError, match=r"PATH searched: /|/no-such-launcher does not exist"):
        await lab.launcher(argv).spawn(1)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "why"),
    [("#!/no/such/interpreter\n", "names an interpreter that does not exist"), ("nothing", "neither a program nor")],
)
async def test_script_that_cannot_be_executed_is_explained(lab: Lab, tmp_path: Path, text: str, why: str) -> None:
    """A venv that was moved has launchers whose interpreter is missing: exec says only `no such file`."""
    script = tmp_path / "vllm"
    script.write_text(text)
    script.chmod(0o755)
    with pytest.raises(LaunchError, match=why) as caught:
        await lab.launcher((str(script),)).spawn(1)
    assert caught.value.errno is not None


@pytest.mark.asyncio
async def test_launch_that_cannot_be_noted_leaves_no_process(lab: Lab) -> None:
    """An engine that no later daemon could find must not run."""
    launcher = lab.launcher(shell("sleep 1000"))
    (lab.state_dir / "engine.json").mkdir()
    with pytest.raises(LaunchError, match="state directory"):
        await launcher.spawn(1)


@pytest.mark.asyncio
async def test_arguments_and_directories_that_cannot_be_are_explained(lab: Lab, tmp_path: Path) -> None:
    """Each with the key to correct, also what was in order when it was looked for a moment before."""
    with pytest.raises(LaunchError, match=r"null.*correct engine\.vllm\.launcher and extra_args"):
        await lab.launcher(("sleep", "1\x00")).spawn(1)
    with pytest.raises(LaunchError, match=r"nowhere does not exist; correct engine\.vllm\.cwd"):
        launch("/bin/sleep", lab.spec(("sleep", "1"), cwd=str(tmp_path / "nowhere")), {}, 2)
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    with pytest.raises(LaunchError, match="Permission denied"):
        launch(str(folder), lab.spec((str(folder),)), {}, 2)


class Hides(Proc):
    """A process table in which some processes are not to be seen."""

    def __init__(self, *, me: bool) -> None:
        super().__init__()
        self._me = me

    def stat(self, pid: int) -> Stat | None:
        return None if (pid == os.getpid()) == self._me else super().stat(pid)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("me", "why"), [(True, "/proc: does not show this daemon"), (False, "the exit of the launcher was taken")]
)
async def test_a_launch_that_cannot_be_followed_leaves_no_process(lab: Lab, *, me: bool, why: str) -> None:
    """Neither before the engine runs nor once it does; the fixture sees that nothing is left."""
    launcher = EngineLauncher(lab.spec(shell("sleep 1000")), lab.state_dir, proc=Hides(me=me))
    with pytest.raises(LaunchError, match=why):
        await launcher.spawn(1)


def test_a_state_directory_that_cannot_be_used(lab: Lab) -> None:
    """One line that names it and what to do."""
    (lab.state_dir / "instance-id").mkdir()
    with pytest.raises(SupervisorError, match=r"state directory .*state: is a directory; make room"):
        lab.launcher(shell("true"))


@pytest.mark.asyncio
async def test_an_end_that_cannot_be_noted_is_told(lab: Lab) -> None:
    """A later daemon looks, and finds nothing: no reason to end this one."""
    launcher = lab.launcher(shell("true"))
    async with ending(await launcher.spawn(1)) as engine:
        await gone(engine)
    (lab.state_dir / "engine.json.new").mkdir()
    launcher.forget(1)
    assert [(note.kind, "Is a directory" in str(note.fields["why"])) for note in lab.notes] == [
        ("state_not_written", True)
    ]
