"""One daemon among chaos: its folders, its user, its observer, and the states it can be brought to."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from tests.chaos import sight
from tests.chaos.books import Books
from tests.chaos.grounds import as_user
from tests.chaos.judge import Judge
from tests.chaos.table import RUN, Table, engines, orphans
from tests.rig import NotInTimeError, Rig, Status

STATES = ("ready", "starting", "unhealthy", "stopping", "stopped", "backoff", "failed")
BACK_WITHIN = 45.0
"""Seconds in which a daemon must have a ready engine again once a fault is over: ten times what is usual."""
_SETTLED = 0.3
"""Seconds for which a state must last: a death may not have been noticed yet."""
_CLOCK = Path(__file__).with_name("clock")
_LAUNCH = """echo $$ >> {folder}/launched
export CHAOS_ENGINE=$$
# A shell anew, since what it forks shall bear the name from the first moment.
if [ -n "$CHAOS_STRAY" ]; then exec /bin/sh -c '(setsid env -i /bin/sleep 300 &); exec "$@"' sh "$@"; fi
if [ -n "$CHAOS_HOSTILE" ]; then exec {python} -m tests.chaos.hostile {port} {folder}/mode; fi
exec "$@\""""


class World:
    """A daemon, started and restarted, watched all the time. `user`: the uid that it runs as, None for our own."""

    def __init__(self, folder: Path, judge: Judge, *, user: int | None, mounts: bool) -> None:
        self.folder = folder
        self.judge = judge
        self.user = user
        self.clock = folder / "clock"
        """By how many seconds the daemon's own wall clock is wrong; see `clock/sitecustomize.py`."""
        self.mounts = mounts
        self.ill = folder / "ill"
        self.mode = folder / "mode"
        self.launched = folder / "launched"
        self.token = secrets.token_hex(8)
        self.rig = Rig(folder, self._engine(), control={"socket": str(folder / "control.sock")})
        self.rig.state_dir = folder / "state"
        self.rig.config["engine"]["vllm"]["port"] = self.rig.port
        self.rig.log = folder / "log" / "vllm.log"
        command = _LAUNCH.format(folder=folder, python=sys.executable, port=self.rig.port)
        self.rig.config["engine"]["vllm"]["launcher"] = self.rig.launch_script(command)
        self._books = Books(0)
        self._read = 0
        """Characters of the daemon's log that have been looked at."""
        self._sights: list[sight.Sight] = []
        self._observer: subprocess.Popen[str] | None = None

    def _engine(self) -> dict[str, object]:
        return {
            "log_file": str(self.folder / "log" / "vllm.log"),
            "log": {"max_bytes": "2 MB", "keep": 1},
            "cwd": str(Path.cwd()),
            "env": {
                RUN: self.token,
                "HOME": str(self.folder),
                "PYTHONPATH": "",
                "SIM_MAX_SECONDS": "600",
                "SIM_ENGINE_EXIT_DELAY": "0.3",
            },
            "restart": {"min_backoff": 0.2, "max_backoff": 0.5, "never_ready_limit": 3, "healthy_reset": 5},
            "probe": {"interval": 0.2, "timeout": 0.5, "failure_threshold": 2, "restart_after": 1},
            "liveness": {"interval": 1, "timeout": 3},
            "startup": {"stall_timeout": 5},
            "stop": {"drain_timeout": 1, "grace": 1.5},
        }

    # --- beginning and end

    def open(self) -> None:
        """Make the folders, start the observer and the daemon, and wait for a ready engine."""
        for name in ("log", "state"):
            (self.folder / name).mkdir()
            if self.mounts:
                size = f"size={'6m' if name == 'log' else '32m'},mode=755"
                subprocess.run(["mount", "-t", "tmpfs", "-o", size, "chaos", str(self.folder / name)], check=True)
        for path in (self.folder, self.folder / "log", self.folder / "state"):
            path.chmod(0o755)
            if self.user is not None:
                os.chown(path, self.user, self.user)
        self.clock.write_text("0")
        self.knobs()
        self._observer = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.observer", str(self.folder), self.token, str(self.rig.port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        Thread(target=self._hear, args=(self._observer,), daemon=True).start()
        with self.judge.window("down"):
            self.start()
        self.come_back()

    def _hear(self, observer: subprocess.Popen[str]) -> None:
        assert observer.stdout is not None
        for line in observer.stdout:
            self._sights.append(sight.read(line))

    def see(self) -> None:
        """Hand what was seen until now to the judge."""
        count = len(self._sights)
        seen, self._sights[:count] = self._sights[:count], []
        self.judge.take(seen)

    def close(self) -> int:
        """Have the daemon end, and the observer after it. Returns the daemon's exit status."""
        with self.judge.window("down"):
            status = self.rig.stop(60)
            left = engines(Table(self.token).look()), orphans() if self.mounts else []
            if any(left):
                self.judge.accuse("no process is left", f"after the daemon's end: {left}")
            self.see()
        return status

    def abandon(self) -> list[str]:
        """End whatever lives, by force, and unmount. Returns what had to be forced."""
        left = self.rig.clean_up()
        for entry in Table(self.token).look().values():
            with suppress(ProcessLookupError):
                os.kill(entry.pid, 9)
            left.append(f"stray {entry.pid}")
        if self._observer is not None:
            assert self._observer.stdin is not None
            assert self._observer.stdout is not None
            self._observer.stdin.close()
            self._observer.wait(10)
            self._observer.stdout.close()
        for name in ("log", "state"):
            if self.mounts and os.path.ismount(self.folder / name):
                subprocess.run(["umount", "-l", str(self.folder / name)], check=False)
        return left

    def start(self) -> None:
        """Start the daemon and wait for its socket. Within a window `down`, which is the caller's."""
        self.launch()
        self.rig.wait_answer()

    def launch(self) -> None:
        """Start the daemon, without waiting."""
        self.books_closed()
        environ = {"HOME": str(self.folder), "PYTHONPATH": str(_CLOCK), "CHAOS_CLOCK": str(self.clock)}
        self.rig.start(wait=False, environ=environ, prefix=self.as_user())
        fresh = self.folder / "daemon.pid.new"
        fresh.write_text(f"{self.rig.pid}\n")
        fresh.replace(self.folder / "daemon.pid")

    def as_user(self) -> list[str]:
        """Return what runs a command as the daemon's user."""
        return [] if self.user is None else as_user(self.user)

    # --- states

    def knobs(self, **extra: object) -> None:
        """Set what engines launched from now on do; always ill while `ill` exists."""
        self.rig.simulate(health_status=500, fault_while=self.ill, **extra)

    def reach(self, state: str) -> bool:
        """Bring a daemon whose engine was ready to `state`; say whether it was seen there."""
        try:
            self._bring_to(state)
        except NotInTimeError:
            return False
        finally:
            self.knobs()
        return True

    def _bring_to(self, state: str) -> None:
        rig, generation = self.rig, self.rig.status()["generation"]
        match state:
            case "starting":
                self.knobs(load_seconds=3)
                rig.post("restart", drain=False)
                rig.until(lambda: self._started(generation), what="a start under way")
            case "unhealthy":
                self.ill.touch()
                rig.wait_state("unhealthy")
            case "stopping":
                self.knobs(ignore_sigterm=1)
                rig.post("restart", drain=False)
                rig.wait_state("ready", after=generation)
                rig.post("stop")
                rig.wait_state("stopping")
            case "stopped":
                rig.post("stop", drain=False)
                rig.wait_state("stopped")
            case "backoff" | "failed":
                self.knobs(exit_code=1, exit_phase="import")
                rig.post("restart", drain=False)
                rig.wait_state(state)
            case _:
                pass

    def _started(self, generation: int) -> bool:
        status = self.rig.status()
        return status["state"] == "starting" and status["generation"] > generation and bool(status["pid"])

    def come_back(self) -> Status:
        """Ask for an engine, with all faults over, and wait until it stays ready. Raises NotInTimeError."""
        self.ill.unlink(missing_ok=True)
        self.knobs()
        deadline = time.monotonic() + BACK_WITHIN
        ready: tuple[int, float] | None = None
        """The generation that is ready, and since when."""
        with self.judge.window("calm"):
            while True:
                status = self.rig.try_status()
                if status is None or status["state"] != "ready":
                    ready = None
                elif ready is None or ready[0] != status["generation"]:
                    ready = status["generation"], time.monotonic()
                elif time.monotonic() - ready[1] > _SETTLED:
                    return status
                # What an operator would do: ask again where a fault has led to a stop, or to giving up.
                if status is not None and status["state"] in ("stopped", "stopping", "failed"):
                    with suppress(OSError, AssertionError, ValueError, IndexError):
                        self.rig.post("start", reason="chaos is over")
                if time.monotonic() > deadline:
                    raise NotInTimeError(f"no ready engine within {BACK_WITHIN:g} s: {status}")
                time.sleep(0.05)

    # --- what is held against the daemon

    def books_closed(self) -> None:
        """Note that this daemon's counts end: the next one begins at nothing."""
        self._books = Books(len(self._launches()))

    def audit(self, *, starved: bool) -> None:
        """Compare what is counted; `starved` forgives what the daemon tells of its own failures. Engine ready."""
        while (found := self._books.audit(self.rig, self._launches(), starved=starved)) is None:
            self.come_back()
        for wrong in found:
            self.judge.accuse("counters add up", wrong)
        for wrong in self._books.descriptors(self._descriptors()):
            self.judge.accuse("the daemon lives", wrong)
        log = self.rig.daemon_log()
        if "Traceback" in log[self._read :]:
            self.judge.accuse("a user never sees a traceback", log[self._read :].partition("Traceback")[2][:2000])
        self._read = len(log)

    def _launches(self) -> list[int]:
        try:
            return [int(line) for line in self.launched.read_text().split()]
        except OSError:
            return []

    def _descriptors(self) -> int:
        """Return the least of some looks: a probe on its way has descriptors of its own."""
        counts = []
        for _ in range(5):
            counts.append(len(list(Path(f"/proc/{self.rig.pid}/fd").iterdir())))
            time.sleep(0.005)
        return min(counts)

    # --- what faults need

    def members(self) -> Mapping[str, list[int]]:
        """Return the living processes of each engine."""
        return engines(Table(self.token).look())

    @contextmanager
    def down(self) -> Iterator[None]:
        """A time without a daemon, which ends with one that answers."""
        with self.judge.window("down"):
            yield
            if self.rig.ended():
                self.start()
