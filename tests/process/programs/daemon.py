"""Launches argv[3:] as the daemon does and waits to be killed: `daemon.py STATE_DIR LOG ARGV…`."""

import json
import os
import sys
from pathlib import Path

import anyio

from vllm_supervisor.adapters.process import EngineLauncher, become_subreaper, lock_state_dir, normalize_signals
from vllm_supervisor.domain.spec import LaunchSpec


async def main(state_dir: Path, log: str, argv: tuple[str, ...]) -> None:
    env = {"PATH": os.environ["PATH"], "VLLM_RPC_BASE_PATH": "/nowhere"}  # none is made: nobody would remove it
    spec = LaunchSpec(argv=argv, env=env, cwd=None, log_file=log, host="127.0.0.1", port=9)
    launcher = EngineLauncher(spec, state_dir)
    engine = await launcher.spawn(launcher.last_generation() + 1)
    print(json.dumps({"leader": engine.pid}), flush=True)
    await anyio.sleep_forever()


normalize_signals()
become_subreaper()
with lock_state_dir(Path(sys.argv[1])):
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:]))
