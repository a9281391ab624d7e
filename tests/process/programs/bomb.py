"""Forks as fast as it can, each child in a session of its own, up to a limit: `bomb.py LIMIT`."""

import os
import sys
import time

for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
time.sleep(1000)
