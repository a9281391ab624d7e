"""Judges a log of vLLM by its stats lines. Needs no daemon."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from vllm_supervisor.cli.client import Status
from vllm_supervisor.domain.advice import Setting, StatsReader, advise
from vllm_supervisor.errors import ExitCode, SupervisorError

WINDOW = 600.0
"""Seconds at the end of the log that are judged; all of it is history."""
_LONGEST = 16384
_GZIP = b"\x1f\x8b"
_WORDS = (
    b"throughput: ", b"cache", b"max_num_seqs", b"max_model_len", b"max_seq_len", b"concurrency", b" version ",
    b"startup complete", b"[vllm-supervisor] generation ",
)  # fmt: skip
"""One of these is in each line that tells something."""


class UnreadableError(SupervisorError):
    """Raised when the log cannot be read."""

    exit_code = ExitCode.BAD_CONFIG


def advice_of_log(args: argparse.Namespace) -> Status:
    """Return the advice on the log. Raises UnreadableError (2), SupervisorError (1) where it has no stats lines."""
    reader = StatsReader()
    try:
        with nullcontext(sys.stdin.buffer) if args.log == "-" else Path(args.log).open("rb") as stream:
            _feed(reader, stream, args.log)
    except OSError as error:
        why = error.strerror or str(error)
        raise UnreadableError(str(args.log), why, "name a readable log file, or - for standard input") from None
    samples = reader.samples()
    advice = advise(samples, _setting(args, reader.setting()), window=args.window or WINDOW)
    if advice is None:
        where = "since the last start in this log" if reader.dropped else "in this log"
        why = f"{'one stats line' if samples else 'no stats lines'} {where}"
        remedy = "vLLM prints one every 10 s while it works, unless --disable-log-stats"
        raise SupervisorError(str(args.log), why, remedy)
    if reader.dropped:
        advice = replace(advice, evidence=("the log has several starts: the last one counts", *advice.evidence))
    return advice.as_json()


def _feed(reader: StatsReader, stream: BinaryIO, name: str) -> None:
    first = True
    for line in _lines(stream):
        if first and line.startswith(_GZIP):
            raise OSError(0, f"it is compressed: zcat {name} | vllm-supervisor advise --log -")
        first = False
        # Of a line of a healthy log, most are access lines: looked at as bytes, and left.
        if any(word in line for word in _WORDS):
            reader.feed(line.decode("utf-8", "replace"))


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield lines, cut to a length at which nothing is missed: a progress bar captured whole runs to megabytes."""
    skipping = False
    while line := stream.readline(_LONGEST):
        if not skipping:
            yield line
        skipping = not line.endswith(b"\n")


def _setting(args: argparse.Namespace, found: Setting) -> Setting:
    """Return what the log says of the engine, with what the configuration (-c) and the options say."""
    if args.config:
        # pydantic costs a quarter of a second, and only this way needs it.
        from vllm_supervisor.config.launch import advice  # noqa: PLC0415 - see above
        from vllm_supervisor.config.load import load  # noqa: PLC0415 - see above

        told = advice(load(Path(args.config), sets=args.set, environ=os.environ).settings)
        found = replace(
            told,
            max_concurrency=found.max_concurrency,
            kv_tokens=found.kv_tokens,
            max_num_seqs=told.max_num_seqs or found.max_num_seqs,
            max_model_len=told.max_model_len or found.max_model_len,
        )
    if args.concurrency is not None:
        found = replace(found, concurrency=args.concurrency, said=True)
    return found
