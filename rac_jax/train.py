"""Training: the state, the step, and the loop, from top to bottom."""

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

from rac_jax import data, evaluate, losses, optimizer, sharding
from rac_jax.calibration import held_out, new_classes
from rac_jax.checkpoints import Checkpoints
from rac_jax.data import pipeline, record
from rac_jax.hooks import AfterStep, Hook, Progress, evaluate_hook, log_hook, save_hook
from rac_jax.models.voices import LeftOut, Neighbours
from rac_jax.report.tensorboard import TensorBoard
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


# The loop.


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
