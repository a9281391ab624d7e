"""What is waited for: one line on a terminal, redrawn in place; elsewhere only what stands in the way."""

import os
from types import TracebackType
from typing import Self, TextIO

from vllm_supervisor.cli.client import Status
from vllm_supervisor.cli.render import hindrance, progress_text

_CLEAR = "\r\033[K"


class ProgressLine:
    """Shows what is waited for, and is gone afterwards.

    On anything but a terminal it says once why no engine can be launched, so that nobody waits for a port that is
    taken without a word.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._shows = True
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown and self._terminal:
            self._write(_CLEAR)

    def show(self, status: Status) -> None:
        """Draw `status`, cut to the width of the terminal, where it differs from what is shown."""
        text = progress_text(status) if self._terminal else hindrance(status)
        if not self._shows or not text or text == self._shown:
            return
        self._shown = text
        if self._terminal:
            self._write(_CLEAR + text[: _width(self._stream) - 1])
        else:
            self._write(f"vllm-supervisor: waiting: {text}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._shows = False  # the terminal is gone; what is waited for is not


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
