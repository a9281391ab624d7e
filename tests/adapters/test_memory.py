"""What the daemon asks of its heap."""

import subprocess
import sys

SCRIPT = """
import sys
from pathlib import Path
from vllm_supervisor.adapters.memory import bound_the_heap, set_apart_what_stays

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "bound":
    bound_the_heap()
bytearray(8 << 20)  # freed at once: what glibc takes for large is as large as this from now on
before = resident()
large = [bytearray(b"x" * 100_000) for _ in range(400)]
pins = large[::40]
del large
print(resident() - before)
"""


def held(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_was_freed_is_given_back_though_a_little_in_between_is_held() -> None:
    """A few blocks that stay do not hold what was freed around them; by itself glibc keeps it."""
    assert held("bound") < 5 << 20 < held("as it is")
