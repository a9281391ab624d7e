"""Where things of the daemon live in the file system, and whether they can be made there."""

import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path

from vllm_supervisor.config.regular import no_log
from vllm_supervisor.config.settings import Settings
from vllm_supervisor.errors import ConfigError, Problem

SOCKET_NAME = "control.sock"
FOLDER = "a folder"
_KERNELS = ("/proc", "/sys")
MAX_SOCKET_PATH = 107
"""Bytes in the path of a Unix socket, less the closing NUL: `sun_path` of Linux."""


def expand_home(text: str, environ: Mapping[str, str]) -> str | None:
    """Replace a leading `~` or `~user`; None when there is no such home."""
    if not text.startswith("~"):
        return text
    user, slash, rest = text[1:].partition("/")
    home = environ.get("HOME") if not user else None
    if not home:
        try:
            home = (pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())).pw_dir
        except (KeyError, ValueError):
            return None
    return f"{home.rstrip('/')}{slash}{rest}"


def control_socket(settings: Settings, environ: Mapping[str, str]) -> Path:
    """Return the path of the control socket. Raises ConfigError when there is no directory for it."""
    configured = settings.control.socket
    if configured is not None:
        return Path(configured).absolute()
    runtime = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if runtime:
        return Path(runtime, SOCKET_NAME)
    if os.geteuid() == 0:
        return Path("/run/vllm-supervisor", SOCKET_NAME)
    # Without XDG_RUNTIME_DIR (cron, su) systemd's own place still works; /tmp would not be ours alone.
    session = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    if environ.get("XDG_RUNTIME_DIR") or Path(session).is_dir():
        return Path(session, "vllm-supervisor", SOCKET_NAME)
    why = "there is no directory for the socket: RUNTIME_DIRECTORY and XDG_RUNTIME_DIR are not set"
    raise ConfigError((Problem("environment", "control.socket", why, "set control.socket, or XDG_RUNTIME_DIR"),))


def state_dir(settings: Settings, environ: Mapping[str, str]) -> Path:
    """Return the folder that is locked by the daemon and holds what outlives it."""
    if settings.state_dir is not None:
        return Path(settings.state_dir).absolute()
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    home = expand_home("~", environ)
    return Path(home or "/var/lib", ".local/state/vllm-supervisor" if home else "vllm-supervisor")


def why_not_writable(file: Path) -> str | None:
    """Say why `file` cannot be appended to, or made together with its folders; None when it can. Makes nothing."""
    try:
        if file.is_dir():
            return "it is a directory"
        if file.exists():
            if (odd := no_log(file.stat().st_mode)) is not None:
                return odd
            return None if os.access(file, os.W_OK) else "permission denied"
        parent = file.parent
        while not parent.exists() and not parent.is_symlink() and parent != parent.parent:
            parent = parent.parent
        if not parent.is_dir():
            return f"{parent} is not a directory"
        if any(parent.resolve().is_relative_to(kernels) for kernels in _KERNELS):
            return f"{parent} is the kernel's, and takes no files"  # whatever root's rights say
        return None if os.access(parent, os.W_OK | os.X_OK) else f"{parent} is not writable"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def no_socket(path: Path) -> str | None:
    """Say what is at `path` where that is not a socket, such as FOLDER; None for a socket or for nothing to be seen."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    if stat.S_ISSOCK(mode):
        return None
    return FOLDER if stat.S_ISDIR(mode) else "no socket"


def owner(folder: Path) -> int:
    """Return the uid that owns `folder`, or what is there of the way to it."""
    while True:
        try:
            return folder.stat().st_uid
        except OSError:
            if folder == folder.parent:
                return 0
            folder = folder.parent
