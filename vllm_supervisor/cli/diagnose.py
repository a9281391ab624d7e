"""`diagnose`: names the cause in any vLLM log. Needs no daemon and no configuration."""

import argparse
import json
import sys
from pathlib import Path

from vllm_supervisor.adapters.logreader import read_into
from vllm_supervisor.adapters.logtext import NoTextError, text_of
from vllm_supervisor.domain.diagnosis import NO_FAILURE, Context, Diagnoser, Diagnosis
from vllm_supervisor.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `diagnose`."""
    parser.add_argument("file", metavar="FILE", help="a log of vLLM, whatever wrapped or packed its lines; - for stdin")
    parser.add_argument("--exit-code", type=int, metavar="N", help="how vLLM ended, as a shell gives it (137, or -9)")


def run(args: argparse.Namespace) -> int:
    """Print the cause; return 0 where one was found, 1 where none was, 2 where the log cannot be read."""
    diagnoser = Diagnoser()
    try:
        if args.file == "-":
            read_into(diagnoser, text_of(sys.stdin.buffer))
        else:
            with Path(args.file).open("rb", buffering=0) as stream:
                read_into(diagnoser, text_of(stream))
    except OSError as error:
        return _refuse(args.file, f"{error.strerror or error}; name a readable log file, or - for standard input")
    except NoTextError as error:
        return _refuse(args.file, str(error))
    diagnosis, earlier = diagnoser.verdict(Context(exit_code=args.exit_code)), diagnoser.earlier()
    if earlier is not None and not args.json:
        _tell_earlier(earlier, diagnosis)
    if args.json:
        print(json.dumps(NO_FAILURE if diagnosis is None else diagnosis.as_json(), ensure_ascii=False))
    elif diagnosis is None:
        ended = f"; it ended with {args.exit_code}, and the log does not show why" if args.exit_code else ""
        print(f"no failure found in this log{ended}")
    else:
        print(_as_text(diagnosis))
    return ExitCode.NOT_READY if diagnosis is None else ExitCode.OK


def _tell_earlier(earlier: Diagnosis, told: Diagnosis | None) -> None:
    """Say where it would mislead that the log holds several starts."""
    if told is None:
        where = "" if earlier.line is None else f", line {earlier.line}"
        text = f"the last start in this log got ready, an earlier one failed: {earlier.summary} ({earlier.cls}{where})"
    elif told == earlier:
        text = "the last start in this log has neither got ready nor failed; this is why the one before failed"
    else:
        return
    print(f"vllm-supervisor: note: {text}", file=sys.stderr)


def _refuse(name: str, why: str) -> int:
    print(f"vllm-supervisor: {'standard input' if name == '-' else name}: {why}", file=sys.stderr)
    return ExitCode.BAD_CONFIG


def _as_text(diagnosis: Diagnosis) -> str:
    where = "" if diagnosis.line is None else f"line {diagnosis.line}: "
    rows = [
        f"{diagnosis.cls} ({diagnosis.retry.value}): {diagnosis.summary}",
        f"  evidence  {where}{diagnosis.evidence}",
        f"  action    {diagnosis.action}",
    ]
    if diagnosis.secondary:
        rows.append(f"  also      {', '.join(diagnosis.secondary)}")
    rows.append(f"  more      vllm-supervisor explain {diagnosis.cls}")
    return "\n".join(rows)
