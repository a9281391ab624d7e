"""Checks across keys: what no value shows by itself."""

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllm_supervisor.config import launcher, paths, vllm_args
from vllm_supervisor.config.engine import VllmSettings
from vllm_supervisor.config.layers import Layers
from vllm_supervisor.config.settings import Settings
from vllm_supervisor.config.yamlfile import Loc, dotted, read
from vllm_supervisor.domain.naming import option_names_secret
from vllm_supervisor.domain.secret import is_secret_name
from vllm_supervisor.domain.spec import JOURNAL, MARKER
from vllm_supervisor.errors import ConfigError, Problem

_VLLM: Loc = ("engine", "vllm")
_LOG_FILE: Loc = (*_VLLM, "log_file")
_SOCKET: Loc = ("control", "socket")
_STATE_DIR: Loc = ("state_dir",)
_PEM = "-----BEGIN "
_ANY_HOST = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True, slots=True)
class _Finding:
    """Something wrong, or worth a warning, at `loc`; moot where one of `uses` was refused already."""

    loc: Loc
    why: str
    remedy: str
    uses: tuple[Loc, ...] = ()
    fatal: bool = True


@dataclass(frozen=True, slots=True)
class _Case:
    settings: Settings
    layers: Layers
    environ: Mapping[str, str]
    args: vllm_args.VllmArgs = field(default_factory=vllm_args.VllmArgs)

    @property
    def vllm(self) -> VllmSettings:
        return self.settings.engine.vllm


def vllm_flags(settings: Settings) -> vllm_args.VllmArgs:
    """Read the flags in `extra_args`; a `--config` file is looked for where vLLM would run."""
    vllm = settings.engine.vllm
    return vllm_args.read(vllm.extra_args, _config_reader(settings), grace=vllm.stop.grace)


def effective_flags(settings: Settings) -> dict[str, vllm_args.Flag]:
    """Return the flags in `extra_args` that hold, by name, those of a `--config` file included."""
    return vllm_args.effective(settings.engine.vllm.extra_args, _config_reader(settings))


def _config_reader(settings: Settings) -> vllm_args.ReadConfig:
    base = Path(settings.engine.vllm.cwd or ".")
    return lambda name: read(base / name)


def check(settings: Settings, layers: Layers, environ: Mapping[str, str], refused: set[Loc]) -> list[Problem]:
    """Add problems to `layers` and return the warnings."""
    case = _Case(settings, layers, environ, vllm_flags(settings))
    warnings: list[Problem] = []
    for finding in (finding for look in _LOOKS for finding in look(case)):
        if any(use in refused or use in layers.broken for use in (finding.loc, *finding.uses)):
            continue
        problem = Problem(layers.where(finding.loc), dotted(finding.loc), finding.why, finding.remedy)
        (layers.problems if finding.fatal else warnings).append(problem)
    return warnings


def _backoff(case: _Case) -> Iterable[_Finding]:
    least, most = (*_VLLM, "restart", "min_backoff"), (*_VLLM, "restart", "max_backoff")
    restart = case.vllm.restart
    if restart.max_backoff < restart.min_backoff:
        at = most if case.layers.given(most) else least
        why = f"max_backoff ({restart.max_backoff:g}) is below min_backoff ({restart.min_backoff:g})"
        yield _Finding(at, why, "raise max_backoff or lower min_backoff", (least, most))


def _aliases(case: _Case) -> Iterable[_Finding]:
    key = (*_VLLM, "model_aliases")
    names = {case.vllm.model, *case.args.served_names, *case.args.lora_names}
    for alias, target in case.vllm.model_aliases.items():
        loc = (*key, alias)
        if not target.strip():
            yield _Finding(loc, "the alias has an empty target", "name the served model it stands for, or remove it")
        elif not alias.strip():
            yield _Finding(loc, "the alias has an empty name", "name it, or remove it")
        elif target not in names:
            why = f"{target!r} is not the model, a --served-model-name or a --lora-modules name"
            remedy = f"name one of: {', '.join(sorted(names))}"
            uses = (key, (*_VLLM, "model"), (*_VLLM, "extra_args"))
            yield _Finding(loc, why, remedy, uses, fatal=False)


def _flags(case: _Case) -> Iterable[_Finding]:
    key = (*_VLLM, "extra_args")
    for remark in case.args.remarks:
        element = (*key, remark.index)
        loc = element if case.layers.given(element) else key
        yield _Finding(loc, remark.why, remark.remedy, (key,), fatal=remark.fatal)


def _environment(case: _Case) -> Iterable[_Finding]:
    key = (*_VLLM, "env")
    for name, text in case.vllm.env.items():
        loc = (*key, name)
        if not name or "=" in name or "\0" in name:
            why = f"{name!r} cannot be the name of an environment variable"
            yield _Finding(loc, why, "use letters, digits and underscores", (key,))
        elif name == MARKER:
            yield _Finding(loc, f"{name} is how we find the engine's processes", "remove it", (key,))
        elif is_secret_name(name) and len(text.splitlines()) > 1 and not text.startswith(_PEM):
            # An HTTP header cannot carry it, and the Hub's refusal would not say so. Keys in PEM do have lines.
            why = f"{name} holds a line break"
            yield _Finding(loc, why, "give one line: a file of a key may have more of them", (key,))


def _launcher(case: _Case) -> Iterable[_Finding]:
    program = launcher.outside(case.vllm.launcher)
    if program is not None:
        why = f"{program} puts the engine outside our process tree, where it cannot be stopped with proof"
        yield _Finding((*_VLLM, "launcher"), why, "launch vLLM itself, such as [vllm, serve]")


def _log_file(case: _Case) -> Iterable[_Finding]:
    name = case.vllm.log_file
    places = _places(case)
    if places.get(_LOG_FILE) == places[_STATE_DIR]:
        return  # told as such
    why = None if name == JOURNAL else paths.why_not_writable(Path(name).absolute())
    if why is not None:
        remedy = "make it writable, or set engine.vllm.log_file elsewhere"
        yield _Finding(_LOG_FILE, f"{name} cannot be written: {why}", remedy)


def _places(case: _Case) -> dict[Loc, str]:
    """Return where our files and folders are, links followed; a socket that has no place is left out."""
    found = {_STATE_DIR: paths.state_dir(case.settings, case.environ)}
    with contextlib.suppress(ConfigError):
        found[_SOCKET] = paths.control_socket(case.settings, case.environ)
    if case.vllm.log_file != JOURNAL:
        found[_LOG_FILE] = Path(case.vllm.log_file).absolute()
    return {loc: os.path.realpath(path) for loc, path in found.items()}


def _same_place(case: _Case) -> Iterable[_Finding]:
    for (one, place), (other, place_too) in itertools.combinations(_places(case).items(), 2):
        if place == place_too:
            at, beside = (other, one) if case.layers.given(other) else (one, other)
            yield _Finding(at, f"{place} is {dotted(beside)} as well", "give each a path of its own", (one, other))


def _socket(case: _Case) -> Iterable[_Finding]:
    loc = _SOCKET
    try:
        path = paths.control_socket(case.settings, case.environ)
    except ConfigError as error:
        yield _Finding(loc, error.problems[0].why, error.problems[0].remedy)
        return
    length = len(str(path).encode(errors="surrogateescape"))
    if length > paths.MAX_SOCKET_PATH:
        why = f"the path of the socket has {length} bytes, Linux allows {paths.MAX_SOCKET_PATH}"
        yield _Finding(loc, why, "give a shorter path")


def _ports(case: _Case) -> Iterable[_Finding]:
    metrics, vllm = case.settings.metrics, case.vllm
    same_host = metrics.host == vllm.host or bool({metrics.host, vllm.host} & _ANY_HOST)
    if metrics.enabled and same_host and metrics.port == vllm.port:
        ours, theirs = ("metrics", "port"), (*_VLLM, "port")
        loc = ours if case.layers.given(ours) else theirs
        yield _Finding(loc, f"vLLM and our metrics cannot both listen on {vllm.port}", "change one", (ours, theirs))


def _key(case: _Case) -> Iterable[_Finding]:
    key, variable = (*_VLLM, "api_key"), (*_VLLM, "env", "VLLM_API_KEY")
    ours = case.vllm.api_key.get_secret_value() if case.vllm.api_key else None
    theirs = case.vllm.env.get("VLLM_API_KEY")
    if theirs and theirs != ours:
        why = "vLLM would demand a key that the probes do not have"
        yield _Finding(variable, why, "set engine.vllm.api_key instead", (key, (*_VLLM, "env")))
    elif ours is None and theirs is None and case.environ.get("VLLM_API_KEY"):
        why = "VLLM_API_KEY is in the environment, so vLLM demands a key, and the probes have none"
        yield _Finding(key, why, "set api_key: ${VLLM_API_KEY}, or unset the variable", fatal=False)


def _exposed(case: _Case) -> Iterable[_Finding]:
    """Find secrets that stand in a file for everybody to read. One finding: the file is mended once."""
    name = case.layers.name
    try:
        public = Path(name).stat().st_mode & stat.S_IROTH
    except OSError:
        return
    here = [loc for loc in _secrets(case) if loc not in case.layers.filled and _in_file(case.layers, loc)]
    if public and here:
        what = ", ".join(dotted(loc) for loc in here)
        why = f"everybody on this host can read {name}, and it holds {what}"
        remedy = f"chmod 640 {name}, or take it from elsewhere: ${{credential:NAME}}, ${{NAME}}"
        yield _Finding(here[0], why, remedy, fatal=False)


def _in_file(layers: Layers, loc: Loc) -> bool:
    return layers.where(loc).startswith(f"{layers.name}:")


def _secrets(case: _Case) -> Iterator[Loc]:
    if case.vllm.api_key is not None:
        yield (*_VLLM, "api_key")
    yield from ((*_VLLM, "env", name) for name, value in case.vllm.env.items() if value and is_secret_name(name))
    args = case.vllm.extra_args
    for index, word in enumerate(args):
        flag, equals, _ = word.partition("=")
        if flag.startswith("--") and option_names_secret(flag) and (equals or index + 1 < len(args)):
            yield (*_VLLM, "extra_args", index if equals else index + 1)


def _clamp(case: _Case) -> Iterable[_Finding]:
    own, told = case.vllm.concurrency, case.settings.concurrency
    loc = ("resources", "max_concurrent_jobs")
    if told < own:
        why = f"lowers the advertised concurrency from {own} to {told}"
        yield _Finding(loc, why, "raise it, or lower engine.vllm.concurrency", ((*_VLLM, "concurrency"),), fatal=False)


_Look = Callable[[_Case], Iterable[_Finding] | Iterator[_Finding]]
_LOOKS: tuple[_Look, ...] = (
    _backoff,
    _aliases,
    _flags,
    _environment,
    _launcher,
    _log_file,
    _same_place,
    _socket,
    _ports,
    _key,
    _exposed,
    _clamp,
)
