"""What `advise` takes, and which way it goes."""

import argparse
import json
import time

from vllm_supervisor.cli.advise.live import Question
from vllm_supervisor.cli.advise.text import advice_text
from vllm_supervisor.cli.find import find_socket
from vllm_supervisor.errors import ExitCode, SupervisorError

_WORDS = """
Without an option the daemon's own looks at the engine over the last minute are judged. Verdicts: no_load, starved (the
feeder leaves gaps), client_bound (the client sends no more), healthy, compute_bound, queueing, memory_bound,
preempting.
"""


_ONLY_WITH_LOAD = (
    "prompt_tokens", "output_tokens", "max_concurrency", "max_requests", "max_seconds", "step_seconds", "with_traffic",
    "csv",
)  # fmt: skip


_MOST = 1_000_000
"""Of requests as of tokens; of requests the daemon takes no more."""
_DIGITS = 20


class UsageError(SupervisorError):
    """Raised for options that do not go together."""

    exit_code = ExitCode.BAD_CONFIG


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `advise`."""
    parser.epilog = _WORDS
    parser.add_argument(
        "--window", type=_seconds, metavar="S", help="judge so many seconds (default: 60; of a log 600)"
    )
    parser.add_argument(
        "--concurrency", type=_count, metavar="N", help="what the client keeps in flight, where that is known"
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--log", metavar="FILE", help="judge a log of vLLM by its stats lines; - for standard input")
    way.add_argument("--watch", action="store_true", help="go on, as a table; Ctrl-C ends it")
    way.add_argument("--load", action="store_true", help="make the load: double it until nothing more is gained")
    load = parser.add_argument_group("with --load")
    load.add_argument(
        "--prompt-tokens", type=_tokens, metavar="N", help="of each request (default: as observed, or 128)"
    )
    load.add_argument("--output-tokens", type=_tokens, metavar="N", help="of each answer (default: as observed, or 64)")
    load.add_argument("--max-concurrency", type=_count, metavar="N", help="stop there (default: 256)")
    load.add_argument("--max-requests", type=_count, metavar="N", help="stop there (default: 5000)")
    load.add_argument("--max-seconds", type=_seconds, metavar="S", help="stop there (default: 300)")
    load.add_argument("--step-seconds", type=_seconds, metavar="S", help="a step (default: 10)")
    load.add_argument("--with-traffic", action="store_true", help="also while the engine works for others")
    load.add_argument("--csv", metavar="FILE", help="write the steps to FILE as CSV; - for standard output alone")


def run(args: argparse.Namespace) -> int:
    """Print the advice; 0, or 1 where there is no data. Raises NoDaemonError, SupervisorError."""
    if not args.load and (given := [name for name in _ONLY_WITH_LOAD if getattr(args, name)]):
        raise UsageError(
            f"--{given[0].replace('_', '-')}", "it says how to make a load", "give it together with --load"
        )
    if args.log is not None:
        # Only this way needs the judgement here; the others have the daemon judge.
        from vllm_supervisor.cli.advise.fromlog import advice_of_log  # noqa: PLC0415 - see above

        return _print(advice_of_log(args), as_json=args.json)
    if args.load:
        # It has an HTTP client and an event loop.
        from vllm_supervisor.cli.advise.loadcommand import run_load  # noqa: PLC0415 - see above

        return run_load(args, find_socket(args))
    question = Question(find_socket(args), args.window, args.concurrency)
    if args.watch:
        from vllm_supervisor.cli.advise.watch import watch  # noqa: PLC0415 - as above

        return watch(question, as_json=args.json, pause=time.sleep)
    return _print(question.ask()["advice"], as_json=args.json)


def _print(advice: dict[str, object], *, as_json: bool) -> int:
    print(json.dumps(advice, ensure_ascii=False) if as_json else advice_text(advice))
    return ExitCode.OK


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 3600:  # noqa: PLR2004 - as the daemon
        raise argparse.ArgumentTypeError(f"not a number of seconds from 1 to 3600: {text!r}")
    return value


def _count(text: str) -> int:
    return _number(text, "requests")


def _tokens(text: str) -> int:
    return _number(text, "tokens")


def _number(text: str, what: str) -> int:
    plain = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    if not plain or not 1 <= int(text) <= _MOST:
        raise argparse.ArgumentTypeError(f"not a number of {what} from 1 to {_MOST}: {text!r}")
    return int(text)
