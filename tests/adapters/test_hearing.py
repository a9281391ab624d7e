"""Signals, taken as they come."""

import os
import subprocess
import sys

STORM = """
import os, signal, anyio
from vllm_supervisor.adapters.hearing import Hearing

hearing = Hearing(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
os.kill(os.getpid(), signal.SIGHUP)

async def main():
    with anyio.fail_after(30):
        heard = []
        async for number in hearing.heard():
            heard.append(number.name)
            if len(heard) == 3:
                return heard
            os.kill(os.getpid(), signal.SIGTERM if len(heard) == 1 else signal.SIGINT)

print(*anyio.run(main, backend_options={"use_uvloop": True}))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    assert callable(signal.getsignal(number)), "the loop has not given it back"
    os.kill(os.getpid(), number)
hearing.ignore()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(os.getpid(), number)
"""


def test_signals_are_heard_before_and_in_the_loop_and_harmless_after_it() -> None:
    """In the order in which they came; once the loop is over, and once they are ignored, they end nothing."""
    done = subprocess.run(
        [sys.executable, "-c", STORM], capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "SIGHUP SIGTERM SIGINT\n", "")


def test_a_flood_that_nobody_heeds_hurts_nobody() -> None:
    """More than a pipe holds."""
    flood = (
        "import os, signal\n"
        "from vllm_supervisor.adapters.hearing import Hearing\n"
        "hearing = Hearing(signal.SIGHUP)\n"
        "for _ in range(70_000): signal.raise_signal(signal.SIGHUP)\n"
    )
    done = subprocess.run([sys.executable, "-c", flood], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
