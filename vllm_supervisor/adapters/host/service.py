"""With whose eyes to look: those of the installed service, or of whoever runs the doctor."""

import grp
import os
import pwd
import re
import resource
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllm_supervisor.adapters.host import files
from vllm_supervisor.adapters.host.ask import ask
from vllm_supervisor.config.paths import why_not_writable
from vllm_supervisor.domain.doctor.facts import Limits

_MADE = {
    "StateDirectory": ("STATE_DIRECTORY", "/var/lib"),
    "CacheDirectory": ("CACHE_DIRECTORY", "/var/cache"),
    "LogsDirectory": ("LOGS_DIRECTORY", "/var/log"),
    "RuntimeDirectory": ("RUNTIME_DIRECTORY", "/run"),
}
"""Folders that systemd makes when the service starts, and the variables that name them."""
_ASKED = (
    "LoadState",
    "User",
    "SupplementaryGroups",
    "Environment",
    "LimitNOFILE",
    "LimitMEMLOCK",
    "LimitNPROC",
    "PrivateTmp",
    *_MADE,
)
_JOURNAL_GROUPS = frozenset({"systemd-journal", "adm", "wheel"})
"""Who may read the whole journal (journalctl(1))."""
_SYSTEM_UIDS = 1000
"""Below them, what a user writes goes to the system's journal (systemd's default); from there on, to the user's own."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CREDENTIAL = re.compile(r"^LoadCredential=([^:\s]+):(/[^%\s]*)$", re.MULTILINE)
_WRITE = 'test -d "$1" && test -w "$1" && test -x "$1"'
_USE = 'test -r "$1" && test -x "$1"'


@dataclass(frozen=True, slots=True)
class Service:
    """The user, the environment, the limits, and the folders that systemd will make."""

    user: str
    uid: int
    env: Mapping[str, str] = field(repr=False)
    limits: Limits
    made: tuple[Path, ...] = ()
    credentials: Mapping[str, Path] = field(default_factory=dict)
    """Name -> file, for what `LoadCredential=` hands over when the service starts."""
    groups: frozenset[str] = frozenset()
    """The groups that its processes are in."""

    def why_not_writable(self, folder: Path) -> str | None:
        """Say why the user cannot write into `folder`, or make it; None where that is possible. Makes nothing."""
        if any(folder.is_relative_to(made) and not files.exists(made) for made in self.made):
            return None
        if self.uid == os.geteuid() or os.geteuid() != 0:
            return why_not_writable(folder / "probe")
        nearest = files.nearest(folder)
        return None if self._may(_WRITE, nearest) else f"{nearest} is not writable"

    def may_use(self, path: Path) -> bool:
        """Say whether the user may enter the folder, or read and execute the program, at `path`."""
        return self._may(_USE, path)

    def may_read_journal(self) -> bool:
        """Say whether the user may read back what it writes to the journal, by who is meant to be able to."""
        return self.uid == 0 or self.uid >= _SYSTEM_UIDS or bool(self.groups & _JOURNAL_GROUPS)

    def _may(self, test: str, path: Path) -> bool:
        shell = shutil.which("sh") or "/bin/sh"
        return ask([shell, "-c", test, "sh", str(path)], {"PATH": _PATH}, user=self.uid).text is not None


def here(environ: Mapping[str, str]) -> Service:
    """Return the one who runs this."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    limits = Limits(
        "of this shell",
        _limit(resource.RLIMIT_NOFILE),
        _limit(resource.RLIMIT_MEMLOCK),
        _limit(resource.RLIMIT_NPROC),
    )
    return Service(name, uid, environ, limits, groups=_names(os.getgroups()))


def _limit(kind: int) -> int | None:
    # vLLM raises its soft limit for files by itself, so that the hard one decides.
    hard = resource.getrlimit(kind)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def unit(name: str, environ: Mapping[str, str]) -> Service | None:
    """Return the service that systemd would start as `name`; None where it knows none, or there is no systemd.

    The environment is what systemd gives, without the files of `EnvironmentFile=`.
    """
    program = shutil.which("systemctl", path=environ.get("PATH"))
    if program is None:
        return None
    answer = ask([program, "show", name, f"--property={','.join(_ASKED)}"], environ)
    shown = dict(line.partition("=")[::2] for line in (answer.text or "").splitlines())
    if shown.get("LoadState") != "loaded":
        return None
    try:
        account = pwd.getpwnam(shown.get("User") or "root")
    except KeyError:
        return None
    made = {variable: f"{root}/{folder}" for key, (variable, root) in _MADE.items() if (folder := _first(shown, key))}
    env = {
        "PATH": _PATH,
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        **made,
        **dict(word.partition("=")[::2] for word in _words(shown.get("Environment", ""))),
    }
    limits = Limits(f"of {name}", *(_shown(shown, key) for key in ("LimitNOFILE", "LimitMEMLOCK", "LimitNPROC")))
    # systemctl shows LoadCredential= as "unprintable" in version 252, so the unit's text is read for it.
    credentials = dict(_CREDENTIAL.findall(ask([program, "cat", name], environ).text or ""))
    return Service(
        user=account.pw_name,
        uid=account.pw_uid,
        env=env,
        limits=limits,
        made=tuple(Path(folder) for folder in made.values()),
        credentials={name: Path(path) for name, path in credentials.items()},
        groups=_names(os.getgrouplist(account.pw_name, account.pw_gid))
        | {*shown.get("SupplementaryGroups", "").split()},
    )


def _names(gids: Iterable[int]) -> frozenset[str]:
    known = {entry.gr_gid: entry.gr_name for entry in grp.getgrall()}
    return frozenset(known[gid] for gid in gids if gid in known)


def _first(shown: Mapping[str, str], key: str) -> str:
    return next(iter(shown.get(key, "").split()), "")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _shown(shown: Mapping[str, str], key: str) -> int | None:
    value = shown.get(key, "")
    return int(value) if value.isdigit() else None
