"""A wall clock of the daemon's own, for a Python that has this folder on PYTHONPATH.

`time.time` goes wrong by as many seconds as the file that CHAOS_CLOCK names says. The monotonic clock stays as it is.
libfaketime cannot be used: it lets `time.sleep` fail with EINVAL and holds up threads (0.9.10 with Python 3.11).
"""

import os
import time

_true = time.time


def _wrong() -> float:
    try:
        with open(os.environ["CHAOS_CLOCK"]) as file:  # noqa: PTH123 -- no import that the daemon might not make itself
            return _true() + float(file.read())
    except (OSError, ValueError, KeyError):
        return _true()


time.time = _wrong
