"""`install-vllm`: builds an environment of vLLM's own that suits the card, and puts it into use when it works."""

import argparse
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from vllm_supervisor.adapters.nvidia_smi import look
from vllm_supervisor.adapters.vllmenv import Attempt, Installer, Place, build, find_installer
from vllm_supervisor.config.paths import why_not_writable
from vllm_supervisor.domain.torchcheck import cuda_major, no_driver
from vllm_supervisor.domain.torchchoice import Choice, Host, Refusal, choose, cuda_of_driver, is_version
from vllm_supervisor.errors import ExitCode, SupervisorError

_PIP_ARGS = "VLLM_PIP_ARGS"
_A_BUILD = 2
"""Commands that a build takes: make, install."""
_PASSWORD = re.compile(r"(?<=://)[^/\s@]+@")
_WORDS = """
The default DIR is /opt/vllm-supervisor/vllm for root, else ~/.local/share/vllm-supervisor/vllm. DIR is a symbolic link
into DIR.builds; it is switched when the new environment has passed its check, and the one before it is kept for a way
back. A build that fails or is interrupted changes nothing.

The build of torch is chosen by the card and by the CUDA that the driver offers: compute capability 12.0 and up needs
cu130, cu130 needs driver 580 or later; cu129 is tried where cu130 fails the check. VLLM_PIP_ARGS in the environment
wins: these arguments of `uv pip install` (or pip's) are used instead of the choice. Without uv it is required, because
only uv knows where torch's builds for each CUDA are. Passwords for an index belong in ~/.netrc, not there.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `install-vllm`."""
    parser.epilog = _WORDS
    # Every command has --version, which prints ours; here it is vLLM's.
    group = parser.add_argument_group("installation", conflict_handler="resolve")
    group.add_argument("--version", metavar="V", type=_version, help="vLLM's version; default: the newest")
    group.add_argument("--into", metavar="DIR", type=Path, help="where the environment is to be")
    group.add_argument("--dry-run", action="store_true", help="say what would be done and why, and change nothing")


def run(args: argparse.Namespace) -> int:
    """Choose, build, check, switch; return 0. Raises SupervisorError, and then what was in use still is."""
    environ = dict(os.environ)
    pip_args = _pip_args(environ.get(_PIP_ARGS, ""))
    place = Place(_absolute(args.into or _default_place(environ)))
    _warn_of_strangers(place)
    host = look()
    choice = choose(host, args.version or "", pip_args)
    if isinstance(choice, Refusal):
        raise SupervisorError("install-vllm", choice.why, f"{choice.remedy}; nothing was changed")
    installer = find_installer(environ)
    if not installer.knows_torch and not pip_args:
        why = f"there is no uv, and only uv knows where torch's build {choice.builds[0].backend} is"
        remedy = f"install uv, or say in {_PIP_ARGS} where pip finds it (--extra-index-url ...); nothing was changed"
        raise SupervisorError("install-vllm", why, remedy)
    if args.dry_run:
        _demand_writable(place)
        _print(_plan(host, choice, installer, place, pip_args), as_json=args.json)
        return ExitCode.OK
    for reason in choice.reasons:
        _say(reason)
    with _ending_in_order():
        made = build(place, installer, choice.builds, pip_args, environ, _say)
    _warn_of_driver(host, made)
    _print(_result(made, place), as_json=args.json)
    return ExitCode.OK


def _demand_writable(place: Place) -> None:
    why = why_not_writable(place.builds / "lock")
    if why is not None:
        remedy = "run it as root, or name another --into; nothing was changed"
        raise SupervisorError("install-vllm", f"{place.builds} cannot be written: {why}", remedy)


def _warn_of_strangers(place: Place) -> None:
    """Say who could replace what root builds. With rights of one's own only, there is nothing to be gained."""
    found = place.open_to() if os.geteuid() == 0 else None
    if found is not None:
        directory, uid = found
        who = f"uid {uid}, whose it is," if uid else "other users"
        _say(
            f"{directory}: {who} may replace what root builds below it; an --into that only root may write to is safer"
        )


def _version(text: str) -> str:
    if not is_version(text):
        raise argparse.ArgumentTypeError(f"no version of vLLM: {text!r}")
    return text


def _pip_args(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SupervisorError(_PIP_ARGS, str(error), "quote it as for a shell; nothing was changed") from None


def _default_place(environ: dict[str, str]) -> Path:
    if os.geteuid() == 0:
        # Not in the service's own directories: its user could replace what root builds and runs there.
        return Path("/opt/vllm-supervisor/vllm")
    data = environ.get("XDG_DATA_HOME", "")
    return Path(data if data.startswith("/") else Path.home() / ".local/share", "vllm-supervisor/vllm")


def _absolute(path: Path) -> Path:
    """Resolve the directory that holds it, but not itself: it is the link."""
    path = path.expanduser()
    return path.parent.resolve() / path.name if path.name not in ("", "..") else path.resolve()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What `--dry-run` shows; the fields are the keys of its JSON."""

    cards: list[str]
    driver: str
    driver_cuda: str
    builds: list[dict[str, str]]
    reasons: list[str]
    commands: list[list[str]]
    into: str
    build_directory: str
    in_use: str | None
    launcher: list[str]

    def __str__(self) -> str:
        commands = [" ".join(map(shlex.quote, words)) for words in self.commands]
        lines = [
            *(f"card       {card}" for card in self.cards or ["none found"]),
            f"driver     {self.driver}, offers CUDA {self.driver_cuda}" if self.driver else "driver     none found",
            *(f"because    {reason}" for reason in self.reasons),
            *(f"{'would run' if index < _A_BUILD else 'or else  '}  {text}" for index, text in enumerate(commands)),
            f"into       {self.into}, a link to {self.build_directory}",
            f"in use     {self.in_use}, kept for a way back" if self.in_use else "in use     nothing yet",
            f"launcher   [{', '.join(self.launcher)}]",
            "nothing was changed",
        ]
        return "\n".join(lines)


def _plan(host: Host, choice: Choice, installer: Installer, place: Place, pip_args: tuple[str, ...]) -> _Plan:
    where = place.new()
    commands = [
        [_PASSWORD.sub("***@", word) for word in command]
        for item in choice.builds
        for command in (installer.make(where), installer.install(where, item, pip_args))
    ]
    return _Plan(
        cards=[str(card) for card in host.cards],
        driver=host.driver,
        driver_cuda=".".join(map(str, host.cuda or cuda_of_driver(host.driver) or ())),
        builds=[{"torch_backend": item.backend, "requirement": item.requirement} for item in choice.builds],
        reasons=list(choice.reasons),
        commands=commands,
        into=str(place.link),
        build_directory=str(where),
        in_use=str(place.current) if place.current else None,
        launcher=_launcher(place),
    )


@dataclass(frozen=True, slots=True)
class _Result:
    """What was installed; the fields are the keys of the JSON."""

    vllm: str
    torch: str
    torch_cuda: str
    torch_backend: str
    into: str
    build_directory: str
    previous: str | None
    failed: list[str]
    launcher: list[str]

    def __str__(self) -> str:
        lines = [
            f"vLLM {self.vllm} with torch {self.torch} is in {self.into}",
            f"launcher: [{', '.join(self.launcher)}]",
        ]
        if self.previous:
            lines.append("an engine that runs keeps the one before until `vllm-supervisor restart`")
            lines.append(f"the way back: ln -sfn {shlex.quote(self.previous)} {shlex.quote(self.into)}")
        return "\n".join(lines)


def _result(made: Attempt, place: Place) -> _Result:
    return _Result(
        vllm=made.finding.vllm,
        torch=made.finding.torch,
        torch_cuda=made.finding.torch_cuda,
        torch_backend=made.build.backend,
        into=str(place.link),
        build_directory=str(made.where),
        previous=str(place.previous) if place.previous else None,
        failed=list(made.failed),
        launcher=_launcher(place),
    )


def _launcher(place: Place) -> list[str]:
    return [str(place.link / "bin/vllm"), "serve"]


def _print(told: _Plan | _Result, *, as_json: bool) -> None:
    print(json.dumps(asdict(told), ensure_ascii=False) if as_json else told)


def _warn_of_driver(host: Host, made: Attempt) -> None:
    """Only VLLM_PIP_ARGS lead here: the host may be another one, or have a package that helps an old driver."""
    if no_driver(made.finding):
        _say("warning: vLLM's extension could not be imported, because this host has no NVIDIA driver")
    offered = host.cuda or cuda_of_driver(host.driver)
    major = cuda_major(made.finding.torch_cuda)
    if offered and major and major > offered[0]:
        offers = f"driver {host.driver} offers {offered[0]}.{offered[1]}"
        _say(f"warning: torch is built for CUDA {made.finding.torch_cuda}, and {offers}")


def _say(line: str) -> None:
    print(f"install-vllm: {_PASSWORD.sub('***@', line)}", file=sys.stderr, flush=True)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end us as Ctrl-C does: by an exception, so that what was half built is removed."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    # What is ignored stays so: nohup ignores SIGHUP.
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        _say("interrupted: what was half built is removed, what is in use was not changed")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
