"""A JAX trace of a few steps, for TensorBoard's Profile tab (pip install xprof)."""

from pathlib import Path

import jax

FIRST, LAST = 5, 10  # steps after the start: compiled, and running evenly


class Profile:
    """Traces steps FIRST to LAST of those that this start trains, when it is wanted."""

    def __init__(self, folder: Path, *, wanted: bool):
        self._folder, self._wanted, self._steps = folder, wanted, 0

    def step(self, finished: jax.Array | dict) -> None:
        """Called after each step with something that it computed."""
        self._steps += 1
        if self._wanted and self._steps == FIRST - 1:
            jax.block_until_ready(finished)
            jax.profiler.start_trace(self._folder)
        if self._wanted and self._steps == LAST:
            jax.block_until_ready(finished)
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._wanted = False

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *_: object) -> None:
        """A run that ends before LAST has a trace all the same."""
        if self._wanted and self._steps >= FIRST - 1:
            self._stop()
