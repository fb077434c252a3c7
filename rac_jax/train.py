"""Training: the state, the step, and the loop, from top to bottom."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import data, evaluate, losses, optimizer, sharding
from rac_jax.calibration import held_out, new_classes
from rac_jax.checkpoints import Checkpoints
from rac_jax.data import pipeline, record
from rac_jax.models.voices import LeftOut, Neighbours
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.retrieval import feed
from rac_jax.run import Run, keep_vocabulary
from rac_jax.runtime import monitor, processes, workdirs
from rac_jax.runtime.interruption import Interrupted, Interruption
from rac_jax.start import tuning, values
from rac_jax.weights import parameters


def train(config: ConfigDict, workdir: Path, *, profile: bool = False, evaluated: bool = True) -> "State":
    """Train to the last step, starting from the newest checkpoint if there is one, then evaluate."""
    started = time.perf_counter()
    with workdirs.claim(config, workdir):
        dataset = data.load(config)
        record.start(config, dataset, workdir)
        config = tuning.with_tuned_encoder(config, workdir, functools.partial(train, evaluated=False))
        run = Run.from_config(config, workdir, dataset)
        if processes.first():
            keep_vocabulary(config, workdir)
        images = len(run.dataset.split("train"))
        tx = optimizer.from_config(config, images)
        like = abstract_state(run, tx)
        last = last_step(run, like)
        with Checkpoints.open(workdir, config) as checkpoints, TensorBoard.of(workdir) as board:
            latest = checkpoints.latest()
            first = latest or 0  # a run without training saves step 0
            board.start(first + 1 if first else 0)
            if latest is not None:
                state = checkpoints.restore(first, like)
                checkpoints.compare_memory(first, run.memory_record())
            else:
                state = initial_state(run, tx)
                board.config(workdirs.plain(config))
            run = run.with_offset(_offset(run, checkpoints, first, last))
            if first < last:
                checkpoints.require_space(like)
                step, progress = compiled_step(run, tx), Progress.start(run, workdir, first, last)
                with monitor.Trace(workdir / "tensorboard", wanted=profile) as trace, progress.bar:
                    hooks = (
                        lambda now: trace.step(now.metrics),
                        log_hook(progress, step, board, started),
                        save_hook(progress, checkpoints),
                        evaluate_hook(progress, board),
                    )
                    state = loop(progress, state, step, hooks)
            elif latest is None:
                checkpoints.save(0, state, run.memory_record())
            done = max(first, last)
            on_val = functools.partial(evaluate.of_true, run, state.params, state.stats, "val")
            held_out.keep_coverage(run, done, workdir, on_val=on_val)
            held_out.keep_keys(run, workdir)
            if evaluated:
                evaluate.evaluate(run, state.params, state.stats, done, config.eval.split, workdir, board)
            return state


def _offset(run: Run, checkpoints: Checkpoints, first: int, last: int) -> float:
    """The offset of classes without training: of the checkpoint, or found now if the config asks for it."""
    if first:
        return checkpoints.run_info(first).get("offset", 0.0)
    return new_classes.offset(run) if run.config.train.calibrate_new and last else 0.0


def last_step(run: Run, state: "State") -> int:
    """The step to stop at: 0 with config.train.epochs=0, or if the voices have nothing to train."""
    total = optimizer.total_steps(run.config, len(run.dataset.split("train"))) if jax.tree.leaves(state.params) else 0
    return min(run.config.train.steps or total, total)


# The state.


class State(flax.struct.PyTreeNode):
    """What training changes and a checkpoint keeps."""

    step: Any  # int32
    params: Any
    stats: Any  # running statistics of batch norms; empty for models without
    opt_state: Any


def abstract_state(run: Run, tx: optax.GradientTransformation) -> State:
    """Shapes, types and places of the state, without arrays: what a checkpoint is restored into."""
    _, params, stats = parameters.split(run.model)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    return sharding.state(run.mesh, State(step, params, stats, jax.eval_shape(tx.init, params)))


def initial_state(run: Run, tx: optax.GradientTransformation) -> State:
    """The first state: parameters from weights files or drawn, each array created where it is placed."""
    places = sharding.shardings(abstract_state(run, tx))
    params, stats = parameters.place(run.make_model, values.given(run), places.params, places.stats)
    for name, array in values.of_text_head(run, params, stats).items():
        params["text_head"][name] = sharding.put_array(places.params["text_head"][name], array)
    opt_state = jax.jit(tx.init, out_shardings=places.opt_state)(params)
    return State(sharding.put_array(places.step, np.zeros((), np.int32)), params, stats, opt_state)


# The step.

Metrics = dict[str, jax.Array]
TrainStep = Callable[[State, dict[str, jax.Array], Any, Any], tuple[State, Metrics]]


def compiled_step(run: Run, tx: optax.GradientTransformation) -> TrainStep:
    """The train step of a run, jitted for its mesh. The state is donated."""
    step = make_train_step(run.config, nnx.graphdef(run.model), tx, run.dataset.class_counts, mesh=run.mesh)
    places = sharding.shardings(abstract_state(run, tx))
    return jax.jit(step, out_shardings=(places, sharding.replicated(run.mesh)), donate_argnums=0)


def make_train_step(
    config: ConfigDict, graph: Any, tx: optax.GradientTransformation, class_counts: np.ndarray, *, mesh: Mesh
) -> TrainStep:
    """One update as a pure function: no callback, no host transfer.

    The batch is processed in config.train.accumulate parts, each with some rows of every device. A batch that does not
    divide evenly is padded with masked rows.
    """
    terms = losses.from_config(config, class_counts)
    parts, size, devices = config.train.accumulate, config.train.batch_size, mesh.size
    padding = sharding.padded_size(size, devices, parts) / size

    def mean(values: jax.Array, mask: jax.Array) -> jax.Array:
        """Over the real examples of the batch, written as a mean over equal parts."""
        return (values * mask.astype(jnp.float32) * padding).mean()

    def loss_of(params: Any, stats: Any, batch: Any, found: Any, knowledge: Any) -> tuple[jax.Array, Any]:
        params = sharding.gathered(mesh, params)
        still = optimizer.not_trained(config, params)
        params = jax.tree.map(lambda leaf, keep: jax.lax.stop_gradient(leaf) if keep else leaf, params, still)
        model = nnx.merge(graph, params, stats)
        labels, mask = batch["label"], batch["mask"]
        own = (found["own_label"], found["inside"], found["own_weight"], found.get("own_key")) if found else None
        left_out = LeftOut(*own) if own else None
        arguments = batch.get("image"), Neighbours.of(found), knowledge
        logits = model(*arguments, train=True, keys=batch["key"], left_out=left_out)
        loss = jnp.float32(0.0)
        for voice, weight in model.trained.items():
            answer = logits[voice][:, : len(class_counts)]  # classes that only the memory has are not trained
            loss += weight * mean(losses.general(answer, labels, terms, config.loss.smoothing), mask)
        right = {f"accuracy_{voice}": mean(_right(values, labels), mask) for voice, values in logits.items()}
        if found and knowledge:
            share = evaluate.share_of_true_class(knowledge.row_label, found["rows"], labels)
            right["neighbours_of_true_class"] = mean(share, mask)
        return loss, ({"loss": loss, **right}, parameters.split(model)[2])

    gradient = jax.grad(loss_of, has_aux=True)

    def train_step(state: State, batch: dict[str, jax.Array], found: Any, knowledge: Any) -> tuple[State, Metrics]:
        batch = batch | {"key": example_keys(config.seed, state.step, len(batch["label"]))}
        if parts == 1:
            grads, (metrics, stats) = gradient(state.params, state.stats, batch, found, knowledge)
        else:
            rows = {"batch": batch, "found": found}
            add_up = functools.partial(_by_rows, gradient, knowledge)
            grads, (metrics, stats) = accumulated(add_up, state.params, state.stats, rows, parts, devices)
        params, opt_state = optimizer.update(tx, grads, state.opt_state, state.params)
        metrics["gradient_norm"] = optax.tree.norm(grads)
        return State(state.step + 1, params, stats, opt_state), metrics

    return train_step


def _by_rows(gradient: Callable, knowledge: Any, params: Any, stats: Any, rows: Any) -> tuple[Any, Any]:
    return gradient(params, stats, rows["batch"], rows["found"], knowledge)


def example_keys(seed: int, step: jax.Array, count: int) -> jax.Array:
    """A random key for each example [count]: of the seed, the step and the position in the global batch only."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count, dtype=jnp.uint32))


def accumulated(
    gradient: Callable[..., tuple[Any, Any]], params: Any, stats: Any, rows: Any, parts: int, devices: int
) -> tuple[Any, Any]:
    """The gradient over all rows, computed part by part: the mean over `parts` equal parts."""

    def of(part: jax.Array, stats: Any) -> tuple[Any, Any]:
        mine = jax.tree.map(lambda x: part_of(x, part, parts, devices), rows)
        return gradient(params, stats, mine)

    def add(carry: Any, part: jax.Array) -> tuple[Any, None]:
        sums, stats = carry
        grads, (metrics, stats) = of(part, stats)
        return (jax.tree.map(jnp.add, sums, (grads, metrics)), stats), None

    numbers = jnp.arange(parts, dtype=jnp.int32)
    shapes, (metric_shapes, _) = jax.eval_shape(of, numbers[0], stats)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes, metric_shapes))
    (sums, stats), _ = jax.lax.scan(add, (zeros, stats), numbers)
    grads, metrics = jax.tree.map(lambda total: total / parts, sums)
    return grads, (metrics, stats)


def part_of(rows: jax.Array, part: jax.Array | int, parts: int, devices: int) -> jax.Array:
    """The rows of one part of a batch [B, ...] that is split over devices: [B / parts, ...], some of every device."""
    each = rows.reshape(devices, parts, -1, *rows.shape[1:])
    return each[:, part].reshape(-1, *rows.shape[1:])


def _right(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return (logits.argmax(axis=-1).astype(jnp.int32) == labels).astype(jnp.float32)


# The loop, and what it does between steps.


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
    state: State
    batch: dict[str, jax.Array]
    found: Any  # neighbours
    metrics: Metrics


Hook = Callable[[AfterStep], None]


def loop(progress: Progress, state: State, step: TrainStep, hooks: Sequence[Hook]) -> State:
    """Train to the end, calling every hook after each step."""
    run, breakdown, in_flight = progress.run, progress.breakdown, progress.in_flight
    fed = run.feed(breakdown.batches(_batches(run, progress.first)), split="train", training=True)
    with Interruption() as interruption:
        for number in range(progress.first + 1, progress.end + 1):
            if progress.measures(number):
                in_flight.land_all()
                breakdown.measure()
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                batch, found = next(fed)
                breakdown.mark("retrieve", found)
                state, metrics = step(state, batch, found, run.knowledge)
                breakdown.mark("train", metrics)
            in_flight.add(number, batch["id"], metrics)
            run.check()
            progress.bar.update()
            last = number == progress.end or interruption.reached(number)
            now = AfterStep(number, last, state, batch, found, metrics)
            for hook in hooks:
                hook(now)
            if last and number < progress.end:
                raise Interrupted
    return state


def _batches(run: Run, first: int) -> Iterator[pipeline.Batch]:
    config = run.config
    return pipeline.train_batches(
        run.dataset.split("train"),
        data.train_transform(config) if run.needs_images else None,
        batch_size=config.train.batch_size,
        seed=config.seed,
        workers=config.data.workers if run.needs_images else 0,
        start=first,
        rows=sharding.padded_size(config.train.batch_size, run.mesh.size, config.train.accumulate),
        views=config.train.views,
    )


def log_hook(progress: Progress, step: TrainStep, board: TensorBoard, started: float) -> Hook:
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
