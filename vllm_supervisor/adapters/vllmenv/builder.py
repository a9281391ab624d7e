"""Builds one environment after the other until one passes, and puts that one into use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.adapters.vllmenv import child
from vllm_supervisor.adapters.vllmenv.inspect import look_into
from vllm_supervisor.adapters.vllmenv.installer import Installer
from vllm_supervisor.adapters.vllmenv.place import Place
from vllm_supervisor.domain.torchcheck import Finding, fault
from vllm_supervisor.domain.torchchoice import Build
from vllm_supervisor.errors import SupervisorError


@dataclass(frozen=True, slots=True)
class Attempt:
    """A build that passed and is in use now; `failed` says what was wrong with those before it."""

    build: Build
    where: Path
    finding: Finding
    failed: tuple[str, ...]


def build(
    place: Place,
    installer: Installer,
    builds: Sequence[Build],
    pip_args: tuple[str, ...],
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> Attempt:
    """Build, look into it, switch. Until the switch, nothing that is in use is touched.

    Raises SupervisorError where no build passes, or another run is at work; what was built is removed then, as on any
    other way out.
    """
    building = child.for_building(environ)
    with place.locked() as lock:
        for path in place.clean():
            say(f"removed {path}, left by an earlier run")
        failed: list[str] = []
        for wanted in builds:
            where = place.new()
            say(f"building {wanted} in {where}")
            try:
                finding = _build(where, installer, wanted, pip_args, building, say, lock)
                facts = {"vllm": finding.vllm, "torch": finding.torch, "torch_cuda": finding.torch_cuda}
                place.switch(where, facts)
            except SupervisorError as error:
                place.discard(where)
                failed.append(f"{wanted}: {error.what} {error.why}")
                say(f"not usable: {failed[-1]}")
            except BaseException:
                place.discard(where)
                raise
            else:
                for path in place.clean():
                    say(f"removed {path}, older than the previous one")
                return Attempt(wanted, where, finding, tuple(failed))
    use = f"{place.link} is as it was" if place.current else "nothing was installed"
    remedy = f"{use}; see the lines above, or say in VLLM_PIP_ARGS what to install"
    raise SupervisorError("install-vllm", "; ".join(failed), remedy)


def _build(
    where: Path,
    installer: Installer,
    wanted: Build,
    pip_args: tuple[str, ...],
    environ: Mapping[str, str],
    say: Callable[[str], None],
    lock: int,
) -> Finding:
    def passed_on(line: str) -> None:
        say(f"  {line}")

    child.run(installer.make(where), passed_on, environ=environ, lock=lock)
    child.run(installer.install(where, wanted, pip_args), passed_on, environ=environ, lock=lock)
    say("importing vLLM in it, and comparing torch's CUDA with its extension's")
    finding = look_into(where, child.for_looking(environ))
    wrong = fault(finding, wanted.backend)
    if wrong is not None:
        raise SupervisorError("the check", wrong, "")
    return finding
