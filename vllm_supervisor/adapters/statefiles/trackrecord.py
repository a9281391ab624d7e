"""`proven.json` in the state directory: which configurations have been ready on this host. A hint, never a condition.

Whatever is wrong with the file, it is set aside, counts as empty and is written anew.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from anyio import to_thread

from vllm_supervisor.adapters.statefiles.damaged import set_aside, unreadable
from vllm_supervisor.ports import Note

_VERSION = 1
_KEEP = 100
"""Configurations remembered, the latest."""
_MAX_BYTES = 1 << 20
_MAX_WHY = 200
_LOST = "which configurations have been ready here: a cause that stays ends the tries of each at the first failure"


class StoredTrackRecord:
    """Implements `ports.TrackRecord` for the configuration with this fingerprint. The caller has locked `state_dir`.

    `note` is told, at once, of a file that is damaged or cannot be read.
    """

    def __init__(self, state_dir: Path, fingerprint: str, note: Callable[[Note], None]) -> None:
        self._file = state_dir / "proven.json"
        self._name = fingerprint
        self._proven, self._tried = _read(self._file, note)

    @property
    def proven(self) -> bool:
        """Whether it has been ready here."""
        return self._name in self._proven

    async def ready(self) -> None:
        """Note that it has been ready now. Raises OSError where that cannot be kept beyond this daemon."""
        known = self._proven[-1:] == [self._name] and self._name not in self._tried
        self._proven = [*(name for name in self._proven if name != self._name), self._name][-_KEEP:]
        self._tried.pop(self._name, None)
        if not known:
            await to_thread.run_sync(self._write)

    async def once(self, what: str) -> bool:
        """Return True the first time that `what` is asked for since the configuration was last ready.

        Raises OSError where that could not be noted: then it might be done again and again.
        """
        done = self._tried.get(self._name, [])
        if what in done:
            return False
        self._tried = dict([*self._tried.items(), (self._name, [*done, what])][-_KEEP:])
        await to_thread.run_sync(self._write)
        return True

    def _write(self) -> None:
        data = {"version": _VERSION, "proven": self._proven, "tried": self._tried}
        fresh = self._file.with_name(f"{self._file.name}.new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(data, file)
        fresh.replace(self._file)


def _read(file: Path, note: Callable[[Note], None]) -> tuple[list[str], dict[str, list[str]]]:
    try:
        with file.open("rb") as stream:
            data = json.loads(stream.read(_MAX_BYTES))
        if data["version"] != _VERSION:
            note(set_aside(file, f"it is of version {data['version']!s:.20}", _LOST))
            return [], {}
        proven = [str(name) for name in data["proven"]][-_KEEP:]
        tried = {str(name): [str(what) for what in done] for name, done in data["tried"].items()}
    except FileNotFoundError:
        return [], {}
    except OSError as error:
        note(unreadable(file, error, _LOST))
        return [], {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        note(set_aside(file, f"{type(error).__name__}: {error}"[:_MAX_WHY], _LOST))
        return [], {}
    return proven, tried
