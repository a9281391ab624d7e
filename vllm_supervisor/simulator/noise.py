"""What goes to the log while serving: the line of figures, and a flood on request."""

import threading
import time

from vllm_supervisor.simulator.knobs import Knobs
from vllm_supervisor.simulator.lines import Log, put
from vllm_supervisor.simulator.metrics import Metrics

_MEGABYTE = 1_000_000


class StatsLine:
    """vLLM's line of figures: at each interval while there is traffic, once more after it, else silence."""

    def __init__(self, log: Log, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics
        self._before = (0, 0)
        self._spoke = False

    def tick(self, interval: float) -> None:
        """Print the line, if it is due; `interval` is the time since the last tick."""
        m = self._metrics
        now = (m.prompt_tokens, m.generation_tokens)
        prompt, generated = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        busy = bool(prompt or generated or m.running or m.waiting)
        if busy or self._spoke:
            self._log.info(
                "loggers.py:335",
                f"Engine 000: Avg prompt throughput: {prompt / interval:.1f} tokens/s, "
                f"Avg generation throughput: {generated / interval:.1f} tokens/s, Running: {m.running} reqs, "
                f"Waiting: {m.waiting} reqs, GPU KV cache usage: {100 * m.kv_usage:.1f}%, "
                "Prefix cache hit rate: 0.0%",
            )
        self._spoke = busy


def start_flood(knobs: Knobs) -> None:
    """Write `log-flood` megabytes a second to stdout, from now on, in a thread of its own."""
    if knobs.log_flood > 0:
        threading.Thread(target=_flood, args=(knobs.log_flood * _MEGABYTE,), daemon=True).start()


def _flood(bytes_per_second: float) -> None:
    line = b"(Worker) WARNING flood " + b"x" * 200 + b"\n"
    block = line * max(1, int(bytes_per_second / 100 / len(line)))
    begun, written = time.monotonic(), 0
    while True:
        put(block)
        written += len(block)
        time.sleep(max(0.0, begun + written / bytes_per_second - time.monotonic()))
