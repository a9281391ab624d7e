"""Prints what a child was given, as one JSON object."""

import json
import os
import sys
from pathlib import Path

fds = {}
for path in Path("/proc/self/fd").iterdir():
    try:
        fds[path.name] = str(path.readlink())
    except OSError:  # the descriptor that lists them
        continue
print("on stderr", file=sys.stderr, flush=True)
print(
    json.dumps(
        {
            "pid": os.getpid(),
            "session": os.getsid(0),
            "group": os.getpgrp(),
            "fds": fds,
            "env": dict(os.environ),
            "cwd": str(Path.cwd()),
        }
    ),
    flush=True,
)
