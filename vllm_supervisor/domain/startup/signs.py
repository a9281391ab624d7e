"""Signs of life beside the log, and the verdict that a start has stalled."""

from dataclasses import dataclass

CPU_SHARE = 0.1
"""Share of one core, over the time between two looks, from which on CPU time is a sign. An idle vLLM polls, with 1 to
2 % of a core (measured, 0.32); compiling and loading keep one busy."""
IO_BYTES = 1 << 20
"""Bytes to and from disks between two looks that are a sign. The log's own lines are less."""
GPU_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Download:
    """The weights of the model in a cache. Bytes; `expected` None where nothing tells. `partial`: files unfinished."""

    present: int
    expected: int | None = None
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """A look at what the engine's processes do and leave behind; None where that cannot be known.

    `cpu_s` and `io_bytes` count from the start of the watch and never fall. `cache` stands for the content of compile
    caches and temporary files: when it differs, they changed. `gpu_bytes` is the memory in use on the engine's GPUs.
    """

    cpu_s: float | None = None
    io_bytes: int | None = None
    cache: object = None
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """When the start last gave a sign, seconds on the caller's clock.

    `moved_at` is of the signs that prove something: news in the log, growing files, disk, GPU memory. `cpu_at` is of
    CPU time, which a collective that waits for a dead peer spends as well.
    """

    moved_at: float
    cpu_at: float
    what: str = "the launch"
    """What moved last, in words."""

    def moved(self, now: float, what: str) -> "Pulse":
        """Return the pulse after a sign that proves something."""
        return Pulse(now, self.cpu_at, what)

    def looked(self, before: Activity, after: Activity, seconds: float, now: float) -> "Pulse":
        """Return the pulse after two looks, `seconds` apart."""
        pulse = self
        if before.gpu_bytes is not None and after.gpu_bytes is not None:
            pulse = pulse.moved(now, "GPU memory") if abs(after.gpu_bytes - before.gpu_bytes) >= GPU_BYTES else pulse
        if before.io_bytes is not None and after.io_bytes is not None:
            pulse = pulse.moved(now, "disk") if after.io_bytes - before.io_bytes >= IO_BYTES else pulse
        if before.cache is not None and after.cache is not None and after.cache != before.cache:
            pulse = pulse.moved(now, "compile caches")
        if before.cpu_s is not None and after.cpu_s is not None and after.cpu_s - before.cpu_s >= CPU_SHARE * seconds:
            return Pulse(pulse.moved_at, now, pulse.what)
        return pulse


def stalled(pulse: Pulse, now: float, timeout: float) -> str | None:
    """Say in words why the start counts as stalled; None while it does not.

    Nothing for `timeout` seconds is a stall. While only CPU time is spent, `timeout` is twice as long: compiling is
    silent for minutes, and so is a collective that spins.
    """
    quiet = now - pulse.moved_at
    if quiet < timeout:
        return None
    spinning = now - pulse.cpu_at < timeout
    if spinning and quiet < 2 * timeout:
        return None
    also = ", only CPU time was spent" if spinning else ""
    return f"nothing moved for {quiet:.0f} s{also}; the last sign of life was {pulse.what}"
