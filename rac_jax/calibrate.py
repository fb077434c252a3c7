"""The offset of classes without training: found by leaving classes out of training and adding them afterwards.

A class that only the memory has competes with trained classes, whose prototypes were corrected without it. One number,
added to the fused logits of all such classes, balances the two. It is found on the training images alone: each fifth
of the classes is left out once, the voices are trained on the others, and the left-out classes are added to the memory.
The offset with the best mean accuracy over all classes on held-out training images is kept with the checkpoint.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import losses, optimizer
from rac_jax.models.rac import FUSED, RAC
from rac_jax.models.voices import Knowledge, LeftOut, Neighbours
from rac_jax.retrieval.knowledge import of_sums
from rac_jax.run import Run
from rac_jax.runtime import processes
from rac_jax.weights import parameters

FOLDS = 5  # of the classes, each of which is left out once: a single draw gave −1.5 to −3.5 on CIFAR-100-LT
HELD_OUT = 0.2  # share of each class's images
OFFSETS = np.arange(-8.0, 2.01, 0.25)
MOST = 20_000  # images that are used


@dataclasses.dataclass(frozen=True)
class Rows:
    """Images as rows: keys [N, D] and their classes [N]."""

    keys: np.ndarray
    labels: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> "Rows":
        return Rows(self.keys[chosen], self.labels[chosen])


def offset(run: Run, keys: np.ndarray, labels: np.ndarray) -> float:
    """The offset for the voices of a run, from the keys [N, D] and classes [N] of its training images."""
    random = np.random.default_rng(run.config.seed)
    some = np.sort(random.permutation(len(labels))[:MOST])
    rows = Rows(np.asarray(keys[some], np.float32), labels[some])
    if run.classes.trained < 3 or np.bincount(rows.labels).max() < 2:
        return 0.0  # too few classes or images to leave some out
    folds = np.array_split(random.permutation(run.classes.trained), min(FOLDS, run.classes.trained - 1))
    return best(np.mean([_accuracies(run, rows, new, random) for new in folds], axis=0))


def _accuracies(run: Run, rows: Rows, new: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The mean accuracy over classes with each of OFFSETS if the classes `new` are left out of training."""
    order = np.argsort(np.isin(np.arange(run.classes.trained), new), kind="stable")  # left-out classes come last
    rows = Rows(rows.keys, np.argsort(order).astype(np.int32)[rows.labels])
    trained = run.classes.trained - len(new)
    held = _held_out(rows.labels, random)
    inside, asked = rows[~held], rows[held]
    model, params = _fit(run, inside[inside.labels < trained], trained)
    found, known = _retrieved(run, asked, inside, None), knowledge(inside, run.classes.trained)
    answer = jax.jit(lambda params, found: nnx.merge(model, params)(None, found, known)[FUSED])
    logits = np.concatenate([np.asarray(answer(params, part)) for part in _parts(found)])
    return accuracies(logits, asked.labels, trained)


def accuracies(logits: np.ndarray, labels: np.ndarray, trained: int) -> np.ndarray:
    """The mean accuracy over classes with each of OFFSETS added to the classes from number `trained` on."""
    present = np.unique(labels)
    is_new = np.arange(logits.shape[1]) >= trained

    def accuracy(value: float) -> float:
        right = (logits + value * is_new).argmax(axis=1) == labels
        return float(np.mean([right[labels == label].mean() for label in present]))

    return np.array([accuracy(value) for value in OFFSETS])


def best(scores: np.ndarray) -> float:
    """The offset with the best score; the middle of several that are equally good."""
    return float(np.mean(OFFSETS[scores >= scores.max() - 1e-9]))


def knowledge(rows: Rows, classes: int) -> Knowledge:
    """Counts, sums and centre of some rows."""
    counts, sums = np.zeros(classes), np.zeros((classes, rows.keys.shape[1]))
    np.add.at(counts, rows.labels, 1)
    np.add.at(sums, rows.labels, rows.keys)
    return jax.tree.map(jnp.asarray, of_sums(counts, sums, rows.labels))


def _held_out(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A share of the images of each class that has two or more, [N] bool."""
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        mine = random.permutation(np.flatnonzero(labels == label))
        held[mine[: min(max(1, round(HELD_OUT * len(mine))), len(mine) - 1)]] = True
    return held


def _fit(run: Run, rows: Rows, classes: int) -> tuple[Any, Any]:
    """The voices of a run, trained on rows of the first classes: structure and parameters."""
    config, width = run.config, rows.keys.shape[1]
    model = RAC(
        None, None, num_classes=classes, key_width=width, settings=run.model.settings, rngs=nnx.Rngs(config.seed)
    )
    graph, params, _ = parameters.split(model)
    tx = optimizer.from_config(config, len(rows.labels))
    loss, counts = config.loss, np.bincount(rows.labels, minlength=classes)
    terms = losses.terms(loss.name, counts, tau=loss.tau, reweight=loss.reweight)
    known = knowledge(rows, classes)

    def loss_of(params: Any, labels: jax.Array, found: dict[str, jax.Array]) -> jax.Array:
        left_out = LeftOut(labels, found["inside"])
        logits = nnx.merge(graph, params)(None, Neighbours.of(found), known, train=True, left_out=left_out)
        each = [losses.general(logits[voice], labels, terms, loss.smoothing).mean() for voice in model.trained]
        return jnp.sum(jnp.stack(each))

    @jax.jit
    def step(params: Any, opt_state: Any, labels: jax.Array, found: dict[str, jax.Array]) -> tuple[Any, Any]:
        return optimizer.update(tx, jax.grad(loss_of)(params, labels, found), opt_state, params)

    found, opt_state = _retrieved(run, rows, rows, np.arange(len(rows.labels))), tx.init(params)
    for ids in _batches(config, len(rows.labels)):
        some: Any = {name: values[ids] for name, values in found.items()}
        params, opt_state = step(params, opt_state, rows.labels[ids], some)
    return graph, params


def _batches(config: ConfigDict, images: int) -> Any:
    """Ids of shuffled batches over all epochs; the last ones of an epoch are filled with others."""
    random, size = np.random.default_rng(config.seed), config.train.batch_size
    steps = optimizer.total_steps(config, images)
    stream = np.concatenate([random.permutation(images) for _ in range(-(-steps * size // images) + 1)])
    shown = tqdm(range(steps), desc="offset of new classes", unit="step", disable=not processes.first(), leave=False)
    return (stream[step * size : (step + 1) * size].astype(np.int32) for step in shown)


def _retrieved(run: Run, asked: Rows, inside: Rows, own: np.ndarray | None) -> dict[str, np.ndarray]:
    """The nearest rows of keys by exact search; `own` [N] are rows to leave out."""
    k, rows, similarities = run.config.memory.k, [], []
    for start in range(0, len(asked.labels), 1024):
        near = asked.keys[start : start + 1024] @ inside.keys.T
        if own is not None:
            near[np.arange(len(near)), own[start : start + 1024]] = -np.inf
        found = np.argsort(-near, axis=1)[:, :k].astype(np.int32)
        rows.append(found)
        similarities.append(np.take_along_axis(near, found, axis=1))
    arrays = {"rows": np.concatenate(rows), "similarities": np.concatenate(similarities), "key": asked.keys}
    number = len(asked.labels)
    return arrays | {
        "tokens": np.zeros((number, 0), np.int32),
        "inside": np.full(number, own is not None, np.float32),
    }


def _parts(found: dict[str, np.ndarray]) -> Any:
    number = len(found["rows"])
    for start in range(0, number, 1024):
        some: Any = {name: values[start : start + 1024] for name, values in found.items()}
        yield Neighbours.of(some)
