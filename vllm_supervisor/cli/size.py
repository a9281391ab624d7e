"""`size`: what fits on which GPU, and how many requests at once. Reads files; runs and downloads nothing."""

import argparse
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_supervisor.adapters.host import NvidiaSmi
from vllm_supervisor.adapters.host.asked import asked, size
from vllm_supervisor.adapters.host.checkpoint import Checkpoint, checkpoint
from vllm_supervisor.adapters.host.interpreter import interpreter
from vllm_supervisor.adapters.host.packages import installed
from vllm_supervisor.adapters.host.wanted import Flags, flags
from vllm_supervisor.cli.sizetext import as_json, text
from vllm_supervisor.config.launch import launch_spec
from vllm_supervisor.config.load import DEFAULT_PATH, load
from vllm_supervisor.domain.capacity import sizing
from vllm_supervisor.domain.capacity.cards import gpu
from vllm_supervisor.domain.capacity.choice import spread
from vllm_supervisor.domain.capacity.limits import problems
from vllm_supervisor.domain.capacity.precision import precision
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.domain.capacity.remedies import remedies
from vllm_supervisor.domain.capacity.sizing import Ask, Gpus, Model
from vllm_supervisor.domain.doctor.cards import visible
from vllm_supervisor.domain.doctor.facts import Install, Unknown
from vllm_supervisor.errors import BadInputError, ExitCode, SupervisorError

_OURS = (
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "gpu-memory-utilization", "max-model-len",
    "kv-cache-dtype", "quantization", "dtype", "kv-cache-memory-bytes", "block-size", "max-num-batched-tokens",
    "max-num-seqs", "context", "output", "vllm-version",
)  # fmt: skip
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_CUDA_SEES = 0.985
"""Of what the driver reports, CUDA sees so much, or more (measured on the cards of the table)."""
_MANY = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `size`. Those that vLLM has too are called and written as there."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a folder, a config.json, a GGUF file or a name in Hugging Face's cache; the configured one without it",
    )
    card = parser.add_argument_group("the GPUs (default: those of this host)")
    card.add_argument("--gpu-memory", metavar="SIZE", help="memory of one, such as 80GiB, or a name: H100, 'RTX 4090'")
    card.add_argument("--gpus", metavar="N", help="how many there are")
    card.add_argument("-tp", "--tensor-parallel-size", metavar="N", help="GPUs that share each layer")
    card.add_argument("-pp", "--pipeline-parallel-size", metavar="N", help="stages of layers")
    card.add_argument("-dp", "--data-parallel-size", metavar="N", help="copies of the engine")
    engine = parser.add_argument_group("vLLM's arguments (default: the configured ones, else vLLM's)")
    engine.add_argument("--gpu-memory-utilization", metavar="SHARE", help="0.92, or 0.90 before vLLM 0.23")
    engine.add_argument("--max-model-len", metavar="N", help="tokens of a context; -1 for the longest that fits")
    engine.add_argument("--kv-cache-dtype", metavar="TYPE", help="auto, fp8, …")
    engine.add_argument("-q", "--quantization", metavar="METHOD", help="fp8 and bitsandbytes convert a 16-bit model")
    engine.add_argument("--dtype", metavar="TYPE", help="auto, bfloat16, half, float32")
    engine.add_argument("--kv-cache-memory-bytes", metavar="SIZE", help="the KV cache as given, not what is left")
    engine.add_argument("--block-size", metavar="N", help="tokens of a block (16; 128 on a CPU)")
    engine.add_argument("--max-num-batched-tokens", metavar="N", help="tokens of a step")
    engine.add_argument("--max-num-seqs", metavar="N", help="requests of a step")
    engine.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs")
    engine.add_argument("--vllm-version", metavar="VERSION", help="whose rules hold (default: the configured one's)")
    request = parser.add_argument_group("a realistic request")
    request.add_argument("--context", metavar="N", help="tokens of its prompt (2048)")
    request.add_argument("--output", metavar="N", help="tokens of its answer (512)")
    parser.add_argument("--like", metavar="MODEL_TYPE", help="read an unknown architecture as this one")


def run(args: argparse.Namespace) -> int:
    """Print the figures; return 0 where the model fits, 1 where it does not, 2 where it cannot be said."""
    try:
        subject = _configured(args) if args.model is None or args.config is not None else _named(args)
        found = checkpoint(subject.model, subject.flags, subject.env, subject.folder)
        model = _model(found, args.like)
        ask = asked(subject.flags, subject.env)
        gpus = _gpus(args, subject, ask)
        if not any(name in subject.flags for name in _PARALLEL) and gpus.count > 1:
            ask = replace(ask, layout=spread(model, ask, gpus, use_all=args.gpus is not None))
        wrong = list(problems(model, ask, gpus))
    except SupervisorError as error:
        return _complain(args, [error])
    if wrong:
        return _complain(args, wrong)
    answer = sizing.size(model, ask, gpus)
    helps = () if answer.fits else remedies(answer)
    _print(
        json.dumps(as_json(subject.model, found, answer, helps))
        if args.json
        else text(subject.model, found, answer, helps)
    )
    return ExitCode.OK if answer.fits else ExitCode.NOT_READY


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is sized: a model, the flags and the environment it would run with, and where relative paths begin."""

    model: str
    flags: Flags
    env: dict[str, str]
    folder: Path


def _named(args: argparse.Namespace) -> _Subject:
    return _Subject(args.model, _given(args), dict(os.environ), Path.cwd())


def _configured(args: argparse.Namespace) -> _Subject:
    """Return what the configuration launches, with the arguments of the command line over its own."""
    loaded = load(Path(args.config or DEFAULT_PATH), sets=args.set or (), environ=os.environ)
    vllm = loaded.settings.engine.vllm
    spec = launch_spec(loaded.settings, os.environ)
    folder = Path(spec.cwd or ".").absolute()
    given = dict(flags(vllm))
    python = interpreter([*vllm.launcher, spec.argv[len(vllm.launcher)]], spec.env, folder)
    install = installed(python, spec.env) if isinstance(python, str) else python
    if isinstance(install, Install) and install.vllm:
        given["vllm-version"] = install.vllm
    own = args.model is None
    return _Subject(vllm.model if own else args.model, {**given, **_given(args)}, dict(spec.env),
                    folder if own else Path.cwd())  # fmt: skip


def _given(args: argparse.Namespace) -> dict[str, str]:
    """Return the flags of the command line, by vLLM's names."""
    values = {name: getattr(args, name.replace("-", "_")) for name in _OURS}
    given = {name: value for name, value in values.items() if value is not None}
    return {**given, "enforce-eager": ""} if args.enforce_eager else given


def _model(found: Checkpoint, like: str | None) -> Model:
    config = dict(found.config)
    if like is not None:
        config["model_type"] = like
        inner = config.get("text_config")
        if isinstance(inner, dict):
            config["text_config"] = {**inner, "model_type": like}
    return Model(read(config, found.where), precision(config, found.where), found.weights, found.draft)


def _gpus(args: argparse.Namespace, subject: _Subject, ask: Ask) -> Gpus:
    """Return the GPUs: as named, else those of this host."""
    count = _whole(args.gpus)
    if args.gpu_memory is not None:
        kind = gpu(args.gpu_memory)
        if kind is not None:
            return Gpus(kind.memory, count or ask.layout.ranks, kind, kind.name, kind.capability)
        return Gpus(_memory(args.gpu_memory), count or ask.layout.ranks)
    cards = NvidiaSmi(subject.env).read(lambda holder: holder)
    seen = cards if isinstance(cards, Unknown) else visible(cards, subject.env.get("CUDA_VISIBLE_DEVICES"))
    if isinstance(seen, Unknown) or not seen:
        if ask.kv_cache_memory is not None:
            return Gpus(0, count or ask.layout.ranks)
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
    if found < 1 << 28:
        raise BadInputError("--gpu-memory", f"{text!r} is {found} bytes", f"write the unit: {text}GiB")
    return found


def _whole(number: str | None) -> int | None:
    if number is None:
        return None
    if not number.isascii() or not number.isdigit() or not 0 < int(number) <= _MANY:
        raise BadInputError("--gpus", f"{number!r} is not a number of GPUs", "write a whole number above 0")
    return int(number)


def _complain(args: argparse.Namespace, errors: list[BadInputError] | list[SupervisorError]) -> int:
    lines = [line for error in errors for line in str(error).splitlines()]
    for line in lines:
        _print(f"vllm-supervisor: {line}", error=True)
    if args.json:
        _print(json.dumps({"ok": False, "problems": lines}))
    return ExitCode.BAD_CONFIG


def _print(line: str, *, error: bool = False) -> None:
    # A path or a name in a configuration need not be UTF-8, and then it cannot be printed as it is.
    print(line.encode(errors="backslashreplace").decode(), file=sys.stderr if error else sys.stdout)
