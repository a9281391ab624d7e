"""Reads a whole log in bounded memory."""

from typing import BinaryIO

from vllm_supervisor.domain.diagnosis import Diagnoser, Scanner

CHUNK = 1024 * 1024
"""Bytes read at a time: large enough for disk speed, and with the carry of one line all that is held."""


def read_into(diagnoser: Diagnoser, stream: BinaryIO) -> None:
    """Feed `diagnoser` everything in `stream`, which may be a pipe. Raises OSError where it cannot be read."""
    scanner = Scanner(diagnoser)
    while chunk := stream.read(CHUNK):
        scanner.feed(chunk)
    scanner.finish()
