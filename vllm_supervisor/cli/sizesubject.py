"""What `size` is asked about: which model with which arguments, on which GPUs, and what earlier starts measured."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.adapters.host import NvidiaSmi
from vllm_supervisor.adapters.host.asked import size
from vllm_supervisor.adapters.host.interpreter import interpreter
from vllm_supervisor.adapters.host.packages import installed
from vllm_supervisor.adapters.host.wanted import Flags, flags
from vllm_supervisor.adapters.statefiles import measurements
from vllm_supervisor.cli.place import configuration
from vllm_supervisor.config import paths
from vllm_supervisor.config.launch import launch_spec
from vllm_supervisor.config.load import load
from vllm_supervisor.domain.capacity.cards import gpu
from vllm_supervisor.domain.capacity.measured import Key, Measured, gpu_key
from vllm_supervisor.domain.capacity.sizing import Gpus
from vllm_supervisor.domain.doctor.cards import visible
from vllm_supervisor.domain.doctor.facts import Card, Install, Unknown
from vllm_supervisor.domain.startup import arguments_digest
from vllm_supervisor.errors import BadInputError

_FLAGS = (
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "gpu-memory-utilization", "max-model-len",
    "kv-cache-dtype", "quantization", "dtype", "kv-cache-memory-bytes", "block-size", "max-num-batched-tokens",
    "max-num-seqs",
)  # fmt: skip
"""vLLM's flags that `size` has as well."""
_QUESTIONS = ("context", "output", "vllm-version")
_CUDA_SEES = 0.985
"""Of the memory that the driver reports, CUDA sees so much, or more: the least of the cards in the table."""
_LEAST_MEMORY = 1 << 28
_MANY = 1 << 16

Cards = tuple[Card, ...] | Unknown


@dataclass(frozen=True, slots=True)
class Launch:
    """What a daemon would launch: what its starts are remembered by, and where."""

    model: str
    arguments: str
    vllm_version: str | None
    state_dir: Path


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, the flags and the environment it would run with, and where relative paths begin.

    `launch` is None where the question is about something else than the configuration as it is.
    """

    model: str
    flags: Flags
    env: dict[str, str]
    folder: Path
    launch: Launch | None = None


def subject(args: argparse.Namespace) -> Subject:
    """Return what is asked about. Raises ConfigError for a configuration that cannot be used."""
    if args.model is not None and args.config is None:
        return Subject(args.model, _given(args), dict(os.environ), Path.cwd())
    loaded = load(configuration(args), sets=args.set or (), environ=os.environ)
    vllm = loaded.settings.engine.vllm
    spec = launch_spec(loaded.settings, os.environ)
    folder = Path(spec.cwd or ".").absolute()
    python = interpreter([*vllm.launcher, spec.argv[len(vllm.launcher)]], spec.env, folder)
    install = installed(python, spec.env) if isinstance(python, str) else python
    version = install.vllm if isinstance(install, Install) else None
    given = _given(args)
    configured = {**flags(vllm), **({"vllm-version": version} if version else {})}
    as_it_is = args.model in (None, vllm.model) and not set(given) - set(_QUESTIONS) and args.gpu_memory is None
    state_dir = paths.state_dir(loaded.settings, os.environ)
    return Subject(
        model=args.model or vllm.model,
        flags={**configured, **given},
        env=dict(spec.env),
        folder=folder if args.model is None else Path.cwd(),
        launch=Launch(vllm.model, arguments_digest(spec.argv), version, state_dir) if as_it_is else None,
    )


def _given(args: argparse.Namespace) -> dict[str, str]:
    """Return the flags of the command line, by vLLM's names."""
    values = {name: getattr(args, name.replace("-", "_")) for name in (*_FLAGS, *_QUESTIONS)}
    given = {name: value for name, value in values.items() if value is not None}
    return {**given, "enforce-eager": ""} if args.enforce_eager else given


def cards(args: argparse.Namespace, about: Subject) -> Cards:
    """Return the GPUs of this host that the engine would see; not asked for where others are named."""
    if args.gpu_memory is not None:
        return Unknown("others are named")
    found = NvidiaSmi(about.env).read(lambda holder: holder)
    return found if isinstance(found, Unknown) else visible(found, about.env.get("CUDA_VISIBLE_DEVICES"))


def remembered(about: Subject, seen: Cards) -> tuple[tuple[Key, Measured] | None, str]:
    """Return what the last start like this one measured, and what there is to remark about looking for it."""
    if about.launch is None:
        return None, ""
    launch = about.launch
    try:
        memory = measurements.read(launch.state_dir)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return None, f"What earlier starts measured is not looked at: {launch.state_dir}: {why}."
    names = () if isinstance(seen, Unknown) else tuple(card.name for card in seen)
    return memory.latest(launch.model, launch.arguments, gpu_key(names), launch.vllm_version), ""


def gpus(args: argparse.Namespace, seen: Cards, ranks: int, *, known: bool) -> Gpus:
    """Return the GPUs to size for: as named, else those of this host.

    None are needed where the size of the cache is `known`. Raises BadInputError.
    """
    count = _whole(args.gpus)
    if args.gpu_memory is not None:
        kind = gpu(args.gpu_memory)
        if kind is not None:
            return Gpus(kind.memory, count or ranks, kind, kind.name, kind.capability)
        return Gpus(_memory(args.gpu_memory), count or ranks)
    if isinstance(seen, Unknown) or not seen:
        if known:
            return Gpus(0, count or ranks)
        why = seen.why if isinstance(seen, Unknown) else "no GPU is visible"
        raise BadInputError("GPU", why, "say what to size for: --gpu-memory H100, or --gpu-memory 80GiB")
    least = min(seen, key=lambda card: card.total)
    kind = gpu(least.name)
    if kind is None and not least.total:
        raise BadInputError("GPU", f"the driver does not say the memory of {least.name}", "give --gpu-memory SIZE")
    memory = kind.memory if kind else int(least.total * _CUDA_SEES)
    return Gpus(memory, count or len(seen), kind, least.name, least.capability or (kind.capability if kind else None))


def _memory(text: str) -> int:
    try:
        found = size("--gpu-memory", text)
    except BadInputError as error:
        known = "a size such as 80GiB, or a card such as H100, L40S or 'RTX 4090'"
        raise BadInputError(error.what, f"{text!r} is neither a size nor a card known here", f"give {known}") from None
    if found < _LEAST_MEMORY:
        raise BadInputError("--gpu-memory", f"{text!r} is {found} bytes", f"write the unit: {text}GiB")
    return found


def _whole(number: str | None) -> int | None:
    if number is None:
        return None
    if not number.isascii() or not number.isdigit() or not 0 < int(number) <= _MANY:
        raise BadInputError("--gpus", f"{number!r} is not a number of GPUs", "write a whole number above 0")
    return int(number)
