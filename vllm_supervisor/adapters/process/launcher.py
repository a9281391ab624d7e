"""Brings an engine into being, and finds what an earlier daemon left."""

import errno
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from anyio import from_thread, to_thread

from vllm_supervisor.adapters.process import kernel, pidfd
from vllm_supervisor.adapters.process.engine import Leader, ProcessTree, held_leader
from vllm_supervisor.adapters.process.family import Family, Origin, newest_launch
from vllm_supervisor.adapters.process.lock import StateLock
from vllm_supervisor.adapters.process.outlet import Outlet, open_log
from vllm_supervisor.adapters.process.port import port_blocker
from vllm_supervisor.adapters.process.procfs import Proc, Stat
from vllm_supervisor.adapters.process.record import Identity, Record, Records
from vllm_supervisor.adapters.process.rpcfolder import RpcFolders
from vllm_supervisor.adapters.process.spawn import launch
from vllm_supervisor.config.launcher import LauncherMissing, find_launcher
from vllm_supervisor.domain.model import Blocker, BlockerKind
from vllm_supervisor.domain.spec import MARKER, LaunchSpec
from vllm_supervisor.errors import AlreadyRunningError, ConfigError, LaunchError, SupervisorError
from vllm_supervisor.ports import Level, Note, log_problem


def _ignore(_note: Note) -> None:
    pass


class EngineLauncher:
    """Implements `ports.Launcher`.

    The caller holds the lock of `state_dir`, has called `normalize_signals`, and `become_subreaper` where orphans are
    to be seen. `note` is told, from the loop, what is no failure of the launch. `lock` is renewed where the directory
    was removed.
    Raises SupervisorError where the instance's name can be neither read nor written.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        state_dir: Path,
        *,
        note: Callable[[Note], None] = _ignore,
        rotate: Callable[[], object] = lambda: None,
        lock: StateLock | None = None,
        proc: Proc | None = None,
    ) -> None:
        self.spec = spec
        self._note = note
        self._proc = proc or Proc()
        self._state_dir = state_dir
        self._lock = lock
        self._records = Records(state_dir)
        try:
            self.instance = self._records.instance()
            """The name of this instance, made up once for ever."""
        except OSError as exc:
            raise SupervisorError(
                f"state directory {state_dir}", (exc.strerror or str(exc)).lower(), "make room, or make it writable"
            ) from exc
        self._outlet = Outlet(spec.log_file, self.instance, rotate)
        self._own = os.getpid()
        self._folders = RpcFolders(self.instance)

    def last_generation(self) -> int:
        """Return the number of the last launch of this instance, by whichever daemon; 0 when none is known."""
        record = self._read()
        return record.generation if record else 0

    async def hold(self) -> Blocker | None:
        """Begin the state directory anew where it was removed. Say who has it where another daemon took it meanwhile.

        A later daemon finds our engine by the instance's name, which is kept there.
        """
        return await to_thread.run_sync(self._hold, abandon_on_cancel=True)

    async def check(self) -> Blocker | None:
        """Say what stands in the way of a launch now: state directory, launcher, working directory, log file, port."""
        return await to_thread.run_sync(self._check, abandon_on_cancel=True)

    async def spawn(self, generation: int) -> ProcessTree:
        """Launch. Raises LaunchError, and then no process is left behind. Not cancelled half-way."""
        return await to_thread.run_sync(self._spawn, generation)  # anyio shields it

    async def leftover(self) -> ProcessTree | None:
        """Return the engine of an earlier, dead daemon of this instance, if it lives or nobody examined its end.

        In the latter case it has no members.
        Raises AlreadyRunningError where the daemon that launched it lives: then it is not ours to touch. That is the
        second net under the lock, for state directories on file systems whose locks do not hold.
        """
        record = self._read()
        return await to_thread.run_sync(self._leftover, record)  # anyio shields it

    def forget(self, generation: int) -> None:
        """Note that this generation is gone and its end examined, so that no later daemon looks for either."""
        self._folders.remove()
        record = self._read()
        if record is None or record.generation != generation or self._living_other(record):
            return
        try:
            self._records.write(replace(record, gone=True))
        except OSError as exc:  # a later daemon looks, and finds nothing
            self._note(Note("state_not_written", Level.WARNING, {"why": str(exc)}))

    def _read(self) -> Record | None:
        record = self._records.read()
        if isinstance(record, str):
            self._note(Note("state_not_read", Level.WARNING, {"why": record}))
            return None
        return record

    def _hold(self) -> Blocker | None:
        kind, remedy = BlockerKind.STATE_DIR, "make it writable, or make room"
        try:
            if self._lock is None:
                return None
            renewed = self._lock.renew()
            # Also where an earlier look got no further than the lock: a full disk, say.
            if not self._records.keep(self.instance) and not renewed:
                return None
        except AlreadyRunningError as exc:
            why = f"{exc.what} was removed, and is {exc.why}"
            return Blocker(kind, why, "stop that daemon, or this one and set another state_dir")
        except ConfigError as exc:
            return Blocker(kind, exc.problems[0].why, exc.problems[0].remedy)
        except OSError as exc:
            return Blocker(kind, f"state directory {self._state_dir}: {exc.strerror}", remedy)
        fields: dict[str, object] = {"path": str(self._state_dir)}
        if self._records.read() is None:
            fields["lost"] = "bundles, and what was seen of configurations and starts"
        from_thread.run_sync(self._note, Note("state_dir_renewed", Level.WARNING, fields))
        return None

    def _check(self) -> Blocker | None:
        held = self._hold()
        if held is not None:
            return held
        spec = self.spec
        found = find_launcher(spec)
        if isinstance(found, LauncherMissing):
            return Blocker(BlockerKind.LAUNCHER, found.why, found.remedy)
        try:
            os.close(open_log(spec.log_file))
        except OSError as exc:
            why = f"{spec.log_file} cannot be opened: {exc.strerror}"
            first = "remove it" if exc.errno == errno.EINVAL else "make it writable"
            return Blocker(BlockerKind.LOG_FILE, why, f"{first}, or set engine.vllm.log_file")
        return port_blocker(self._proc, spec.host, spec.port)

    def _spawn(self, generation: int) -> ProcessTree:
        found = find_launcher(self.spec)
        if isinstance(found, LauncherMissing):
            raise LaunchError(f"launcher {self.spec.argv[0]}", found.why, found.remedy)
        mark = f"{self.instance}.{generation}"
        record = Record(generation, self._proc.boot_id(), self._me())
        self._write(record)
        self._prepare_log(generation)
        log_start = self._outlet.begin(generation)
        env = {**self.spec.env, **self._folders.make(generation, self.spec.env), MARKER: mark}
        log = self._open_log(generation)
        try:
            pid = launch(found, self.spec, env, log)
        finally:
            os.close(log)
        try:
            start = self._start_of(pid)
            self._write(replace(record, leader=Identity(pid, start), log_start=log_start))
            leader = Leader(pid, os.pidfd_open(pid), child=True)
        except (OSError, LaunchError) as exc:
            _undo(pid)
            if isinstance(exc, LaunchError):
                raise
            raise LaunchError(f"launcher {self.spec.argv[0]}", str(exc), "see the limits of this host") from exc
        origin = Origin(
            leader=pid,
            born=start,
            marks=(mark,),
            adopter=self._own if kernel.is_subreaper() else None,
            session=os.getsid(0),
        )
        family = Family(self._proc, origin, self._own)
        return ProcessTree(
            generation, leader, family, self.spec.host, log_start, partial(self._outlet.ended, generation)
        )

    def _prepare_log(self, generation: int) -> None:
        """Begin this generation's part of the log, to which nobody writes now. What fails here hinders no launch."""
        try:
            self._outlet.prepare(generation)
        except OSError as exc:
            detail = f"{self.spec.log_file}: {exc.strerror or exc}"
            fields = {"problem": log_problem(exc.errno).value, "detail": detail}
            from_thread.run_sync(self._note, Note("log_not_prepared", Level.WARNING, fields))

    def _open_log(self, generation: int) -> int:
        path = self.spec.log_file
        try:
            return self._outlet.open(generation)
        except OSError as exc:
            raise LaunchError("log file", f"{path}: {exc.strerror}", "see engine.vllm.log_file") from exc

    def _write(self, record: Record) -> None:
        try:
            self._records.write(record)
        except OSError as exc:
            remedy = "create it" if exc.errno == errno.ENOENT else "make room, or make it writable"
            raise LaunchError("state directory", str(exc), remedy, errno=exc.errno) from exc

    def _start_of(self, pid: int) -> int:
        """Return when our child was launched. Its zombie stays until we reap it, so `pid` is certainly the child's."""
        stat = self._proc.stat(pid)
        if stat is None:
            raise OSError(errno.ECHILD, "the exit of the launcher was taken by somebody else")
        return stat.start

    def _me(self) -> Identity:
        stat = self._proc.stat(self._own)
        if stat is None:
            raise LaunchError("/proc", "does not show this daemon", "mount it without hidepid for this user")
        return Identity(self._own, stat.start)

    def _living_other(self, record: Record) -> bool:
        """Say whether another daemon than ours launched it, and lives: then it is not ours to touch."""
        daemon = self._proc.stat(record.daemon.pid)
        if daemon is None or daemon.pid == self._own or daemon.gone:
            return False
        return daemon.start == record.daemon.start and record.boot_id == self._proc.boot_id()

    def _leftover(self, record: Record | None) -> ProcessTree | None:
        if record is not None and record.boot_id == self._proc.boot_id():
            if self._living_other(record):
                what, why = "the engine of this instance", f"its daemon lives as pid {record.daemon.pid}"
                raise AlreadyRunningError(what, why, "stop that daemon, or set another state_dir")
            if record.gone:
                return None
            leader = record.leader
            born = leader.start if leader else record.daemon.start
        elif record is not None:
            return None
        else:
            leader, born = None, 0
        # Any generation of this instance: with the lock held and the daemon dead, whoever bears its name is left over.
        origin = Origin(leader.pid if leader else None, born, (f"{self.instance}.",))
        family = Family(self._proc, origin, self._own)
        found = [stat for stat in family.look() if not stat.gone]
        if not found and leader is None:
            return None
        generation = record.generation if record else newest_launch(self._proc, found)
        head = leader or _head(found)
        tree = self._head_of(found, head)
        return ProcessTree(generation, tree, family, self.spec.host, record.log_start if record else 0)

    def _head_of(self, living: Sequence[Stat], head: Identity) -> Leader:
        """Return the leader. One whose zombie is not reaped yet has ended like one that is gone."""
        if any((stat.pid, stat.start) == (head.pid, head.start) for stat in living):
            return held_leader(self._proc, head.pid, head.start, child=self._is_ours(head))
        return Leader(head.pid, None, child=self._is_ours(head))

    def _is_ours(self, head: Identity) -> bool:
        stat = self._proc.stat(head.pid)
        return stat is not None and stat.start == head.start and stat.parent == self._own


def _head(found: list[Stat]) -> Identity:
    """Choose the leader among members of which none was noted: the head of a session, else the oldest."""
    first = min(found, key=lambda stat: (stat.pid != stat.session, stat.start, stat.pid))
    return Identity(first.pid, first.start)


def _undo(pid: int) -> None:
    """End a launch that could not be completed. The child is unreaped, so the group is certainly its own."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.killpg(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        pidfd.reap(pid)
