"""What keeps a daemon small that lives for months and sees thousands of engines come and go."""

import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
"""glibc's <malloc.h>."""
_LARGE = 64 * 1024


def bound_the_heap() -> None:
    """Have large blocks come from the kernel and go back to it. To be called before there are threads.

    By itself glibc raises what it calls large to the largest block ever freed, and has a heap for each thread: the
    megabytes in which an ended engine's log was read then cut the heaps to pieces. Measured over 1,000 ends: 3 MiB
    became 1. Elsewhere (musl) there is nothing to set.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, _LARGE)
    mallopt(_M_ARENA_MAX, 1)


def set_apart_what_stays() -> None:
    """Leave what there is by now out of every later collection of garbage.

    CPython looks for old garbage only once as much as a quarter of all that lives has come to it, our modules counted,
    and each look would hold the loop for as long as they take to walk.
    """
    gc.freeze()  # unseen: hardly any of it is garbage, and finding out takes 50 ms
    gc.collect()  # from now on the count is of what is not frozen
