"""Training: the step, and the loop around it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import data, evaluate, feed, losses, optimizer, processes, sharding, states, system, workdirs
from rac_jax.checkpoints import Checkpoints
from rac_jax.data import pipeline
from rac_jax.in_flight import InFlight
from rac_jax.interruption import Interrupted, Interruption
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.states import State

TrainStep = Callable[[State, dict[str, jax.Array], Any], tuple[State, dict[str, jax.Array]]]


def train(config: ConfigDict, workdir: Path) -> None:
    """Train to the last step, from the newest checkpoint if there is one, and evaluate."""
    with workdirs.claim(config, workdir):
        parts = system.create(config, workdir)
        images = parts.dataset.split("train")
        total = optimizer.total_steps(config, len(images))
        last = min(config.train.steps or total, total)
        tx = optimizer.create(config, len(images))
        like = states.abstract(parts, tx)
        train_step = jax.jit(
            make_train_step(config, nnx.graphdef(parts.model), tx, parts.dataset.class_counts),
            out_shardings=(sharding.places(like), sharding.replicated(parts.mesh)),
            donate_argnums=0,
        )
        with Checkpoints.open(workdir, config) as checkpoints, TensorBoard.of(workdir) as board:
            start = checkpoints.latest() or 0
            if start:
                state = checkpoints.restore(start, like)
                checkpoints.compare_memory(start, parts.memory_record())
            else:
                state = states.create(parts, tx)
                workdirs.describe(config, board)
            if start < last:
                checkpoints.require_space(like)
                state = _loop(parts, state, train_step, (start, last), workdir, checkpoints, board)
            step = max(start, last)
            evaluate.evaluate(parts, state.params, state.stats, step, config.eval.split, workdir, board)


def make_train_step(
    config: ConfigDict, graph: Any, tx: optax.GradientTransformation, class_counts: np.ndarray
) -> TrainStep:
    """One update, as a pure function: no callback, no host transfer."""
    terms = losses.terms(config.loss.name, class_counts, tau=config.loss.tau, reweight=config.loss.reweight)

    def train_step(
        state: State, batch: dict[str, jax.Array], tokens: jax.Array | None
    ) -> tuple[State, dict[str, jax.Array]]:
        # Draws depend on the seed, the step and the place in the global batch, on no device.
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)

        def loss_of(params: Any) -> tuple[jax.Array, Any]:
            model = nnx.merge(graph, params, state.stats)
            logits = model(batch["image"], tokens, train=True, key=key)
            loss = losses.general(logits[model.output], batch["label"], terms, config.loss.smoothing)
            return loss.mean(), (logits, states.split(model)[2])

        (loss, (logits, stats)), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        params, opt_state = optimizer.update(tx, grads, state.opt_state, state.params)
        metrics = {"loss": loss, "gradient_norm": optax.tree.norm(grads)}
        for branch, values in logits.items():
            right = values.argmax(axis=-1).astype(jnp.int32) == batch["label"]
            metrics[f"accuracy_{branch}"] = right.astype(jnp.float32).mean()
        return State(state.step + 1, params, stats, opt_state), metrics

    return train_step


def _loop(
    parts: system.System,
    state: State,
    train_step: TrainStep,
    steps: tuple[int, int],
    workdir: Path,
    checkpoints: Checkpoints,
    board: TensorBoard,
) -> State:
    config, images = parts.config, parts.dataset.split("train")
    rate = optimizer.schedule(config, len(images))
    batches = pipeline.train_batches(
        images,
        data.train_transform(config),
        batch_size=config.train.batch_size,
        seed=config.seed,
        workers=config.data.workers,
        start=steps[0],
    )
    fed = feed.feed(parts, batches, split="train", training=True)
    in_flight = InFlight(workdir, images)
    since, logged = time.perf_counter(), steps[0]
    with Interruption() as interruption, _bar(steps) as bar:
        for step in range(steps[0] + 1, steps[1] + 1):
            batch, found = next(fed)
            state, metrics = train_step(state, batch, found and found["tokens"])
            in_flight.add(step, batch["id"], metrics)
            parts.check()
            bar.update()
            last = step == steps[1] or interruption.reached(step)
            if last or step % config.train.log_every == 0:
                values = in_flight.take_means()
                parts.check()
                elapsed = time.perf_counter() - since
                values["images_per_second"] = (step - logged) * config.train.batch_size / elapsed
                values["learning_rate"] = float(rate(step - 1))
                values |= _retrieval_scalars(parts, batch, found)
                board.scalars(step, {f"train/{name}": value for name, value in values.items()})
                bar.set_postfix(loss=f"{values['loss']:.3f}", refresh=False)
                since, logged = time.perf_counter(), step
            if last or step % config.checkpoint.every == 0:
                in_flight.land_all()
                parts.check()  # never save a step whose loss or lookup failed
                checkpoints.save(step, state, parts.memory_record())
            if last and step < steps[1]:
                checkpoints.wait()
                raise Interrupted
            if config.eval.every and step % config.eval.every == 0 and step < steps[1]:
                counts = evaluate.count(parts, state.params, state.stats, "val")
                board.scalars(step, evaluate.scalars("val", evaluate.accuracies(parts, counts)))
    return state


def _retrieval_scalars(parts: system.System, batch: dict[str, jax.Array], found: Any) -> dict[str, float]:
    """How long a lookup on the host takes, and which share of the retrieved texts names the true class."""
    if parts.retrieval is None:
        return {}
    share = evaluate.share_of_true_class(parts.retrieval.row_class, found["rows"], batch["label"])
    milliseconds = parts.retrieval.lookup.take_milliseconds()
    asked = {"lookup_ms": milliseconds} if milliseconds else {}  # none where neighbours are cached or on the devices
    return asked | {"neighbours_of_true_class": float(jax.device_get(share))}


def _bar(steps: tuple[int, int]) -> tqdm:
    return tqdm(initial=steps[0], total=steps[1], desc="train", unit="step", disable=not processes.first())
