"""What tells, beside the log, that a start moves: the model's cache, the processes' time and disk traffic, caches.

A network file system may hang for ever: all looks share one thread, and the caller sets the time limit.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio
from anyio import to_thread

from vllm_supervisor.adapters.startsigns.hub import HubCache, hub_folder
from vllm_supervisor.domain.member import Member
from vllm_supervisor.domain.spec import LaunchSpec
from vllm_supervisor.domain.startup import Activity, Download

MAX_ENTRIES = 3000
"""Files and folders looked at in compile caches and temporary folders: some ten milliseconds, in a thread."""
_TICKS = os.sysconf("SC_CLK_TCK")


class EngineSigns:
    """Implements `ports.StartSigns` for the engines that `spec` launches. `proc` is `/proc`, or a copy in tests."""

    def __init__(self, spec: LaunchSpec, *, proc: Path = Path("/proc")) -> None:
        self._spec = spec
        self._folder = hub_folder(spec.model, spec.env, spec.download_dir, spec.cwd)
        self._cache = HubCache(self._folder, spec.revision) if self._folder else None
        self._places = tuple(places(spec.env))
        self._proc = proc
        self._seen: dict[tuple[int, int], tuple[float, int]] = {}
        self._cpu_s = 0.0
        self._io_bytes = 0
        self._limiter = anyio.CapacityLimiter(1)

    async def download(self) -> Download | None:
        """Look at the model's weights in the cache."""
        if self._cache is None:
            return None
        return await to_thread.run_sync(self._cache.look, abandon_on_cancel=True, limiter=self._limiter)

    async def activity(self, members: Sequence[Member]) -> Activity:
        """Look at what the members spent, and at what is in the caches."""
        return await to_thread.run_sync(self._look, members, abandon_on_cancel=True, limiter=self._limiter)

    def _look(self, members: Sequence[Member]) -> Activity:
        fresh = {}
        for member in members:
            key = (member.pid, member.start_ticks)
            before = self._seen.get(key, (0.0, 0))
            if key not in self._seen:
                self._learn_places(member.pid)
            cpu, moved = self._cpu(member.pid), self._io(member.pid)
            self._cpu_s += max(0.0, cpu - before[0])
            self._io_bytes += max(0, moved - before[1])
            fresh[key] = (max(cpu, before[0]), max(moved, before[1]))
        self._seen = fresh
        return Activity(self._cpu_s, self._io_bytes, fingerprint(self._places))

    def _learn_places(self, pid: int) -> None:
        """Go by the environment that a member really has: a launcher that is a script may set `HF_HOME` itself."""
        try:
            block = (self._proc / str(pid) / "environ").read_bytes().decode(errors="surrogateescape")
        except OSError:
            return
        env = dict(pair.split("=", 1) for pair in block.split("\0") if "=" in pair)
        if "HOME" not in env and not any(name.startswith("HF_") for name in env):
            return  # erased, or not there yet
        folder = hub_folder(self._spec.model, env, self._spec.download_dir, self._spec.cwd)
        if folder is not None and folder != self._folder:
            self._folder, self._cache = folder, HubCache(folder, self._spec.revision)
        self._places = tuple(dict.fromkeys((*self._places, *places(env))))

    def _cpu(self, pid: int) -> float:
        """Return the seconds that `pid` and its children that ended have spent; 0 when it is gone."""
        try:
            line = (self._proc / str(pid) / "stat").read_bytes()
            fields = line[line.rindex(b")") + 2 :].split(None, 16)
            return sum(int(field) for field in fields[11:15]) / _TICKS
        except (OSError, ValueError):
            return 0.0

    def _io(self, pid: int) -> int:
        """Return the bytes that `pid` moved to and from disks; 0 when that cannot be read."""
        try:
            lines = (self._proc / str(pid) / "io").read_bytes().split(b"\n")
            return sum(int(line.split()[1]) for line in lines if line.startswith((b"read_bytes", b"write_bytes")))
        except (OSError, ValueError, IndexError):
            return 0


def places(env: Mapping[str, str]) -> Iterator[Path]:
    """Yield where compilers of an engine with `env` keep what they make: vLLM's, inductor's, Triton's, FlashInfer's."""
    home = env.get("HOME") or "/"
    cache = env.get("XDG_CACHE_HOME") or f"{home}/.cache"
    temporary = env.get("TMPDIR") or "/tmp"  # noqa: S108 -- where torch puts its own, looked at only
    user = env.get("USER") or env.get("LOGNAME") or "root"
    yield Path(env.get("VLLM_CACHE_ROOT") or f"{cache}/vllm") / "torch_compile_cache"
    yield Path(env.get("TORCHINDUCTOR_CACHE_DIR") or f"{temporary}/torchinductor_{user}")
    yield Path(env.get("TRITON_CACHE_DIR") or f"{home}/.triton/cache")
    yield Path(env.get("FLASHINFER_WORKSPACE_BASE") or home) / ".cache" / "flashinfer"


def fingerprint(folders: Sequence[Path]) -> tuple[int, int, int]:
    """Return (files, their bytes, the latest change) below `folders`, the nearest first, up to a bound. Blocking."""
    count = size = latest = looked_at = 0
    queue = list(folders)
    while queue and looked_at < MAX_ENTRIES:
        try:
            with os.scandir(queue.pop(0)) as entries:
                for entry in entries:
                    looked_at += 1
                    found = entry.stat(follow_symlinks=False)
                    latest = max(latest, found.st_mtime_ns)
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(Path(entry.path))
                    else:
                        count, size = count + 1, size + found.st_size
                    if looked_at >= MAX_ENTRIES:
                        break
        except OSError:
            continue
    return count, size, latest
