"""What a child is given, and what is said when it cannot be launched."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.process.lab import PATIENCE, Lab, content, daemon, ending, gone, python, shell
from vllm_supervisor.adapters.process import find_executable
from vllm_supervisor.domain.model import Blocker, ExitStatus
from vllm_supervisor.errors import LaunchError


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
    assert lab.log.read_text() == "before\nafter\n"


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
    assert int(seen["SigIgn"], 16) == 0
    assert int(seen["SigBlk"], 16) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("argv", [("no-such-launcher",), ("./no-such-launcher",)])
async def test_missing_launcher_raises_and_leaves_nothing(lab: Lab, argv: tuple[str, ...]) -> None:
    """The message says where it was looked for."""
    with pytest.raises(LaunchError, match=r"PATH searched: /|looked at /"):
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


def test_launcher_is_looked_up_on_the_engines_path(lab: Lab, tmp_path: Path) -> None:
    """Not on the daemon's: `engine.vllm.env` may point into another environment."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    spec = lab.spec(("vllm",), cwd=str(tmp_path))
    spec.env["PATH"] = f"/nowhere:{tmp_path}/bin"  # type: ignore[index]  # a plain dictionary here
    found = find_executable(spec)
    assert isinstance(found, Blocker)
    assert f"{program} is not executable" in found.why
    program.chmod(0o755)
    assert find_executable(spec) == str(program)
    spec.env["PATH"] = "bin"  # type: ignore[index]  # as above
    assert find_executable(spec) == str(program)
