"""vLLM's own flags, read the way vLLM reads them, for what they mean to the one who launches and probes it.

vLLM's parser (utils/argparse_utils.py, 0.33) takes `--a-b`, `--a_b`, `--x=y`, argparse's abbreviations, and a
`--config` file whose keys count as flags that stand before the others.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_supervisor.config import yamlfile
from vllm_supervisor.config.yamlfile import Document

ReadConfig = Callable[[str], Document]
"""Reads the file that `--config` names."""

_OWNED = {
    "host": "set engine.vllm.host instead",
    "port": "set engine.vllm.port instead",
    "api-key": "set engine.vllm.api_key instead: arguments can be read by every user of this host",
    "model": "set engine.vllm.model instead",
}
_UNSUPPORTED = {
    "uds": "probes and clients need a TCP port",
    "headless": "there would be no HTTP server to probe",
    "grpc": "there would be no HTTP server to probe",
}
_WATCHED = (
    *_OWNED,
    *_UNSUPPORTED,
    "config",
    "disable-log-stats",
    "download-dir",
    "lora-modules",
    "no-disable-log-stats",
    "revision",
    "served-model-name",
    "shutdown-timeout",
    "ssl-cert-reqs",
    "ssl-certfile",
)
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-n": "--nnodes",
}
"""vLLM's short flags (engine/arg_utils.py, 0.32) for what is looked at."""
_SIZES = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_CONFIG_REMEDIES = {
    yamlfile.UNREADABLE: "create it, make it readable, or name another one after --config",
    yamlfile.EMPTY: "write vLLM's flags in it, such as `seed: 7`, or remove --config",
    yamlfile.NO_MAPPING: "write vLLM's flags in it, such as `seed: 7`",
}
"""By what is said of our own file."""
_MIN_ABBREVIATION = 2
"""`--ho` is --host to argparse (0.32). Where something else begins alike, such as `--po`, vLLM refuses to start."""
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")
_CERT_REQUIRED = "2"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as given. `index` is that of the argument it stands in (for a `--config` file: of `--config`)."""

    name: str
    values: tuple[str, ...]
    index: int
    file: str | None = None

    @property
    def first(self) -> str:
        """The first value, or nothing."""
        return self.values[0] if self.values else ""

    def __str__(self) -> str:
        return f"--{self.name}" + (f" (in {self.file})" if self.file else "")


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to tell about the argument at `index`."""

    index: int
    why: str
    remedy: str
    fatal: bool = True


@dataclass(frozen=True, slots=True)
class VllmArgs:
    """What the flags mean to us."""

    served_names: tuple[str, ...] = ()
    """`--served-model-name`; `/v1/models` lists all of them, metrics use the first."""
    lora_names: frozenset[str] = frozenset()
    tls: bool = False
    revision: str | None = None
    download_dir: str | None = None
    remarks: tuple[Remark, ...] = ()


def read(args: Sequence[str], read_config: ReadConfig, *, grace: float = float("inf")) -> VllmArgs:
    """Read flags. `grace` is the seconds between SIGTERM and SIGKILL."""
    given, remarks = _merged(args, read_config)
    last = {flag.name: flag for flag in given}
    for flag in given:
        remarks += _refusals(flag)
    remarks += _warnings(given, grace)
    served = last.get("served-model-name")
    revision, download_dir = last.get("revision"), last.get("download-dir")
    return VllmArgs(
        served_names=tuple(name for name in served.values if name) if served else (),
        lora_names=frozenset(name for flag in given if flag.name == "lora-modules" for name in _loras(flag.values)),
        tls="ssl-certfile" in last,
        revision=revision.first if revision else None,
        download_dir=download_dir.first if download_dir else None,
        remarks=tuple(remarks),
    )


def effective(args: Sequence[str], read_config: ReadConfig) -> dict[str, Flag]:
    """Return the flags that hold, by name: the last of each, those of a `--config` file before the others."""
    return {flag.name: flag for flag in _merged(args, read_config)[0]}


def _merged(args: Sequence[str], read_config: ReadConfig) -> tuple[list[Flag], list[Remark]]:
    given = list(flags(args))
    remarks: list[Remark] = []
    for flag in [flag for flag in given if flag.name == "config"]:
        inner, remark = _config_file(flag, read_config)
        given = inner + given
        remarks += [remark] if remark else []
    return given, remarks


def flags(args: Sequence[str]) -> Iterator[Flag]:
    """Yield the long flags, each with the values that follow it; some short ones by their long names."""
    at = 0
    while at < len(args):
        arg, index = args[at], at
        at += 1
        if arg == "--":
            return
        name, equals, value = arg.partition("=")
        name = _SHORT.get(name, name)
        if not name.startswith("--"):
            continue
        values = [value] if equals else []
        while not equals and at < len(args) and (not args[at].startswith("-") or _NEGATIVE.fullmatch(args[at])):
            values.append(args[at])
            at += 1
        yield Flag(_full_name(name[2:]), tuple(values), index)


def _full_name(name: str) -> str:
    name = name.replace("_", "-")
    if name in _WATCHED or len(name) < _MIN_ABBREVIATION:
        return name
    meant = [watched for watched in _WATCHED if watched.startswith(name)]
    return meant[0] if len(meant) == 1 else name


def _config_file(flag: Flag, read_config: ReadConfig) -> tuple[list[Flag], Remark | None]:
    if not flag.values:
        return [], Remark(flag.index, "--config names no file", "write --config FILE")
    document = read_config(flag.first)
    if document.problems:
        problem = document.problems[0]
        remedy = _CONFIG_REMEDIES.get(problem.remedy, problem.remedy)
        return [], Remark(flag.index, f"--config: {problem.where}: {problem.why}", remedy)
    inner = []
    for key, value in document.data.items():
        if value is not False:
            inner.append(Flag(_full_name(key), _texts(value), flag.index, flag.first))
    return inner, None


def _texts(value: Any) -> tuple[str, ...]:
    if value is True:
        return ()
    if isinstance(value, dict):
        return (json.dumps(value),)
    items = value if isinstance(value, list) else [value]
    return tuple(str(getattr(item, "text", item)) for item in items)


def _refusals(flag: Flag) -> Iterator[Remark]:
    if flag.name in _OWNED:
        yield Remark(flag.index, f"{flag} is set by the supervisor", _OWNED[flag.name])
    elif flag.name in _UNSUPPORTED:
        yield Remark(flag.index, f"{flag} is not supported: {_UNSUPPORTED[flag.name]}", "remove it")
    elif flag.name == "ssl-cert-reqs" and flag.first == _CERT_REQUIRED:
        why = f"{flag} 2 is not supported: the probes have no client certificate"
        yield Remark(flag.index, why, "use 0 or 1, or put a proxy that asks for certificates in front")
    elif flag.name == "served-model-name" and not any(name.strip() for name in flag.values):
        yield Remark(flag.index, f"{flag} names nothing", "give a name, or remove it: the model's own is served then")
    elif flag.name in _SIZES and not _is_size(flag.first):
        given = repr(flag.first[:40]) if flag.values else "nothing"
        yield Remark(flag.index, f"{flag} is given {given}, not a number of GPUs", "give 1 or more")


def _is_size(text: str) -> bool:
    try:
        return int(text) > 0
    except ValueError:
        return False


def _warnings(given: Sequence[Flag], grace: float) -> Iterator[Remark]:
    stats = next((flag for flag in reversed(given) if flag.name.endswith("disable-log-stats")), None)
    if stats and stats.name == "disable-log-stats":
        why = f"{stats} leaves vLLM without the counters by which a stuck engine is found"
        yield Remark(stats.index, why, "remove it", fatal=False)
    shutdown = next((flag for flag in reversed(given) if flag.name == "shutdown-timeout"), None)
    if shutdown and (seconds := _seconds(shutdown.first)) is not None and seconds >= grace:
        why = f"{shutdown} {shutdown.first} is not below stop.grace ({grace:g}): SIGKILL would come first"
        yield Remark(shutdown.index, why, "lower it, or raise engine.vllm.stop.grace", fatal=False)


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _loras(values: Sequence[str]) -> Iterator[str]:
    """Yield the names in `name=path` and `{"name": …, "path": …}`, and in a list of the latter."""
    for value in values:
        if not value.lstrip().startswith(("{", "[")):
            yield value.partition("=")[0]
            continue
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            continue
        for item in parsed if isinstance(parsed, list) else [parsed]:
            if isinstance(item, dict) and isinstance(item.get("name"), str):
                yield item["name"]
