"""A zombie with threads: its main thread ends while another lives, until the file argv[1] appears; then exit 7."""

import ctypes
import os
import platform
import sys
import threading
import time
from pathlib import Path

SYS_EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]


def work() -> None:
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
    os._exit(7)


threading.Thread(target=work).start()
# ctypes lets go of the interpreter lock around the call; this one ends the calling thread alone.
ctypes.CDLL(None).syscall(SYS_EXIT, 0)
