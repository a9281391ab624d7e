"""Questions about files that are answered with no where the user may not even look: pathlib would raise."""

import os
import shutil
from pathlib import Path

from vllm_supervisor.domain.doctor.facts import Unknown


def exists(path: Path) -> bool:
    """Say whether `path` is there and can be seen."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises PermissionError


def is_file(path: Path) -> bool:
    """Say whether `path` is a regular file that can be seen."""
    return os.path.isfile(path)  # noqa: PTH113 - as above


def is_program(path: Path) -> bool:
    """Say whether `path` is a file that this user may execute."""
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113 - as above


def nearest(folder: Path) -> Path:
    """Return `folder`, or the nearest one above it that is there."""
    while not exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def free(folder: Path) -> int | Unknown:
    """Return the room, in bytes, that ordinary users have on the file system where `folder` is or would be made."""
    place = nearest(folder)
    try:
        return shutil.disk_usage(place).free
    except OSError as error:
        return Unknown(f"{place} cannot be looked at: {error.strerror}")
