"""`advise --watch`: a row each few seconds; on a terminal a table that is redrawn in place."""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable

from vllm_supervisor.cli.advise.live import Question
from vllm_supervisor.cli.client import Status

INTERVAL = 2.0
"""Seconds. Each row costs the engine one look at its figures."""
_ROWS = 15
_HEAD = f"{'time':<8}  {'running':>7}  {'waiting':>7}  {'KV':>6}  {'tokens/s':>8}  {'keep':>5}  verdict"


def watch(question: Question, *, as_json: bool, pause: Callable[[float], None]) -> int:
    """Go on until interrupted. Raises NoDaemonError when the daemon goes away."""
    table = _Table() if sys.stdout.isatty() and not as_json else None
    if table is None and not as_json:
        print(_HEAD, flush=True)
    while True:
        answer = question.try_ask()
        if as_json:
            print(json.dumps(answer, ensure_ascii=False), flush=True)
        elif table is None:
            print(_row(answer), flush=True)
        else:
            table.show(answer)
        pause(INTERVAL)


class _Table:
    """The last rows, drawn over what was drawn before."""

    def __init__(self) -> None:
        self._rows: deque[str] = deque(maxlen=_ROWS)
        self._drawn = 0

    def show(self, answer: Status) -> None:
        """Draw the table with one more row, cut to the width of the terminal: a wrapped line could not be redrawn."""
        self._rows.append(_row(answer))
        advice = answer.get("advice") or {}
        change = advice.get("next")
        below = [str(advice.get("headline") or answer.get("why") or "")]
        below += [f"next: {change['change']}: {change['why']}"] if change else []
        width, height = _size()
        rows = list(self._rows)[-max(1, height - len(below) - 3) :]
        lines = [line[: width - 1] for line in (_HEAD, *rows, "", *below)]
        back = f"\033[{self._drawn}A" if self._drawn else ""
        sys.stdout.write(back + "".join(f"\r\033[K{line}\n" for line in lines) + "\033[J")
        sys.stdout.flush()
        self._drawn = len(lines)


def _row(answer: Status) -> str:
    now, advice = answer.get("now") or {}, answer.get("advice") or {}
    usage, goal = now.get("kv_cache_usage"), advice.get("target_concurrency")
    marked = "" if goal is None else f"{goal}" if advice.get("target_trusted") else f"{goal}?"
    return (
        f"{time.strftime('%H:%M:%S')}  {_number(now.get('running')):>7}  {_number(now.get('waiting')):>7}  "
        f"{'-' if usage is None else f'{usage:.1%}':>6}  {_number(now.get('generation_tokens_per_s')):>8}  "
        f"{marked or '-':>5}  {advice.get('verdict') or answer.get('why') or '-'}"
    )


def _number(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, int | float) else "-"


def _size() -> tuple[int, int]:
    """Return the terminal's columns and lines: what has scrolled out of it cannot be redrawn."""
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns, lines = 0, 0
    return columns or 80, lines or 24
