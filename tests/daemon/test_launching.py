"""What a launch needs, what it hands to the engine, and what happens while it cannot be made."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.proc import descriptors
from tests.rig import Rig

Make = Callable[..., Rig]

# Root may write anywhere; without its capabilities it is a user like others, who owns what root owns.
PLAIN_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


def blocked(rig: Rig, kind: str, words: str) -> None:
    def there() -> bool:
        blocker = rig.status()["blocker"]
        return blocker is not None and blocker["kind"] == kind and words in blocker["why"] and blocker["remedy"] != ""

    rig.until(there, what=f"a launch blocked by {kind}: {words}")
    assert words in rig.status()["phase"]["detail"]


def proc_status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_a_launcher_that_comes_and_goes(pliable: Make) -> None:
    """Missing, a folder, not executable, without its interpreter: each is told, tried again, and is no start."""
    rig = pliable()
    script = rig.folder / "bin" / "serve"
    rig.config["engine"]["vllm"] |= {"launcher": ["./bin/serve", "serve"], "cwd": str(rig.folder)}
    rig.start()
    blocked(rig, "launcher", "does not exist")
    script.mkdir(parents=True)
    blocked(rig, "launcher", "is not a file")
    script.rmdir()
    script.write_text("#!/no/such/interpreter\n")
    blocked(rig, "launcher", "is not executable")
    script.chmod(0o755)
    blocked(rig, "launcher", "interpreter")
    assert rig.metric("vllm_supervisor_starts_total") == 0
    assert rig.status()["restarts"]["consecutive"] == 0
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m vllm_supervisor.simulator "$@"\n')
    status = rig.wait_state("ready")
    assert status["blocker"] is None
    assert rig.metric("vllm_supervisor_starts_total") == 1
    assert status["restarts"]["total"] == 0
    assert psutil.Process(rig.leader()).cwd() == str(rig.folder)


def test_our_own_name_is_this_installation(make_rig: Make) -> None:
    """`launcher: [vllm-supervisor, simulate, serve]` runs without an activated environment, as the demo does."""
    rig = make_rig({"launcher": ["vllm-supervisor", "simulate", "serve"], "stop": {"drain_timeout": 0}})
    shell = shutil.which("sh")
    assert shell is not None
    rig.start(environ={"PATH": str(Path(shell).parent)})
    rig.wait_state("ready")
    assert rig.cli("wait", "--timeout", "0").returncode == 0


def test_a_shell_that_stays_as_parent(pliable: Make) -> None:
    """Below a shell that does not exec, the engine is ready, stopped, and its end a crash with the shell's code."""
    rig = pliable()
    rig.config["engine"]["vllm"]["launcher"] = rig.launch_script('"$@"; code=$?; exit $code')
    rig.simulate(state_dir=rig.folder / "sim")
    rig.log = rig.folder / "new" / "folders" / "vllm.log"
    rig.config["engine"]["vllm"]["log_file"] = str(rig.log)
    ignoring = ["sh", "-c", 'trap "" HUP INT QUIT PIPE USR1 TERM CHLD TSTP; exec "$@"', "sh"]
    rig.start(prefix=ignoring)
    rig.wait_state("ready")
    shell = rig.leader()
    assert Path(f"/proc/{shell}/comm").read_text().strip() == "sh"

    # What the engine gets, seen at the shell, which changes none of it.
    # 32 and 33 are glibc's own: its posix_spawn, as make uses it, leaves them ignored, and no program can change that.
    assert int(proc_status(shell)["SigIgn"], 16) & ~(0b11 << 31) == 0
    assert int(proc_status(shell)["SigBlk"], 16) == 0
    fds = descriptors(shell)
    assert (fds.pop(0), fds.pop(1), fds.pop(2)) == ("/dev/null", str(rig.log), str(rig.log))
    assert set(fds.values()) <= {str(rig.folder / "launch.sh")}
    assert os.getsid(shell) == os.getpgid(shell) == shell
    environ = psutil.Process(shell).environ()
    assert not [name for name in environ if name.startswith("VLLM_SUPERVISOR")]
    assert environ["SPT_NOENV"] == "1"
    # The simulator noted every process of its tree; we know each by its marker, retitled or not.
    noted = {int(line.split()[0]) for line in (rig.folder / "sim" / "pids").read_text().splitlines()}
    assert noted | {shell} == {process.pid for process in rig.members()}

    server = next(process for process in psutil.Process(shell).children() if process.name().startswith("vllm"))
    server.kill()
    status = rig.wait_state("ready", after=1)
    assert (status["last_exit"]["code"], status["last_exit"]["reason"]) == (128 + signal.SIGKILL, "crash")
    old = noted & {process.pid for process in rig.members()}
    assert old == set(), "a stray"
    rig.post("stop")
    rig.wait_state("stopped")
    assert rig.members() == []


@pytest.mark.skipif(bool(PLAIN_USER) and shutil.which("setpriv") is None, reason="as root, setpriv is needed")
def test_a_log_that_cannot_be_written(pliable: Make) -> None:
    """At the daemon's start it is a wrong configuration; later it blocks, names the file, and passes."""
    rig = pliable()
    folder = rig.folder / "logs"
    folder.mkdir(mode=0o555)
    rig.log = folder / "vllm.log"
    rig.config["engine"]["vllm"]["log_file"] = str(rig.log)
    rig.start(wait=False, prefix=PLAIN_USER)
    assert rig.wait_exit() == 2
    line = rig.daemon_log().strip()
    assert "\n" not in line
    assert "engine.vllm.log_file" in line
    assert str(folder) in line

    folder.chmod(0o755)
    rig.log.write_text("what was there before\n")
    rig.start(prefix=PLAIN_USER)
    rig.wait_state("ready")
    rig.log.chmod(0o444)
    rig.post("restart")
    blocked(rig, "log_file", str(rig.log))
    rig.log.chmod(0o644)
    rig.wait_state("ready", after=1)
    lines = rig.engine_log().splitlines()
    assert lines[0] == "what was there before"
    assert sum("Application startup complete" in line for line in lines) == 2


def test_a_log_that_became_a_fifo(pliable: Make) -> None:
    """At the daemon's start it is a wrong configuration; later it blocks, and neither a command nor the end waits."""
    rig = pliable()
    os.mkfifo(rig.log)
    rig.start(wait=False)
    assert rig.wait_exit() == 2
    assert "it is a FIFO" in rig.daemon_log()
    rig.log.unlink()
    rig.start()
    rig.wait_state("ready")
    rig.log.unlink()
    os.mkfifo(rig.log)
    os.kill(rig.leader(), signal.SIGKILL)
    blocked(rig, "log_file", "it is a FIFO")
    assert rig.status()["blocker"]["remedy"].startswith("remove it, or ")
    assert rig.cli("logs", "-n", "2").stdout == ""
    assert rig.stop() == 0
    rig.log.unlink()


def test_a_state_directory_that_cannot_be_written_to(pliable: Make) -> None:
    """A launch that cannot be noted is not made: nobody could find its engine afterwards."""
    rig = pliable()
    rig.start()
    rig.wait_state("ready")
    kept = rig.state_dir / "engine.json"
    moved = rig.folder / "moved"
    rig.post("stop")
    rig.wait_state("stopped")
    rig.state_dir.rename(moved)
    rig.state_dir.touch()
    rig.post("start")
    status = rig.wait_state("backoff")
    assert str(kept.parent) in status["blocker"]["why"]
    assert len(rig.events("spawned")) == 1
    rig.state_dir.unlink()
    moved.rename(rig.state_dir)
    rig.wait_state("ready")


def test_ipv6_and_no_metrics_address(make_rig: Make) -> None:
    """An address of IPv6 is bound, probed and advertised in brackets; without a metrics address there is none."""
    rig = make_rig({"host": "::1", "stop": {"drain_timeout": 0}}, metrics={"enabled": False})
    rig.start()
    status = rig.wait_state("ready")
    assert status["base_url"] == f"http://[::1]:{rig.port}"
    listening = {tuple(c.laddr) for c in psutil.net_connections("tcp") if c.pid in {rig.pid, status["pid"]}}
    assert listening == {("::1", rig.port)}
    assert rig.metric("vllm_supervisor_ready") == 1, "on the socket they stay"


def test_environment_and_options_over_the_file(make_rig: Make) -> None:
    """`--set` wins over the environment, which wins over the file."""
    rig = make_rig({"port": 1, "concurrency": 3, "timeout": 7, "stop": {"drain_timeout": 0}})
    rig.start(
        "--set", f"engine.vllm.port={rig.port}", "--set", "engine.vllm.model_aliases={a: demo/model}",
        environ={"VLLM_SUPERVISOR__ENGINE__VLLM__PORT": "2", "VLLM_SUPERVISOR__ENGINE__VLLM__CONCURRENCY": "4"},
    )  # fmt: skip
    status = rig.wait_state("ready")
    assert (status["base_url"], status["concurrency"], status["timeout"]) == (f"http://127.0.0.1:{rig.port}", 4, 7)
    assert [model["name"] for model in rig.get("/v1/models")["models"]] == ["demo/model", "a"]
