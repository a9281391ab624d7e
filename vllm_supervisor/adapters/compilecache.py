"""torch.compile's cache: a damaged one survives every restart, so it is moved aside and compiled anew.

vLLM 0.32 keeps it under VLLM_CACHE_ROOT/torch_compile_cache, in a folder per hash of model, arguments and version, or
in torch_aot_compile/HASH below that, and logs where.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from anyio import to_thread

from vllm_supervisor.config.regular import open_regular

_NAMED = re.compile(rb"(?:Using cache directory: |Directly load AOT compilation from path )(/[^\s]+)")
_WITHIN = 64 * 1024 * 1024
"""Bytes of the log that are searched: the cache is named early in a start."""
_CHUNK = 1024 * 1024
_OVERLAP = 4096
_AOT = "torch_aot_compile"


class TorchCompileCache:
    """Implements `ports.CompileCache` for an engine with this environment and log file.

    `journal` yields the part of the log that a generation's `log_start` names, where it is no file.
    """

    def __init__(
        self, env: Mapping[str, str], log_file: str, journal: Callable[[int], Iterable[bytes]] | None = None
    ) -> None:
        home = env.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 -- the daemon's own, as a string
        default = Path(env.get("XDG_CACHE_HOME") or Path(home, ".cache"), "vllm")
        root = env.get("VLLM_CACHE_ROOT")
        # vLLM expands a ~ in this variable itself.
        self._folder = (Path(re.sub(r"^~(?=/|$)", home, root)) if root else default) / "torch_compile_cache"
        self._log_file = log_file
        self._journal = journal

    async def move_aside(self, log_start: int) -> tuple[str, ...]:
        """Move away what the log says this model uses, and return where to.

        Where the log does not say, the whole cache is moved: other models compile anew, and nothing is lost.
        Raises OSError.
        """
        return await to_thread.run_sync(self._move_aside, log_start)

    def _move_aside(self, log_start: int) -> tuple[str, ...]:
        named = self._named(log_start)
        victims = [path for path in named if path.is_dir()] or ([self._folder] if self._folder.is_dir() else [])
        aside = self._folder.with_name(f"{self._folder.name}.aside")
        moved = []
        for number, path in enumerate(victims):
            aside.mkdir(parents=True, exist_ok=True)
            target = aside / f"{path.name}-{time.strftime('%Y%m%dT%H%M%S')}-{number}"
            path.rename(target)
            moved.append(str(target))
        return tuple(moved)

    def _named(self, log_start: int) -> list[Path]:
        """Return the folders, each directly below the cache or its AOT part, that this part of the log names."""
        found: dict[Path, None] = {}
        rest = b""
        try:
            for chunk in self._part(log_start) if self._journal is None else self._journal(log_start):
                for match in _NAMED.finditer(rest + chunk):
                    if (folder := self._hash_folder(Path(os.fsdecode(match[1])))) is not None:
                        found[folder] = None
                rest = (rest + chunk)[-_OVERLAP:]
        except OSError:
            return []
        return list(found)

    def _part(self, log_start: int) -> Iterator[bytes]:
        with open_regular(self._log_file) as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(log_start if log_start <= size else 0)
            left = _WITHIN
            while left > 0 and (chunk := stream.read(_CHUNK)):
                left -= len(chunk)
                yield chunk

    def _hash_folder(self, path: Path) -> Path | None:
        """Return the folder of the hash for a path below it; None for one outside the cache."""
        try:
            parts = path.relative_to(self._folder).parts
        except ValueError:
            return None
        if ".." in parts or not parts:
            return None
        if parts[0] == _AOT:
            return self._folder / _AOT / parts[1] if len(parts) > 1 else None
        return self._folder / parts[0]
