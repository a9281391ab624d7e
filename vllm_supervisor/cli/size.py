"""`size`: what fits on which GPU, and how many requests at once. Reads files; runs and downloads nothing."""

import argparse
import json
import sys
from dataclasses import replace

from vllm_supervisor.adapters.host.asked import asked
from vllm_supervisor.adapters.host.checkpoint import Checkpoint, checkpoint
from vllm_supervisor.cli import sizesubject
from vllm_supervisor.cli.sizejson import Answer, as_json
from vllm_supervisor.cli.sizetext import text
from vllm_supervisor.domain.capacity.choice import spread
from vllm_supervisor.domain.capacity.limits import problems
from vllm_supervisor.domain.capacity.precision import precision
from vllm_supervisor.domain.capacity.reading import read
from vllm_supervisor.domain.capacity.remedies import remedies
from vllm_supervisor.domain.capacity.sizing import Model, size
from vllm_supervisor.errors import BadInputError, ExitCode, SupervisorError, one_line

_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


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
        answer = _answer(args)
    except SupervisorError as error:
        return _complain(args, [error])
    except _ProblemsError as error:
        return _complain(args, error.found)
    _print(json.dumps(as_json(answer)) if args.json else text(answer))
    return ExitCode.OK if answer.sizing.fits else ExitCode.NOT_READY


class _ProblemsError(Exception):
    """Raised with all that is wrong with the arguments."""

    def __init__(self, found: list[BadInputError]) -> None:
        super().__init__(found)
        self.found = found


def _answer(args: argparse.Namespace) -> Answer:
    """Raise SupervisorError, or _ProblemsError, where there is none."""
    subject = sizesubject.subject(args)
    found = checkpoint(subject.model, subject.flags, subject.env, subject.folder)
    model = _model(found, args.like)
    ask = asked(subject.flags, subject.env)
    cards = sizesubject.cards(args, subject)
    past, remark = sizesubject.remembered(subject, cards)
    known = ask.kv_cache_memory is not None or (past is not None and past[1].kv_cache is not None)
    gpus = sizesubject.gpus(args, cards, ask.layout.ranks, known=known)
    if not any(name in subject.flags for name in _PARALLEL) and gpus.count > 1:
        ask = replace(ask, layout=spread(model, ask, gpus, use_all=args.gpus is not None))
    if wrong := list(problems(model, ask, gpus)):
        raise _ProblemsError(wrong)
    estimate = size(model, ask, gpus)
    sizing = size(model, ask, gpus, past[1]) if past is not None else estimate
    helps = () if sizing.fits else remedies(sizing)
    return Answer(subject.model, found, sizing, estimate, past[0] if past else None, helps, remark)


def _model(found: Checkpoint, like: str | None) -> Model:
    config = dict(found.config)
    if like is not None:
        config["model_type"] = like
        inner = config.get("text_config")
        if isinstance(inner, dict):
            config["text_config"] = {**inner, "model_type": like}
    return Model(read(config, found.where), precision(config, found.where), found.weights, found.draft)


def _complain(args: argparse.Namespace, errors: list[BadInputError] | list[SupervisorError]) -> int:
    lines = [line for error in errors for line in str(error).splitlines()]
    for line in lines:
        _print(f"vllm-supervisor: {line}", error=True)
    if args.json:
        _print(json.dumps({"ok": False, "problems": lines}))
    return ExitCode.BAD_CONFIG


def _print(line: str, *, error: bool = False) -> None:
    # A path or a name in a configuration need not be UTF-8, and may hold what a terminal obeys.
    print("\n".join(map(one_line, line.split("\n"))), file=sys.stderr if error else sys.stdout)
