"""All facts about this host, for one configuration."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_supervisor.adapters.host import files
from vllm_supervisor.adapters.host.interpreter import SIMULATOR, interpreter
from vllm_supervisor.adapters.host.kernel import clock_synchronized, shared_memory
from vllm_supervisor.adapters.host.model import hub_cache, model
from vllm_supervisor.adapters.host.nvidia import CardReader
from vllm_supervisor.adapters.host.packages import installed
from vllm_supervisor.adapters.host.processes import Processes
from vllm_supervisor.adapters.host.service import Service
from vllm_supervisor.adapters.host.wanted import Flags, flags, wanted
from vllm_supervisor.config import paths
from vllm_supervisor.config.launch import launch_spec
from vllm_supervisor.config.launcher import LauncherMissing, find_launcher
from vllm_supervisor.config.load import Loaded
from vllm_supervisor.domain.doctor.facts import (
    Cards,
    Clock,
    Facts,
    Folder,
    Host,
    Install,
    Launcher,
    Model,
    Port,
    Unknown,
)
from vllm_supervisor.domain.spec import JOURNAL, LaunchSpec

_PROGRAMS = (b"#!", b"\x7fELF")
_TMP = "/tmp"  # noqa: S108 - where vLLM puts its sockets when nothing says otherwise


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What looks at the host, so that a test can look at another one. `port` was found out by whoever knows how."""

    service: Service
    cards: CardReader
    port: Port
    processes: Processes = field(default_factory=Processes)
    shm: Path = Path("/dev/shm")  # noqa: S108 - looked at, not written


def collect(loaded: Loaded, around: Surroundings) -> Facts:
    """Return what the checks need. Blocking, for seconds where a driver is slow; never raises for what it finds."""
    vllm = loaded.settings.engine.vllm
    spec = launch_spec(loaded.settings, around.service.env)
    given, cwd = flags(vllm), Path(spec.cwd or ".").absolute()
    launcher = _launcher(spec, around.service)
    install = _install(launcher, spec, cwd, vllm.launcher, around.service.uid)
    simulated = isinstance(install, Unknown) and install.why == SIMULATOR
    nothing = Unknown(SIMULATOR)
    here: Model | Unknown = nothing if simulated else model(vllm.model, given, spec.env, cwd)
    if isinstance(here, Model) and here.path and not _readable(Path(here.path), around.service):
        here = replace(here, path=None, complete=False, bytes=0)
    cards: Cards | Unknown = nothing if simulated else around.cards.read(around.processes.describe)
    return Facts(
        wanted=wanted(vllm, given, spec.env),
        launcher=launcher,
        install=install,
        cards=cards,
        model=here,
        host=Host(
            user=around.service.user,
            port=around.port,
            shm=nothing if simulated else shared_memory(around.shm),
            folders=tuple(_folders(loaded, spec, given, around.service, here)),
            socket_folder=_socket_folder(spec.env),
            limits=around.service.limits,
            clock=Clock(time.time(), _written(loaded.path), clock_synchronized()),
            journal=around.service.may_read_journal() if spec.log_file == JOURNAL else None,
        ),
    )


def _readable(path: Path, service: Service) -> bool:
    return service.may_use(path if path.is_dir() else path.parent)


def _launcher(spec: LaunchSpec, service: Service) -> Launcher:
    found = find_launcher(spec)
    if isinstance(found, LauncherMissing):
        return Launcher(None, found.why, found.remedy)
    if not service.may_use(Path(found)):
        remedy = f"`chmod o+rx` it and the folders above it, or install vLLM where {service.user} may look"
        return Launcher(None, f"{service.user} may not execute {found}", remedy)
    return Launcher(found, program=_is_program(Path(found)))


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_PROGRAMS)
    except OSError:
        return True  # what may be executed need not be readable


def _install(launcher: Launcher, spec: LaunchSpec, cwd: Path, words: tuple[str, ...], user: int) -> Install | Unknown:
    if launcher.path is None:
        return Unknown("the launcher cannot be run")
    python = interpreter([*words, spec.argv[len(words)]], spec.env, cwd)
    return installed(python, spec.env, user) if isinstance(python, str) else python


def _folders(
    loaded: Loaded, spec: LaunchSpec, given: Flags, service: Service, here: Model | Unknown
) -> Iterator[Folder]:
    def folder(use: str, path: Path, setting: str, *, room: bool = False) -> Folder:
        left = files.free(path) if room else None
        return Folder(use, str(path), setting, service.why_not_writable(path), left if isinstance(left, int) else None)

    if spec.log_file != JOURNAL:
        yield folder("log", Path(spec.log_file).parent, "engine.vllm.log_file")
    yield folder("state", paths.state_dir(loaded.settings, service.env), "state_dir")
    socket = paths.control_socket(loaded.settings, service.env)
    yield folder("control socket", socket.parent, "control.socket")
    yield folder("temporary files", Path(_socket_folder(spec.env)), "TMPDIR in engine.vllm.env")
    if isinstance(here, Unknown):
        return
    if not here.local and not here.complete:
        yield folder("models", hub_cache(given, spec.env), "HF_HOME in engine.vllm.env")
    for use, path, setting in _caches(spec.env):
        yield folder(use, path, setting, room=True)


def _caches(env: Mapping[str, str]) -> Iterator[tuple[str, Path, str]]:
    """Yield where compiled kernels go: vLLM's own cache, Triton's, and torch's where it is set apart."""
    base = env.get("XDG_CACHE_HOME") or "~/.cache"
    for use, variable, default in (
        ("vLLM's cache", "VLLM_CACHE_ROOT", f"{base}/vllm"),
        ("Triton's cache", "TRITON_CACHE_DIR", "~/.triton/cache"),
        ("torch's cache", "TORCHINDUCTOR_CACHE_DIR", ""),
    ):
        text = env.get(variable) or default
        if text:
            yield use, Path(paths.expand_home(text, env) or text), f"{variable} in engine.vllm.env"


def _socket_folder(env: Mapping[str, str]) -> str:
    """Return `VLLM_RPC_BASE_PATH`, else what Python's tempfile takes: the first that is there of its variables."""
    given = env.get("VLLM_RPC_BASE_PATH")
    if given:
        return given
    named = (env.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return next((folder for folder in named if folder and files.exists(Path(folder))), _TMP)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
