"""What training does between steps: log, save, evaluate. `loop` in train.py calls each hook after each step."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from rac_jax import evaluate, optimizer
from rac_jax.checkpoints import Checkpoints
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.retrieval import feed
from rac_jax.run import Run
from rac_jax.runtime import monitor, processes


@dataclasses.dataclass(frozen=True)
class Progress:
    """What the loop and its hooks share."""

    run: Run
    first: int  # the step that this start continues from
    end: int
    breakdown: monitor.Breakdown
    in_flight: monitor.InFlight
    bar: tqdm

    @classmethod
    def start(cls, run: Run, workdir: Path, first: int, end: int) -> "Progress":
        breakdown = monitor.Breakdown()
        in_flight = monitor.InFlight(workdir, run.dataset.split("train").images.references, breakdown)
        bar = tqdm(initial=first, total=end, desc="train", unit="step", disable=not processes.first())
        return cls(run, first, end, breakdown, in_flight, bar)

    @property
    def on_cpu(self) -> bool:
        """Whether waiting for the devices costs nothing: accelerators would run dry meanwhile."""
        return self.run.mesh.devices.flat[0].platform == "cpu"

    def measures(self, step: int) -> bool:
        """Whether the parts of this step are timed, for which the host waits: on accelerators in the first record."""
        every = self.run.config.train.log_every
        return step % every == 0 and (self.on_cpu or step - self.first <= every)


@dataclasses.dataclass(frozen=True)
class AfterStep:
    """What a hook is called with."""

    step: int
    last: bool  # of this start: the end of training, or an interruption
    state: Any  # train.State
    batch: dict[str, jax.Array]
    found: Any  # neighbours
    metrics: dict[str, jax.Array]


Hook = Callable[[AfterStep], None]


def log_hook(progress: Progress, step: Any, board: TensorBoard, started: float) -> Hook:
    """Write means of the metrics, times, memory and FLOPs to TensorBoard every config.train.log_every steps.

    Accelerators are not waited for: the last steps before a record, still under way, are part of the next one's means.
    """
    run, config = progress.run, progress.run.config
    learning_rate = optimizer.learning_rate(config, len(run.dataset.split("train")))
    logged, work = progress.first, 0.0

    def log(now: AfterStep) -> None:
        nonlocal logged, work
        if now.step == progress.first + 1:
            jax.block_until_ready(now.metrics)
            seconds = time.perf_counter() - started
            board.scalars(now.step, {"start/seconds_to_first_step": seconds})
            progress.bar.set_postfix_str(f"first step after {seconds:.1f} s")
            work = step_flops(run, step, now)
        if not (now.last or now.step % config.train.log_every == 0):
            return
        values = progress.in_flight.take_means(wait=progress.on_cpu or now.last) | progress.breakdown.record(
            now.step - logged
        )
        run.check()
        values["images_per_second"] = config.train.batch_size / (1e-3 * values["step_ms"])
        values["learning_rate"] = learning_rate(now.step - 1)
        values |= lookup_milliseconds(run) | monitor.peak_memory()
        values |= monitor.arithmetic(work, 1e-3 * values["step_ms"], list(run.mesh.devices.flat))
        board.scalars(now.step, {f"train/{name}": value for name, value in values.items()})
        progress.bar.set_postfix_str(f"loss {values['loss']:.3f}, ms: {monitor.line(values)}", refresh=False)
        logged = now.step

    return log


def save_hook(progress: Progress, checkpoints: Checkpoints) -> Hook:
    """Save every config.checkpoint.every steps and at the end of this start."""
    run = progress.run

    def save(now: AfterStep) -> None:
        if now.last or now.step % run.config.checkpoint.every == 0:
            progress.in_flight.land_all()
            run.check()  # never save a step whose loss or lookup failed
            checkpoints.save(now.step, now.state, run.memory_record())
        if now.last and now.step < progress.end:
            checkpoints.wait()  # the process is about to exit

    return save


def evaluate_hook(progress: Progress, board: TensorBoard) -> Hook:
    """Evaluate the validation split every config.eval.every steps. The time is not charged to the steps."""
    run, every = progress.run, progress.run.config.eval.every

    def evaluate_val(now: AfterStep) -> None:
        if not every or now.step % every or now.last:
            return
        progress.in_flight.land_all()
        begun = time.perf_counter()
        counts = evaluate.count(run, now.state.params, now.state.stats, "val")
        board.scalars(now.step, evaluate.scalars("val", evaluate.accuracies(run, counts)))
        progress.breakdown.pause(time.perf_counter() - begun)

    return evaluate_val


def step_flops(run: Run, step: Any, now: AfterStep) -> float:
    """FLOPs of one step over all devices, E included."""
    on_each = monitor.flops(step, now.state, now.batch, now.found, run.knowledge)
    on_each *= run.config.train.accumulate  # XLA counts the body of a loop once
    retriever, lookup = run.retriever, feed.lookup_of(run.config)
    if retriever is not None and lookup == "callback":
        # The ids stand in for the own rows, which have the same shape and place.
        on_each += monitor.flops(retriever.program, retriever.encoder.parameters, now.batch["image"], now.batch["id"])
    elif retriever is not None and lookup == "pipelined":
        on_each += monitor.flops(retriever.keys_program, retriever.encoder.parameters, now.batch["image"])
    return on_each * run.mesh.size


def lookup_milliseconds(run: Run) -> dict[str, float]:
    """How long a lookup on the host takes; absent where neighbours are cached or on the devices."""
    milliseconds = run.retriever.lookup.take_milliseconds() if run.retriever else 0.0
    return {"lookup_ms": milliseconds} if milliseconds else {}
