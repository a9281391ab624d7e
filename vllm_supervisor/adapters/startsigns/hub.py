"""The model's weights in the Hugging Face cache: how much is there, and how much there will be.

A download says nothing in vLLM's log, so the file system has to. Layout (huggingface_hub 0.16 to 1.x):
`models--ORG--NAME/blobs/HASH`, `HASH.incomplete` or `HASH.ID.incomplete` while it comes, `snapshots/COMMIT/FILE` as
links to blobs, `refs/BRANCH` with a commit.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from vllm_supervisor.domain.startup import Download

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_TOTAL = re.compile(rb'"total_size"\s*:\s*(\d+)')
_NUMBERED = re.compile(r"-(\d+)-of-(\d+)\.")
_MAX_ENTRIES = 5000
_MARGIN = 2.0
"""Seconds: file systems round times."""
_BLOCK = 512
"""Bytes in `st_blocks`, whatever the file system."""


class HubCache:
    """Looks at one model's folder. Blocking."""

    def __init__(self, folder: Path, revision: str | None = None) -> None:
        self._folder = folder
        self._revision = revision or "main"
        self._began = time.time()  # to be compared with times of files
        self._index: tuple[str, int | None] | None = None

    def look(self) -> Download:
        """Return what is there now; nothing where there is no folder yet."""
        snapshot = self._snapshot()
        finished = dict(_weights(snapshot)) if snapshot else {}
        coming = [entry for entry in _files(self._folder / "blobs") if entry.name.endswith(".incomplete")]
        # One that nobody has written to since is what an earlier start gave up.
        live = [found for entry in coming if (found := _stat(entry)) and found.st_mtime >= self._began - _MARGIN]
        # Of a file that is written in several places at once, the size is that of the last place.
        partial = sum(min(found.st_size, found.st_blocks * _BLOCK) for found in live)
        expected = self._expected(snapshot, finished) if snapshot else None
        return Download(sum(finished.values()) + partial, expected, bool(live))

    def _snapshot(self) -> Path | None:
        snapshots = self._folder / "snapshots"
        try:
            commit = (self._folder / "refs" / self._revision).read_text().strip()
        except (OSError, ValueError):
            commit = self._revision
        chosen = snapshots / commit
        return chosen if chosen.is_dir() else None

    def _expected(self, snapshot: Path, finished: Mapping[str, int]) -> int | None:
        if self._index is None or self._index[1] is None or self._index[0] != snapshot.name:
            self._index = (snapshot.name, _indexed(snapshot))
        if self._index[1] is not None:
            return self._index[1]
        # Without an index the names tell how many there will be; all but the last are of about the same size.
        counts = [(int(match[2]), size) for name, size in finished.items() if (match := _NUMBERED.search(name))]
        return max((total * size for total, size in counts), default=None)


def hub_folder(model: str, env: Mapping[str, str], download_dir: str | None, cwd: str | None = None) -> Path | None:
    """Return the folder of `model` in the cache that an engine with `env` uses; None where it uses none."""
    if not model or "://" in model or model.startswith(("/", ".", "~")) or model.count("/") > 1:
        return None
    if (Path(cwd or ".") / model).is_dir() or env.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return None
    home = env.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 -- a string beside strings
    xdg = env.get("XDG_CACHE_HOME") or f"{home}/.cache"
    hub = f"{env.get('HF_HOME') or f'{xdg}/huggingface'}/hub"
    cache = download_dir or env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or hub
    expanded = f"{home}{cache[1:]}" if cache.startswith("~/") else cache
    return Path(cwd or ".") / expanded / f"models--{model.replace('/', '--')}"


def _files(folder: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= _MAX_ENTRIES:
                    return
                yield entry
    except OSError:
        return


def _weights(snapshot: Path) -> Iterator[tuple[str, int]]:
    for entry in _files(snapshot):
        if entry.name.endswith(_WEIGHTS) and (found := _stat(entry)):
            yield entry.name, found.st_size


def _stat(entry: "os.DirEntry[str]") -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:  # renamed meanwhile
        return None


def _indexed(snapshot: Path) -> int | None:
    for name in _INDEXES:
        try:
            found = _TOTAL.search((snapshot / name).read_bytes())
        except OSError:
            continue
        if found:
            return int(found[1])
    return None
