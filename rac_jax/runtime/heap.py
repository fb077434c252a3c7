"""The heap of a process that runs for long: glibc keeps what was freed, in one heap for each thread.

Other C libraries have none of these functions, and nothing is done.
"""

import contextlib
import ctypes

M_ARENA_MAX = -8  # of malloc.h


def use_one() -> None:
    """One heap for all threads, from now on."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def trim() -> None:
    """Give back what is free: pages between those in use stay with the process otherwise. Takes milliseconds."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
