"""What tells one configuration of the engine from another."""

import hashlib

from vllm_supervisor.domain.spec import MARKER, LaunchSpec

_VOLATILE = frozenset(
    {
        *("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "PS1", "DISPLAY", "WINDOWID", "XAUTHORITY"),
        *("DBUS_SESSION_BUS_ADDRESS", "SYSTEMD_EXEC_PID", "PYTEST_CURRENT_TEST", "MAIL", "PPID"),
    }
)
_VOLATILE_PREFIXES = ("SSH_", "XDG_SESSION", "TMUX", "STY", "MEMORY_PRESSURE_", "LC_", "SUDO_", "LS_COLORS")


def fingerprint(spec: LaunchSpec) -> str:
    """Return a name for the command and the environment, the same whoever starts the daemon from whichever terminal."""
    kept = {name: value for name, value in spec.env.items() if not _volatile(name)}
    text = "\0".join((*spec.argv, "", *(f"{name}={kept[name]}" for name in sorted(kept))))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _volatile(name: str) -> bool:
    return name == MARKER or name in _VOLATILE or name.startswith(_VOLATILE_PREFIXES)
