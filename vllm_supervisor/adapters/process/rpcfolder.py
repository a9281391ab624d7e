"""A folder per generation for vLLM's sockets, so that those of a killed engine can be told apart and removed.

vLLM names them by a uuid, in VLLM_RPC_BASE_PATH or else in the temporary directory, and removes none after a SIGKILL
(0.32, measured).
"""

import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "VLLM_RPC_BASE_PATH"
_MAX_SOCKET_PATH = 107
"""Characters of a Unix socket's path (sun_path, less the zero)."""
_UUID = 36
_TEMPORARY = "/tmp"  # noqa: S108 -- made with mkdir, which follows nothing that another user put there


class RpcFolders:
    """Makes and removes the folders of one instance. No engine of it lives when one is made, or removed."""

    def __init__(self, instance: str) -> None:
        self._prefix = f"vllm-rpc-{instance[:13]}-"
        self._made = ""
        self._cleared: set[str] = set()
        """Where this daemon has looked for what earlier ones left; its own folders it knows."""

    def make(self, generation: int, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variable with a fresh folder for the engine whose environment is `env`.

        Nothing where the user has set it, or where there is no place: then vLLM does without. The folder is as open as
        the temporary directory itself, since the launcher may change the user. Earlier ones are removed. Blocking.
        """
        if VARIABLE in env:
            return {}
        self.remove()
        for parent in dict.fromkeys((env.get("TMPDIR", _TEMPORARY), _TEMPORARY)):
            if parent not in self._cleared:
                self._cleared.add(parent)
                self._clear(parent)
            path = Path(parent, f"{self._prefix}{generation}")
            if not path.is_absolute() or len(str(path)) + 1 + _UUID > _MAX_SOCKET_PATH:
                continue
            with suppress(OSError):
                path.mkdir(mode=0o700)
                path.chmod(0o1777)
                self._made = str(path)
                return {VARIABLE: self._made}
        return {}

    def remove(self) -> None:
        """Remove the folder made last. Blocking, for as long as a few unlinks take."""
        made, self._made = self._made, ""
        if made:
            _remove(made)

    def _clear(self, parent: str) -> None:
        """Remove what engines of earlier daemons of this instance left."""
        ours = re.compile(re.escape(self._prefix) + r"\d+\Z")
        with suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                if ours.match(entry.name):
                    _remove(entry.path)


def _remove(path: str) -> None:
    """Remove a folder of ours, and nothing that a link leads to."""
    with suppress(OSError):
        there = os.lstat(path)
        if stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
