"""Ctrl-C and SIGTERM while `python -m rac_jax.…` imports its modules, which takes seconds: one line, no trace."""

import os
import signal
import sys
from typing import Any

REQUEUE = 75  # see interruption.py, which imports jax and comes later
INTERRUPTED = "\ninterrupted; run the same command again to continue"


def guard_imports() -> None:
    """Until `commands.run` takes over, a signal ends the process at once. There is nothing to clean up yet."""
    if sys.argv[0] == "-m":  # a command is being located; in a program that imports the package this is its own name
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _leave)


def _leave(*_: Any) -> None:
    os.write(2, (INTERRUPTED + "\n").encode())
    os._exit(REQUEUE)
