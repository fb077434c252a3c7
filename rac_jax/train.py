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

from rac_jax import (
    accumulation,
    data,
    evaluate,
    feed,
    host_memory,
    losses,
    optimizer,
    processes,
    sharding,
    states,
    system,
    usage,
    workdirs,
)
from rac_jax.breakdown import Breakdown, line
from rac_jax.checkpoints import Checkpoints
from rac_jax.data import pipeline
from rac_jax.in_flight import InFlight
from rac_jax.interruption import Interrupted, Interruption
from rac_jax.models.draws import Draws
from rac_jax.profiling import Profile
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.states import State

GIVE_BACK = 100  # steps

TrainStep = Callable[[State, dict[str, jax.Array], Any], tuple[State, dict[str, jax.Array]]]


def train(config: ConfigDict, workdir: Path, *, profile: bool = False, evaluated: bool = True) -> None:
    """Train to the last step, from the newest checkpoint if there is one, and evaluate unless that is not wanted."""
    started = time.perf_counter()
    with workdirs.claim(config, workdir):
        parts = system.create(config, workdir)
        images = parts.dataset.split("train")
        total = optimizer.total_steps(config, len(images))
        last = min(config.train.steps or total, total)
        tx = optimizer.create(config, len(images))
        like = states.abstract(parts, tx)
        train_step = jax.jit(
            make_train_step(config, nnx.graphdef(parts.model), tx, parts.dataset.class_counts, parts.mesh.size),
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
                trace = Profile(workdir / "tensorboard", wanted=profile)
                state = _loop(parts, state, train_step, (start, last), workdir, checkpoints, board, trace, started)
            if evaluated:
                step = max(start, last)
                evaluate.evaluate(parts, state.params, state.stats, step, config.eval.split, workdir, board)


def make_train_step(
    config: ConfigDict, graph: Any, tx: optax.GradientTransformation, class_counts: np.ndarray, devices: int = 1
) -> TrainStep:
    """One update, as a pure function: no callback, no host transfer.

    The batch is worked through in config.train.accumulate parts, cut from what each of the devices has of it, and is
    filled up where they do not divide it.
    """
    terms = losses.terms(config.loss.name, class_counts, tau=config.loss.tau, reweight=config.loss.reweight)
    parts, size = config.train.accumulate, config.train.batch_size
    filled = sharding.rows(size, devices, parts) / size

    def mean(values: jax.Array, mask: jax.Array) -> jax.Array:
        """Over the batch without what it was filled up with, as a mean over equal parts."""
        return (values * mask.astype(jnp.float32) * filled).mean()

    def loss_of(params: Any, stats: Any, batch: Any, tokens: Any, draws: Draws) -> tuple[jax.Array, Any]:
        still = optimizer.not_trained(config, params)
        params = jax.tree.map(lambda leaf, keep: jax.lax.stop_gradient(leaf) if keep else leaf, params, still)
        model = nnx.merge(graph, params, stats)
        logits = model(batch["image"], tokens, train=True, draws=draws)
        labels, mask = batch["label"], batch["mask"]
        loss = mean(losses.general(logits[model.output], labels, terms, config.loss.smoothing), mask)
        right = {f"accuracy_{branch}": mean(_right(values, labels), mask) for branch, values in logits.items()}
        return loss, ({"loss": loss, **right}, states.split(model)[2])

    gradient = jax.grad(loss_of, has_aux=True)

    def train_step(
        state: State, batch: dict[str, jax.Array], tokens: jax.Array | None
    ) -> tuple[State, dict[str, jax.Array]]:
        # Draws depend on the seed, the step and the place in the global batch, on no device.
        draws = Draws(jax.random.fold_in(jax.random.key(config.seed), state.step), 0, parts, devices)
        if parts == 1:
            grads, (metrics, stats) = gradient(state.params, state.stats, batch, tokens, draws)
        else:
            grads, (metrics, stats) = accumulation.mean(gradient, state.params, state.stats, batch, tokens, draws)
        params, opt_state = optimizer.update(tx, grads, state.opt_state, state.params)
        metrics["gradient_norm"] = optax.tree.norm(grads)
        return State(state.step + 1, params, stats, opt_state), metrics

    return train_step


def _right(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return (logits.argmax(axis=-1).astype(jnp.int32) == labels).astype(jnp.float32)


def _loop(
    parts: system.System,
    state: State,
    train_step: TrainStep,
    steps: tuple[int, int],
    workdir: Path,
    checkpoints: Checkpoints,
    board: TensorBoard,
    profile: Profile,
    started: float,
) -> State:
    config, images = parts.config, parts.dataset.split("train")
    learning_rate = optimizer.learning_rate(config, len(images))
    batches = pipeline.train_batches(
        images,
        data.train_transform(config),
        batch_size=config.train.batch_size,
        seed=config.seed,
        workers=config.data.workers,
        start=steps[0],
        rows=sharding.rows(config.train.batch_size, parts.mesh.size, config.train.accumulate),
    )
    breakdown = Breakdown()
    fed = feed.feed(parts, breakdown.batches(batches), split="train", training=True)
    in_flight = InFlight(workdir, images, breakdown)
    logged = steps[0]
    with Interruption() as interruption, _bar(steps) as bar, profile:
        for step in range(steps[0] + 1, steps[1] + 1):
            if step % config.train.log_every == 0:
                in_flight.land_all()
                breakdown.measure()
            batch, found = next(fed)
            breakdown.mark("retrieve", found)
            state, metrics = train_step(state, batch, found and found["tokens"])
            breakdown.mark("train", metrics)
            in_flight.add(step, batch["id"], metrics)
            profile.step(metrics)
            parts.check()
            bar.update()
            if step == steps[0] + 1:
                _report_start(bar, board, step, metrics, started)
                work = usage.step_flops(parts, train_step, state, batch, found)
            if step == steps[0] + 1 or step % GIVE_BACK == 0:
                in_flight.land_all()  # or what is under way would be kept
                host_memory.give_back()
            last = step == steps[1] or interruption.reached(step)
            if last or step % config.train.log_every == 0:
                values = in_flight.take_means() | breakdown.record(step - logged)
                parts.check()
                values["images_per_second"] = config.train.batch_size / (1e-3 * values["step_ms"])
                values["learning_rate"] = learning_rate(step - 1)
                values |= _retrieval_scalars(parts, batch, found) | usage.peak_memory()
                values |= usage.arithmetic(work, 1e-3 * values["step_ms"], list(parts.mesh.devices.flat))
                board.scalars(step, {f"train/{name}": value for name, value in values.items()})
                bar.set_postfix_str(f"loss {values['loss']:.3f}, ms: {line(values)}", refresh=False)
                logged = step
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


def _report_start(bar: tqdm, board: TensorBoard, step: int, metrics: dict[str, jax.Array], started: float) -> None:
    jax.block_until_ready(metrics)
    seconds = time.perf_counter() - started
    board.scalars(step, {"start/seconds_to_first_step": seconds})
    bar.set_postfix_str(f"first step after {seconds:.1f} s", refresh=True)
