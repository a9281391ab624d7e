"""What a daemon leaves on disk, so that the next one finds the engine that outlived it."""

import errno
import json
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VERSION = 1


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, told from later ones with its pid by its start in clock ticks since boot."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Record:
    """The last launch. `leader` is None from just before the launch until just after it."""

    generation: int
    boot_id: str
    daemon: Identity
    leader: Identity | None = None
    gone: bool = False
    """It is proven gone, and its end was examined where nobody had asked for it."""
    log_start: int = 0
    """Where its part of the log begins, as `ports.Engine` has it."""


class Records:
    """`engine.json` and `instance-id` in the state directory, which the caller has locked. Blocking, briefly."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "engine.json"
        self._id_file = state_dir / "instance-id"

    def instance(self) -> str:
        """Return the name of this instance, made up once for ever. Raises OSError."""
        try:
            return str(uuid.UUID(self._id_file.read_text().strip()))
        except (FileNotFoundError, ValueError):
            fresh = str(uuid.uuid4())
            self.keep(fresh)
            return fresh

    def keep(self, instance: str) -> bool:
        """Write the name down where it does not stand, and return whether that was so. Raises OSError."""
        text = f"{instance}\n"
        with suppress(OSError, ValueError):
            if self._id_file.read_text() == text:
                return False
        _write(self._id_file, text)
        return True

    def read(self) -> Record | str | None:
        """Return the last launch, None where there was none, or in words why it cannot be read."""
        try:
            data = json.loads(self._file.read_bytes())
            if data["version"] != _VERSION:
                return f"{self._file} is of version {data['version']}"
            return Record(
                generation=int(data["generation"]),
                boot_id=str(data["boot_id"]),
                daemon=_identity(data["daemon"]),
                leader=_identity(data["leader"]) if data["leader"] else None,
                gone=bool(data["gone"]),
                log_start=int(data.get("log_start", 0)),  # absent where an earlier version wrote it
            )
        except FileNotFoundError:
            return None
        except OSError as exc:
            return f"{self._file} cannot be read: {exc.strerror}"
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
            return f"{self._file} is damaged: {type(exc).__name__}: {exc}"

    def write(self, record: Record) -> None:
        """Replace the record in one step. Raises OSError, and then the old one stands.

        On a full disk it is written over the old one, whose room it has: a restart must not wait for somebody to tidy.
        """
        data: dict[str, object] = {
            "version": _VERSION,
            "generation": record.generation,
            "boot_id": record.boot_id,
            "daemon": _plain(record.daemon),
            # The leader's session and group have its pid: it is launched as the head of both.
            "leader": _plain(record.leader) if record.leader else None,
            "gone": record.gone,
            "log_start": record.log_start,
        }
        text = json.dumps(data) + "\n"
        try:
            _write(self._file, text)
        except OSError as exc:
            if exc.errno not in _FULL or not self._file.exists():
                raise
            _write_over(self._file, text)


def _identity(data: dict[str, Any]) -> Identity:
    return Identity(int(data["pid"]), int(data["start_ticks"]))


def _plain(identity: Identity) -> dict[str, int]:
    return {"pid": identity.pid, "start_ticks": identity.start}


def _write(path: Path, text: str) -> None:
    # No fsync: this is for a daemon that dies, not for a host that does, after which no engine is left to be found.
    fresh = path.with_name(f"{path.name}.new")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _write_over(path: Path, text: str) -> None:
    """Write without asking for room. A daemon killed within finds a damaged record next time, and says so."""
    with path.open("r+") as file:
        file.write(text)
        file.truncate()
