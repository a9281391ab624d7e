"""`doctor`: reads the configuration and looks at the host, before the first start or when something is odd."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from vllm_supervisor.adapters.host import NvidiaSmi, Surroundings, collect
from vllm_supervisor.adapters.host.processes import Processes
from vllm_supervisor.adapters.host.service import Service, here, unit
from vllm_supervisor.adapters.process.port import port_blocker
from vllm_supervisor.adapters.process.procfs import Proc
from vllm_supervisor.cli import client
from vllm_supervisor.cli.find import named_socket
from vllm_supervisor.cli.place import configuration
from vllm_supervisor.config import paths
from vllm_supervisor.config.load import Loaded, load
from vllm_supervisor.domain.doctor import Finding, Result, examine, summary
from vllm_supervisor.domain.doctor.facts import Port
from vllm_supervisor.errors import ConfigError, ExitCode, SupervisorError

_NAME = "vllm-supervisor"
_UNIT = f"{_NAME}.service"
_PATIENCE = 2.0
"""Seconds for a daemon that runs to say which engine is its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `doctor` has beside the global options `-c`, `--set` and `--json`."""
    parser.add_argument(
        "--unit",
        metavar="NAME",
        help=f"look with the user, environment and limits of this unit (default without -c: {_UNIT}, if installed)",
    )


def run(args: argparse.Namespace) -> int:
    """Print what was found; return 0, 1 where something is wrong, 2 where the configuration is."""
    instance = args.instance or _instance(args.unit)
    path = configuration(args, instance)
    try:
        service = _service(args.unit, f"{_NAME}@{instance}.service" if instance else _UNIT, default=args.config is None)
        loaded = _load(path, args.set or (), service)
        engine = _own_engine(loaded, service.env, named_socket(args, {}))
        around = Surroundings(
            service=service,
            cards=NvidiaSmi(service.env, user=service.uid),
            port=_port(loaded, engine),
            processes=Processes(engine),
        )
        findings = (*_configuration(loaded), *examine(collect(loaded, around)))
    except ConfigError as error:
        for problem in error.problems:
            _print(f"vllm-supervisor: {problem}", error=True)
        if args.json:
            _print(json.dumps({"ok": False, "problems": [problem._asdict() for problem in error.problems]}))
        return ExitCode.BAD_CONFIG
    counts = summary(findings)
    if args.json:
        _print(json.dumps({"checks": [asdict(finding) for finding in findings], "summary": counts}))
    else:
        _print(text(findings))
    return ExitCode.NOT_READY if counts[Result.FAIL] else ExitCode.OK


def text(findings: tuple[Finding, ...]) -> str:
    """Return a line a finding, its remedy below it; at the end, what was skipped, for each reason in one line."""
    width = max(len(finding.name) for finding in findings)
    lines, skipped = [], dict[str, list[str]]()
    for finding in findings:
        if finding.result is Result.SKIP:
            skipped.setdefault(finding.detail, []).append(finding.name)
            continue
        lines.append(f"{finding.result.value:<4}  {finding.name:<{width}}  {finding.detail}")
        if finding.remedy:
            lines.append(f"{'':<4}  {'':<{width}}  -> {finding.remedy}")
    lines += [f"skip  {', '.join(names)}: {why}" for why, names in skipped.items()]
    counts = summary(findings)
    lines.append(
        f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} wrong, {counts['skip']} not checked"
    )
    return "\n".join(lines)


def _instance(unit: str | None) -> str | None:
    """Return the instance that the name of a unit of ours has; None where it has none."""
    template, at, instance = (unit or "").partition("@")
    return instance.removesuffix(".service") if at and template == _NAME else None


def _service(name: str | None, usual: str, *, default: bool) -> Service:
    """Return whose eyes to look with. Raises SupervisorError for a unit that was named and is not there."""
    if name is None and not default:
        return here(os.environ)
    wanted = name or usual
    found = unit(wanted if wanted.endswith(".service") else f"{wanted}.service", os.environ)
    if found is None and name is not None:
        raise SupervisorError(f"unit {name}", "systemd does not know it", "install it, or leave --unit away")
    return found or here(os.environ)


def _load(path: Path, sets: Sequence[str], service: Service) -> Loaded:
    """Read the configuration as the service would, whose credentials are there only while it runs."""
    if not service.credentials:
        return load(path, sets=sets, environ=service.env)
    with tempfile.TemporaryDirectory(prefix="vllm-supervisor-") as folder:
        for name, file in service.credentials.items():
            Path(folder, name).symlink_to(file)
        return load(path, sets=sets, environ={**service.env, "CREDENTIALS_DIRECTORY": folder})


def _configuration(loaded: Loaded) -> list[Finding]:
    name = "configuration"
    if not loaded.warnings:
        return [Finding(name, Result.OK, str(loaded.path))]
    split = [warning.rpartition("; ") for warning in loaded.warnings]
    return [Finding(name, Result.WARN, why or remedy, remedy) for why, _, remedy in split]


def _own_engine(loaded: Loaded, environ: Mapping[str, str], socket: str | None) -> int | None:
    """Return the leader of the engine that this configuration's daemon runs; None where none does or says so."""
    path = socket or str(paths.control_socket(loaded.settings, environ))
    try:
        pid = client.get_json(path, "/v1/status", _PATIENCE).get("pid")
    except SupervisorError:
        return None
    return pid if isinstance(pid, int) else None


def _port(loaded: Loaded, engine: int | None) -> Port:
    """Say whether vLLM can bind. A daemon launches at a free port only: while its engine runs, it is its own."""
    vllm = loaded.settings.engine.vllm
    blocker = port_blocker(Proc(), vllm.host, vllm.port)
    if blocker is None:
        return Port()
    return Port(blocker.why, blocker.remedy, ours=engine is not None)


def _print(line: str, *, error: bool = False) -> None:
    # A path or a variable need not be UTF-8, and then it cannot be printed as it is.
    print(line.encode(errors="backslashreplace").decode(), file=sys.stderr if error else sys.stdout)
