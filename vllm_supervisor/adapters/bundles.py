"""Crash bundles: a folder of evidence for each end that nobody asked for, below `crashes/` in the state directory.

A bundle holds no secret: whatever is written goes through the mask. It is worth less than the restart: what it costs is
bounded, and a full disk loses the bundle only.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from anyio import to_thread

from vllm_supervisor.config.regular import open_regular
from vllm_supervisor.domain.masking import Mask
from vllm_supervisor.domain.member import Member
from vllm_supervisor.domain.spec import LaunchSpec

KEEP = 10
MAX_BYTES = 20 * 1000 * 1000
_MAX_LOG = 1024 * 1024
_MAX_FILE = 1500 * 1000
"""Bytes of one file, so that a single bundle never comes near the limit for all."""
_MAX_THREADS = 64
"""Threads of one process whose wait is told."""
_MAX_MEMBERS = 256
_STACKS_WITHIN = 10.0
"""Seconds for the stacks of all members: the engine hangs on meanwhile."""


class StoredBundles:
    """Implements `ports.CrashBundles`. `events` returns the flight recorder; `wall` seconds since the epoch.

    `journal` yields the part of the log that a generation's `log_start` names, where it is no file.
    """

    def __init__(
        self,
        state_dir: Path,
        spec: LaunchSpec,
        events: Callable[[], bytes],
        wall: Callable[[], float] = time.time,
        proc: Path = Path("/proc"),
        *,
        journal: Callable[[int], Iterable[bytes]] | None = None,
    ) -> None:
        self._folder = state_dir / "crashes"
        self._spec = spec
        self._mask = Mask(spec)
        self._events = events
        self._wall = wall
        self._proc = proc
        self._journal = journal
        self._begun: tuple[int, Path] | None = None

    async def photograph(self, generation: int, facts: Mapping[str, object], members: Iterable[Member]) -> str:
        """Keep `facts`, and what the members are doing; return the folder. Raises OSError, and leaves nothing then."""
        return await to_thread.run_sync(
            self._photograph, generation, dict(facts), tuple(members), abandon_on_cancel=True
        )

    async def write(
        self,
        generation: int,
        report: Mapping[str, object],
        processes: Sequence[Mapping[str, object]],
        log_start: int,
    ) -> str:
        """Keep the rest of this generation's evidence; return the folder. Raises OSError, and adds nothing then.

        `processes` is its process table, which counts where no photograph was taken.
        """
        events = self._events()
        work = partial(self._write, generation, dict(report), list(processes), events, log_start)
        return await to_thread.run_sync(work, abandon_on_cancel=True)

    def _photograph(self, generation: int, facts: dict[str, object], members: tuple[Member, ...]) -> str:
        members = members[:_MAX_MEMBERS]
        processes = [self._process(member) for member in members]
        stacks = _stacks([member.pid for member in members])
        folder = self._new(generation, str(facts.get("cause", "unknown")))
        files = {"photograph.json": self._json(facts), "processes.json": self._json(processes)}
        if stacks:
            files["stacks.txt"] = self._mask.text(stacks)
        self._fill(folder, files)
        self._begun = (generation, folder)
        return str(folder)

    def _write(
        self,
        generation: int,
        report: dict[str, object],
        processes: list[Mapping[str, object]],
        events: bytes,
        log_start: int,
    ) -> str:
        begun, self._begun = self._begun, None
        files = {}
        if begun is not None and begun[0] == generation and begun[1].is_dir():
            folder = begun[1]
        else:
            folder = self._new(generation, str(report.get("cause", "unknown")))
            files["processes.json"] = self._json(processes)
        launch = {"argv": self._mask.argv(), "cwd": self._spec.cwd, "env": self._mask.env()}
        files |= {
            "report.json": self._json(report),
            "diagnosis.json": self._json(report.get("diagnosis")),
            "launch.json": self._json(launch),
            "events.jsonl": self._mask.text(events.decode("utf-8", "replace")),
        }
        log = self._log_tail(log_start)
        if log is not None:
            files["vllm.log"] = self._mask.text(log)
        self._fill(folder, files)
        return str(folder)

    def _new(self, generation: int, cause: str) -> Path:
        """Make room, and return the folder of a bundle, not made yet."""
        self._prune(KEEP - 1, MAX_BYTES // 2)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._wall()))
        return self._folder / f"{stamp}-{generation}-{cause}"

    def _fill(self, folder: Path, files: Mapping[str, str]) -> None:
        written = []
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, text in files.items():
                data = text.encode("utf-8", "replace")
                written.append(folder / name)
                fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "wb") as file:
                    file.write(data[-_MAX_FILE:] if name == "vllm.log" else data[:_MAX_FILE])
        except OSError as error:
            # What was kept before (a photograph) stays.
            for path in written:
                path.unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()
            raise OSError(error.errno, error.strerror, str(folder)) from error
        self._prune(KEEP, MAX_BYTES)

    def _json(self, value: object) -> str:
        return json.dumps(self._masked(value), indent=1, ensure_ascii=False, default=str) + "\n"

    def _masked(self, value: object) -> object:
        """Mask every string before it is quoted: a secret with a quote in it looks different afterwards."""
        if isinstance(value, str):
            return self._mask.text(value)
        if isinstance(value, Mapping):
            return {str(key): self._masked(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(item) for item in value]
        return value

    def _prune(self, keep: int, size: int) -> None:
        """Remove the oldest bundles beyond either limit."""
        try:
            with os.scandir(self._folder) as entries:
                folders = sorted((Path(entry.path) for entry in entries if entry.is_dir()), reverse=True)
        except OSError:
            return
        total = 0
        for number, folder in enumerate(folders, 1):
            total += _size(folder)
            if number > keep or total > size:
                shutil.rmtree(folder, ignore_errors=True)

    def _log_tail(self, log_start: int) -> str | None:
        """Return the end of this generation's part of the log; None where it cannot be read."""
        if self._journal is not None:
            found = b""
            for piece in self._journal(log_start):
                found = (found + piece)[-_MAX_LOG:]
            return found.decode("utf-8", "replace") or None
        try:
            with open_regular(self._spec.log_file) as stream:
                size = os.fstat(stream.fileno()).st_size
                stream.seek(max(log_start if log_start <= size else 0, size - _MAX_LOG))
                return stream.read(_MAX_LOG).decode("utf-8", "replace")
        except OSError:
            return None

    def _process(self, member: Member) -> dict[str, object]:
        """Return what the kernel says a member is doing; what it does not say is left out."""
        place = self._proc / str(member.pid)
        threads = []
        with suppress(OSError):
            for task in sorted(os.listdir(place / "task"), key=int)[:_MAX_THREADS]:  # noqa: PTH208 -- names only
                seen = {
                    "tid": int(task),
                    "name": _read(place / "task" / task / "comm"),
                    "state": _state(_read(place / "task" / task / "stat")),
                    "wchan": _read(place / "task" / task / "wchan"),
                }
                stack = _read(place / "task" / task / "stack")
                threads.append(seen | ({"kernel_stack": stack.splitlines()} if stack else {}))
        stat = _read(place / "stat")
        return {
            "pid": member.pid,
            "parent": _parent(stat),
            "name": member.name,
            "state": _state(stat) or member.state,
            "wchan": _read(place / "wchan"),
            "command": (_read(place / "cmdline") or "").replace("\0", " ").strip(),
            "memory": _fields(_read(place / "status"), ("VmRSS", "RssShmem", "VmSwap", "Threads")),
            "threads": threads,
        }


def _stacks(pids: Iterable[int]) -> str:
    """Return the Python stacks of the processes, as far as py-spy is there and tells them in time."""
    program = shutil.which("py-spy")
    if program is None:
        return ""
    deadline = time.monotonic() + _STACKS_WITHIN
    parts = []
    for pid in pids:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        try:
            # A stopped process cannot be attached to, and would hold us for good.
            done = subprocess.run(  # noqa: S603 -- a program found on our own PATH, without a shell
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=left, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            parts.append(f"# pid {pid}: {error}\n")
        else:
            parts.append((done.stdout or done.stderr).decode("utf-8", "replace"))
    return "\n".join(parts)


def _size(folder: Path) -> int:
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _state(stat: str) -> str:
    """Return the kernel's letter from a line of `stat`, whose name may hold anything."""
    rest = stat.rpartition(")")[2].split()
    return rest[0] if rest else ""


def _parent(stat: str) -> int | None:
    rest = stat.rpartition(")")[2].split(None, 2)
    return int(rest[1]) if len(rest) > 1 else None


def _fields(status: str, names: tuple[str, ...]) -> dict[str, str]:
    found = (line.partition(":") for line in status.splitlines())
    return {name: value.strip() for name, _, value in found if name in names}
