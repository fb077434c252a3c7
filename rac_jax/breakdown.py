"""Where the time of a step goes, in milliseconds."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import jax

Item = TypeVar("Item")


class Breakdown:
    """Of all steps: `data`, waiting for a batch; `devices`, waiting for the devices; `host`, all else the host did.

    Devices work while the host goes on, so their own share shows only when they are waited for: that is done on one
    step between two records, which gives `retrieve` (E and its lookup, or what of it was still to be waited for) and
    `train`.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._seconds: dict[str, float] = {"data": 0.0, "devices": 0.0}
        self._measured: dict[str, float] = {}
        self._since = self._mark = time.perf_counter()
        self._measuring = False

    def batches(self, source: Iterable[Item]) -> Iterator[Item]:
        """The batches, each waited for under `data`."""
        iterator = iter(source)
        while True:
            started = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            waited = time.perf_counter() - started
            self._seconds["data"] += waited
            self._mark += waited  # no part of the stretch that is being measured
            yield item

    def wait(self, value: Any) -> Any:
        """The value on the host, waited for under `devices`."""
        started = time.perf_counter()
        value = jax.device_get(value)
        self._seconds["devices"] += time.perf_counter() - started
        return value

    def measure(self) -> None:
        """From here on, to the next record, `mark` waits; the devices are idle now."""
        self._measuring, self._mark = True, time.perf_counter()

    def mark(self, name: str, value: Any) -> None:
        """The end of a stretch of the step that is measured: when `value` is there."""
        if self._measuring and value is not None:
            jax.block_until_ready(value)
            now = time.perf_counter()
            self._measured[name], self._mark = now - self._mark, now

    def record(self, steps: int) -> dict[str, float]:
        """Milliseconds a step, over the `steps` since the last record."""
        total = time.perf_counter() - self._since
        host = total - sum(self._seconds.values()) - sum(self._measured.values())
        parts = {name: seconds / steps for name, seconds in self._seconds.items()} | self._measured
        parts |= {"host": max(host, 0.0) / steps, "step": total / steps}
        self._start()
        return {f"{name}_ms": 1e3 * seconds for name, seconds in parts.items()}


def line(milliseconds: dict[str, float]) -> str:
    """For the progress bar, as "data 0 retrieve 12 train 80 host 1"."""
    shown = ("data_ms", "retrieve_ms", "lookup_ms", "train_ms", "host_ms")
    return " ".join(f"{name[:-3]} {milliseconds[name]:.0f}" for name in shown if name in milliseconds)
