"""Training: the step, and the loop around it."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from flax import nnx
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import data, evaluate, feed, losses, optimizer, sharding, states, system, workdirs
from rac_jax.checkpoints import Checkpoints
from rac_jax.data import pipeline
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.states import State

IN_FLIGHT = 2  # steps that the host may be ahead of the devices


TrainStep = Callable[[State, dict[str, jax.Array], Any], tuple[State, dict[str, jax.Array]]]


def train(config: ConfigDict, workdir: Path) -> None:
    """Train to the last step, from the newest checkpoint if there is one, and evaluate."""
    workdirs.claim(config, workdir)
    parts = system.create(config, workdir)
    images = parts.dataset.split("train")
    total = optimizer.total_steps(config, len(images))
    last = min(config.train.steps or total, total)
    tx = optimizer.create(config, len(images))
    graph, state, places = states.create(parts, tx)
    train_step = jax.jit(
        make_train_step(config, graph, tx, parts.dataset.class_counts),
        out_shardings=(places, sharding.replicated(parts.mesh)),
        donate_argnums=0,
    )
    with Checkpoints.open(workdir, config) as checkpoints, TensorBoard(workdir / "tensorboard") as board:
        start = checkpoints.latest() or 0
        if start:
            state = checkpoints.restore(start, state)
            checkpoints.compare_memory(start, parts.memory_record())
            logging.info("restored step %d from %s", start, workdir)
        else:
            workdirs.describe(config, board)
        if start < last:
            state = _loop(parts, state, train_step, (start, last), checkpoints, parts.memory_record(), board)
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
    checkpoints: Checkpoints,
    run: dict[str, Any],
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
    fed = feed.feed(parts, batches, training=True)
    waiting: deque[dict[str, jax.Array]] = deque()
    window: list[dict[str, jax.Array]] = []
    since = time.perf_counter()
    with tqdm(initial=steps[0], total=steps[1], desc="train", unit="step") as bar:
        for step in range(steps[0] + 1, steps[1] + 1):
            batch, found = next(fed)
            state, metrics = train_step(state, batch, found and found["tokens"])
            window.append(metrics)
            waiting.append(metrics)
            if len(waiting) > IN_FLIGHT:
                jax.block_until_ready(waiting.popleft())
            parts.check()
            bar.update()
            if step % config.train.log_every == 0 or step == steps[1]:
                values = _window_mean(window, step)
                parts.check()
                elapsed = time.perf_counter() - since
                values["images_per_second"] = len(window) * config.train.batch_size / elapsed
                values["learning_rate"] = float(rate(step - 1))
                values |= _retrieval_scalars(parts, batch, found)
                board.scalars(step, {f"train/{name}": value for name, value in values.items()})
                bar.set_postfix(loss=f"{values['loss']:.3f}", refresh=False)
                window, since = [], time.perf_counter()
            if step % config.checkpoint.every == 0 or step == steps[1]:
                jax.block_until_ready(state)
                parts.check()  # never save a step whose lookup failed
                checkpoints.save(step, state, run)
            if config.eval.every and step % config.eval.every == 0 and step < steps[1]:
                counts = evaluate.count(parts, state.params, state.stats, "val")
                board.scalars(step, evaluate.scalars("val", evaluate.accuracies(parts, counts)))
    return state


def _window_mean(window: list[dict[str, jax.Array]], step: int) -> dict[str, float]:
    values = jax.device_get(window)
    means = {name: float(np.mean([v[name] for v in values])) for name in values[0]}
    if not np.isfinite(means["loss"]):
        raise FloatingPointError(
            f"the loss is not a number within the {len(window)} steps up to {step}; "
            "lower config.optim.learning_rate, or set config.model.dtype=float32"
        )
    return means


def _retrieval_scalars(parts: system.System, batch: dict[str, jax.Array], found: Any) -> dict[str, float]:
    """How long a lookup takes, and which share of the retrieved texts names the true class."""
    if parts.retrieval is None:
        return {}
    named = evaluate.classes_of(parts.retrieval, found["rows"]) == batch["label"][:, None]
    return {
        "lookup_ms": parts.retrieval.lookup.take_milliseconds(),
        "neighbours_of_true_class": float(named.mean()),
    }
