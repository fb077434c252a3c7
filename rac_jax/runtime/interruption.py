"""SIGTERM and Ctrl-C: the step under way is finished and saved, and the exit code asks for another start."""

import signal
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

# EX_TEMPFAIL of sysexits.h, "try again later": no crash of Python or of a shell has it, so that a scheduler can tell a
# run that wants to go on from one that failed. launch/slurm.sbatch and launch/k8s.yaml start again on it.
REQUEUE = 75


class Interrupted(SystemExit):
    """Ends the program with REQUEUE."""

    def __init__(self) -> None:
        super().__init__(REQUEUE)


def exit_on_sigterm() -> None:
    """From here on SIGTERM ends the program with REQUEUE; inside an `Interruption` it is only noted."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(*_: Any) -> None:
    raise Interrupted


class Interruption:
    """Notes a signal within its `with`; a second one acts at once.

    In a run of many processes JAX's own preemption service takes SIGTERM, wherever it arrives, and all agree on the
    step to stop at.
    """

    def __init__(self) -> None:
        self._noted = False
        self._previous: dict[int, Any] = {}

    def reached(self, step: int) -> bool:
        """Is this the step to stop at?"""
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
        if jax.process_count() == 1:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
