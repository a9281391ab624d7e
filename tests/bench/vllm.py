"""`make bench-vllm`: a real vLLM killed, and how long until it serves again: ours against a plain systemd unit.

In the same run vLLM is started bare, and what it takes is the measure: no supervisor can be faster than that.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import observe, programs
from tests.bench.__main__ import machine
from tests.bench.figures import Table, samples
from tests.bench.observe import until
from tests.bench.peers.base import Running, host_place, supervised, sweep
from tests.bench.peers.ours import OurDaemon
from tests.bench.peers.systemd import Systemd, systemd
from tests.bench.programs import Place, Program

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
FLAGS = ("--enforce-eager", "--dtype", "float32", "--max-model-len", "1024")
WITHIN = 400.0
PORT = 8765

ASK = """
import json, sys, time, urllib.request
body = json.dumps({"model": sys.argv[2], "prompt": "a", "max_tokens": 1}).encode()
head = {"Content-Type": "application/json"}
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/completions", body, head)
        if urllib.request.urlopen(request, timeout=10).status == 200:
            print(time.monotonic())
            sys.exit(0)
    except OSError:
        pass
    time.sleep(0.1)
sys.exit(1)
"""
"""Waits for a token. It runs where the engine is: a container has a loopback of its own."""

Wrap = Callable[..., list[str]]


def served(model: str, wrap: Wrap) -> float:
    """Return the monotonic time at which a token came back. Raises UnmetError."""
    command = wrap(programs.PYTHON, "-c", ASK, str(PORT), model, str(WITHIN))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN + 30)
    if done.returncode != 0:
        raise observe.UnmetError(f"no token within {WITHIN:g} s {done.stderr[-200:]}")
    return float(done.stdout)


def here(*command: str) -> list[str]:
    return list(command)


def vllm(place: Place, binary: str, model: str) -> Program:
    """Return the same command line for everybody; our own configuration adds nothing that vLLM's start depends on."""
    variables = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    note = f"{programs.NOTE}={place.token}"
    # As our daemon does for its engine: else the members cannot be told by their environment.
    launcher = ("/usr/bin/env", note, "SPT_NOENV=1", *variables, binary, "serve")
    ours: dict[str, object] = {"model": model, "extra_args": list(FLAGS), "restart": {}, "stop": {"drain_timeout": 0}}
    return Program(launcher, PORT, 30.0, ours, model, FLAGS)


def bare(binary: str, model: str) -> float:
    """Return the seconds of a start without a supervisor."""
    with host_place() as place:
        argv = vllm(place, binary, model).argv
        begun = time.monotonic()
        with (place.host / "vllm.log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        try:
            return served(model, here) - begun
        finally:
            process.kill()
            process.wait()
            sweep(lambda: observe.bearing(place.token))


def again(running: Running, model: str, wrap: Wrap) -> tuple[float, int]:
    """Kill the API server of a serving engine; return the seconds until the next token, and members then left."""
    served(model, wrap)
    members = set(observe.bearing(running.place.token))
    leader = next(pid for pid in members if observe.parent(pid) not in members and pid in map(observe.parent, members))
    begun = time.monotonic()
    os.kill(leader, signal.SIGKILL)
    until(lambda: leader not in observe.bearing(running.place.token), 10, "the leader's end")
    taken = served(model, wrap) - begun
    return taken, len(members & set(observe.bearing(running.place.token)))


def measure(binary: str, model: str, count: int, unit: Systemd) -> Table:
    table = Table("Real vLLM, API server killed to the next token", ["bare start", "vllm-supervisor", unit.name])
    bare(binary, model)  # not counted: it brings files into memory, for all that follow
    cold = [bare(binary, model) for _ in range(count)]
    seconds: dict[str, list[float]] = {}
    left: dict[str, int] = {}
    with host_place() as place, supervised(OurDaemon(place, vllm(place, binary, model))) as running:
        found = [again(running, model, here) for _ in range(count)]
    seconds["vllm-supervisor"], left["vllm-supervisor"] = [taken for taken, _ in found], sum(n for _, n in found)
    why = unit.missing()
    if why is None:
        with unit.place() as place:
            # As plain as a unit can be: what systemd does by default, and Restart=always.
            started = unit.launch(place, vllm(place, binary, model), "Environment=HOME=/root\nTimeoutStopSec=90")
            with supervised(started) as running:
                found = [again(running, model, unit.command) for _ in range(count)]
        seconds[unit.name], left[unit.name] = [taken for taken, _ in found], sum(n for _, n in found)
    base = samples(cold).median()
    table.put("seconds", "s", {"bare start": samples(cold)} | {name: samples(taken) for name, taken in seconds.items()})
    ratios = {name: samples([each / base for each in taken]) for name, taken in seconds.items()}
    table.put("as a ratio to the bare start", "", {"bare start": samples([1.0])} | ratios)
    table.put("processes of the old engine left", "", {name: samples([float(number)]) for name, number in left.items()})
    if why is not None:
        for row in table.rows:
            row.cells[unit.name] = why
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-vllm VLLM_BIN=... VLLM_TINY_MODEL=... ARGS=...")
    parser.add_argument("--count", type=int, default=2, help="samples a figure (2)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()
    binary, model = os.environ.get("VLLM_BIN"), os.environ.get("VLLM_TINY_MODEL")
    if not binary or not model:
        sys.exit("bench: VLLM_BIN and VLLM_TINY_MODEL do not name a real vLLM and a model; set them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by SIGTERM"))  # so that nothing is left
    head = machine()
    print(head, flush=True)
    with systemd() as unit:
        table = measure(binary, model, args.count, unit)
    print(f"\n{table.show()}")
    if args.json:
        args.json.write_text(json.dumps({"machine": head, "tables": [table.as_json()]}, indent=1))


if __name__ == "__main__":
    main()
