"""`explain`: what a cause means, how to confirm it, what to do."""

import argparse
import difflib
import json
import sys
import textwrap

from vllm_supervisor.domain.diagnosis import CLASSES, EXPLANATIONS, Explanation
from vllm_supervisor.errors import ExitCode

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `explain`."""
    parser.add_argument("cls", metavar="CLASS", nargs="?", help="a class as `diagnose` names it; without it, the list")


def run(args: argparse.Namespace) -> int:
    """Print one explanation, or the list; return 0, or 2 for a class that does not exist."""
    if args.cls is None:
        _print_list(as_json=args.json)
        return ExitCode.OK
    name = args.cls.strip().lower().replace("-", "_")
    explanation = EXPLANATIONS.get(name)
    if explanation is None:
        near = difflib.get_close_matches(name, EXPLANATIONS, n=1, cutoff=0.0)[0]
        print(
            f"vllm-supervisor: explain: no class is called {args.cls!r}; did you mean {near}? "
            "Without a class, `vllm-supervisor explain` lists all",
            file=sys.stderr,
        )
        return ExitCode.BAD_CONFIG
    if args.json:
        print(json.dumps(_as_json(explanation), ensure_ascii=False))
    else:
        print(_as_text(explanation))
    return ExitCode.OK


def _print_list(*, as_json: bool) -> None:
    explanations = [EXPLANATIONS[name] for name in sorted(EXPLANATIONS)]
    if as_json:
        print(json.dumps([_heading(explanation) for explanation in explanations], ensure_ascii=False))
        return
    wide = max(len(name) for name in EXPLANATIONS)
    verdicts = max(len(failure.retry) for failure in CLASSES.values())
    for explanation in explanations:
        print(f"{explanation.cls:{wide}}  {CLASSES[explanation.cls].retry:{verdicts}}  {explanation.summary}")


def _heading(explanation: Explanation) -> dict[str, object]:
    failure = CLASSES[explanation.cls]
    return {
        "class": failure.name,
        "retry": failure.retry.value,
        "from_log_alone": failure.from_log_alone,
        "summary": explanation.summary,
    }


def _as_json(explanation: Explanation) -> dict[str, object]:
    return _heading(explanation) | {
        "cause": explanation.cause,
        "confirm": [{"command": check.command, "shows": check.shows} for check in explanation.confirm],
        "remedy": list(explanation.remedy),
    }


def _as_text(explanation: Explanation) -> str:
    failure = CLASSES[explanation.cls]
    rows = [f"{failure.name} ({failure.retry.value}): {explanation.summary}", "", *_wrapped(explanation.cause, "  ")]
    rows += ["", "Confirm:"]
    for check in explanation.confirm:
        rows += [f"  $ {check.command}", *_wrapped(check.shows, "      ")]
    rows += ["", "Remedy:"]
    for remedy in explanation.remedy:
        rows += _wrapped(remedy, "    ", first="  - ")
    return "\n".join(rows)


def _wrapped(text: str, indent: str, first: str | None = None) -> list[str]:
    """Wrap prose, never inside an option or a path: people copy them."""
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
