"""Measurements of a run: where the time of a step goes, use of the machine, traces, and losses as they arrive."""

import dataclasses
import functools
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from rac_jax import sharding
from rac_jax.runtime import files

Item = TypeVar("Item")

STEPS_AHEAD = 2  # steps that the host may be ahead of the devices
TRACE_FIRST, TRACE_LAST = 5, 10  # steps after the start that are traced: compiled, and running evenly

# Dense bfloat16 FLOP/s of one device, from the makers' data sheets. The first key that is part of JAX's name applies.
PEAKS = {
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A10G": 70e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "V100": 125e12,
    "T4": 65e12,
    "TPU v6": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,  # v5p
    "TPU v4": 275e12,
    "TPU v3": 61.5e12,
    "TPU v2": 22.5e12,
}


class Breakdown:
    """Milliseconds of a step: `data` (waiting for a batch), `devices` (waiting for results), `host` (everything else).

    Devices work while the host continues, so their own time is visible only when the host waits for them. That is done
    for one step between two records and gives `retrieve` (E and the lookup) and `train`.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._seconds: dict[str, float] = {"data": 0.0, "devices": 0.0}
        self._measured: dict[str, float] = {}
        self._since = self._mark = time.perf_counter()
        self._measuring = False

    def batches(self, source: Iterable[Item]) -> Iterator[Item]:
        """The batches of `source`; time spent waiting for them counts as `data`."""
        iterator = iter(source)
        while True:
            started = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            waited = time.perf_counter() - started
            self._seconds["data"] += waited
            self._mark += waited  # not part of the interval being measured
            yield item

    def wait(self, value: Any) -> Any:
        """Fetch a value to the host; the wait counts as `devices`."""
        started = time.perf_counter()
        value = jax.device_get(value)
        self._seconds["devices"] += time.perf_counter() - started
        return value

    def pause(self, seconds: float) -> None:
        """Exclude an interval that does not belong to any step, such as an evaluation."""
        self._since += seconds
        self._mark += seconds

    def measure(self) -> None:
        """Start measuring: until the next record, `mark` waits. The devices must be idle."""
        self._measuring, self._mark = True, time.perf_counter()

    def mark(self, name: str, value: Any) -> None:
        """End a measured interval when `value` is ready."""
        if self._measuring and value is not None:
            jax.block_until_ready(value)
            now = time.perf_counter()
            self._measured[name], self._mark = now - self._mark, now

    def record(self, steps: int) -> dict[str, float]:
        """Milliseconds per step over the `steps` since the last record."""
        total = time.perf_counter() - self._since
        host = total - sum(self._seconds.values()) - sum(self._measured.values())
        intervals = {name: seconds / steps for name, seconds in self._seconds.items()} | self._measured
        intervals |= {"host": max(host, 0.0) / steps, "step": total / steps}
        self._start()
        return {f"{name}_ms": 1e3 * seconds for name, seconds in intervals.items()}


def line(milliseconds: dict[str, float]) -> str:
    """For the progress bar, for example "data 0 retrieve 12 train 80 host 1"."""
    shown = ("data_ms", "retrieve_ms", "lookup_ms", "train_ms", "host_ms")
    return " ".join(f"{name[:-3]} {milliseconds[name]:.0f}" for name in shown if name in milliseconds)


class NotFinite(RuntimeError):
    """A loss or a gradient is not a finite number."""


@dataclasses.dataclass
class InFlight:
    """Keeps the host at most STEPS_AHEAD steps ahead of the devices, and checks each step's loss when it arrives.

    Nothing else is waited for: the numbers of a step travel to the host while later steps are computed.
    """

    workdir: Path
    references: Callable[[], Sequence[str]]  # the names of the training images by id, for the error message
    breakdown: Breakdown

    def __post_init__(self) -> None:
        self._steps: deque[tuple[int, jax.Array, dict[str, jax.Array]]] = deque()
        self._window: list[dict[str, np.ndarray]] = []

    def add(self, step: int, ids: jax.Array, metrics: dict[str, jax.Array]) -> None:
        """Add a step that was just queued, with the ids of its images."""
        for value in metrics.values():
            value.copy_to_host_async()
        self._steps.append((step, ids, metrics))
        while len(self._steps) > STEPS_AHEAD:
            self._land()

    def land_all(self) -> None:
        """Wait for every step. After this the state may be saved."""
        while self._steps:
            self._land()

    def take_means(self, *, wait: bool = True) -> dict[str, float]:
        """Mean of each metric since the last call; without `wait`, of the steps that have arrived, if any have."""
        if wait or not self._window:
            self.land_all()
        window, self._window = self._window, []
        return {name: float(np.mean([metrics[name] for metrics in window])) for name in window[0]}

    def _land(self) -> None:
        step, ids, metrics = self._steps.popleft()
        values = self.breakdown.wait(metrics)
        self._window.append(values)
        if not (np.isfinite(values["loss"]) and np.isfinite(values["gradient_norm"])):
            raise self._not_finite(step, ids, values)

    def _not_finite(self, step: int, ids: jax.Array, values: dict[str, Any]) -> NotFinite:
        mine = sharding.rows_of_this_process(ids)
        references = self.references()
        path = self.workdir / f"not_finite_{jax.process_index()}.json"
        found = {name: str(values[name]) for name in ("loss", "gradient_norm")}
        images = [references[i] for i in mine.tolist()]
        files.write_json(path, {"step": step, **found, "ids": mine.tolist(), "images": images})
        return NotFinite(
            f"step {step} has loss {found['loss']} and gradient norm {found['gradient_norm']}; its batch is in {path}. "
            "Nothing was saved since the last checkpoint. Lower config.optim.learning_rate, or set "
            "config.model.dtype=float32, in another --workdir"
        )


class Trace:
    """A JAX trace of a few steps, for TensorBoard's Profile tab (pip install xprof)."""

    def __init__(self, folder: Path, *, wanted: bool):
        self._folder, self._wanted, self._steps = folder, wanted, 0

    def step(self, finished: Any) -> None:
        """Call this after each step with something that the step computed."""
        self._steps += 1
        if self._wanted and self._steps == TRACE_FIRST - 1:
            jax.block_until_ready(finished)
            jax.profiler.start_trace(self._folder)
        if self._wanted and self._steps == TRACE_LAST:
            jax.block_until_ready(finished)
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        self._wanted = False

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, *_: object) -> None:
        """A run that ends before TRACE_LAST has a trace too."""
        if self._wanted and self._steps >= TRACE_FIRST - 1:
            self._stop()


def devices() -> str:
    """The hardware of a measurement, for example "8 × NVIDIA A100" or "1 × cpu (2 cores)"."""
    kind = jax.devices()[0].device_kind
    return f"{jax.device_count()} × {kind}" + (f" ({os.cpu_count()} cores)" if kind == "cpu" else "")


def peak_memory() -> dict[str, float]:
    """Peak memory so far in GB: of this process, and of the fullest device where JAX reports it."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    found = {"host_memory_gb": kilobytes * 1024 / 1e9}
    if known := [peak for peak in peaks if peak is not None]:
        found["device_memory_gb"] = max(known) / 1e9
    return found


def flops(program: Any, *arguments: Any) -> float:
    """FLOPs of one call of a jitted program on each device by XLA's count (a loop counts once); 0 if there is none.

    The compiled program is analysed, because accelerators only count the operations of compiled programs. A program
    that has been called is not compiled again.
    """
    if isinstance(program, functools.partial):
        program, arguments = program.func, (*program.args, *arguments)
    cost = program.lower(*arguments).compile().cost_analysis()
    return float((cost or {}).get("flops", 0.0))


def peak_flops(devices: list[jax.Device]) -> float | None:
    """FLOP/s of all devices together, if they are known."""
    kind = devices[0].device_kind
    for name, peak in PEAKS.items():
        if name in kind:
            return peak * len(devices)
    return None


def arithmetic(flops_per_step: float, seconds_per_step: float, devices: list[jax.Device]) -> dict[str, float]:
    """TFLOPs per step, TFLOP/s, and the share of the devices' bfloat16 peak where that is known.

    Work that `remat` does twice is counted twice. Empty if there is no count.
    """
    if not flops_per_step:
        return {}
    found = {"tflops_a_step": flops_per_step / 1e12, "tflops_per_second": flops_per_step / seconds_per_step / 1e12}
    if peak := peak_flops(devices):
        found["model_flops_utilisation"] = flops_per_step / seconds_per_step / peak
    return found
