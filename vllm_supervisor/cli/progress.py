"""One line on a terminal that is redrawn in place."""

import os
from types import TracebackType
from typing import Self, TextIO

from vllm_supervisor.cli.client import Status
from vllm_supervisor.cli.render import progress_text

_CLEAR = "\r\033[K"


class ProgressLine:
    """Shows what is waited for, and is gone afterwards. On anything but a terminal it shows nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shows = stream.isatty()
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            self._write(_CLEAR)

    def show(self, status: Status) -> None:
        """Draw `status`, cut to the width of the terminal, where it differs from what is shown."""
        text = progress_text(status)
        if not self._shows or text == self._shown:
            return
        self._shown = text
        self._write(_CLEAR + text[: _width(self._stream) - 1])

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
