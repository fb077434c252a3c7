"""SIGTERM and Ctrl-C: training finishes and saves the current step; every command ends with exit code 75."""

import signal
import threading
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

from rac_jax.runtime import starting

# EX_TEMPFAIL of sysexits.h, "try again later". Crashes of Python or of a shell have other codes, so a scheduler can
# tell an interrupted run from a failed one. launch/slurm.sbatch and launch/k8s.yaml start again on this code.
REQUEUE = starting.REQUEUE


class Interrupted(SystemExit):
    """Ends the program with REQUEUE."""

    def __init__(self) -> None:
        super().__init__(REQUEUE)


def exit_on_signals() -> None:
    """From here on SIGTERM raises Interrupted and Ctrl-C KeyboardInterrupt; an `Interruption` only notes them."""
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: Any) -> None:
    raise Interrupted


class Interruption:
    """Notes a signal inside its `with` block; a second signal acts at once.

    In a run of several processes JAX's preemption service handles SIGTERM: all processes stop at the same step,
    whichever of them received the signal.
    """

    def __init__(self) -> None:
        self._noted = False
        self._previous: dict[int, Any] = {}

    def reached(self, step: int) -> bool:
        """Whether to stop at this step."""
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._noted

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True
        self._restore()

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def __enter__(self) -> "Interruption":
        in_main_thread = threading.current_thread() is threading.main_thread()  # others may not handle signals
        if jax.process_count() == 1 and in_main_thread:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
