"""What `python -m rac_jax.…` does before it imports its modules, which takes seconds.

A command on a CPU starts again with huge pages for its heap. Ctrl-C and SIGTERM during the imports print one line, no
trace.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REQUEUE = 75  # see interruption.py, which imports jax and comes later
INTERRUPTED = "\ninterrupted; run the same command again to continue"

HEAP = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb=1"
HUGE_PAGES_IN_LINUX = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/vfio/0")  # GPUs, TPUs


def use_huge_pages() -> None:
    """Start the command again, in the same process, with a heap of huge pages.

    XLA allocates the temporary arrays anew in each step. With pages of 4 kB, 40 % of the CPU time of a step of
    EfficientNet-Lite0 goes into page faults (RESULTS.md). glibc reads the setting only when a process starts. Nothing
    is done if the user has set GLIBC_TUNABLES, if Linux gives huge pages to all processes or to none, and on
    accelerators.
    """
    if _is_command() and wants_huge_pages(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, HEAP: HUGE_PAGES})


def wants_huge_pages(environment: Mapping[str, str]) -> bool:
    """Whether a command in this environment should start again with huge pages."""
    if HEAP in environment or any(map(os.path.exists, ACCELERATORS)):
        return False
    try:
        return "[madvise]" in HUGE_PAGES_IN_LINUX.read_text()
    except OSError:
        return False


def guard_imports() -> None:
    """Until `commands.run` takes over, a signal ends the process at once. There is nothing to clean up yet."""
    if _is_command():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _leave)


def _is_command() -> bool:
    """Whether a module is being located for `python -m`; in a program that imports the package this is its own name."""
    return sys.argv[0] == "-m"


def _leave(*_: Any) -> None:
    os.write(2, (INTERRUPTED + "\n").encode())
    os._exit(REQUEUE)
