"""The voices of a run, trained on E's keys alone and on a part of its images, in seconds: for calibration."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tqdm import tqdm

from rac_jax import config as configs
from rac_jax import losses, optimizer
from rac_jax.losses import Terms
from rac_jax.models.rac import RAC, VoiceSettings
from rac_jax.models.voices import Knowledge, LeftOut, Neighbours
from rac_jax.retrieval import feed
from rac_jax.retrieval.knowledge import of_sums
from rac_jax.run import Run
from rac_jax.runtime import processes
from rac_jax.weights import parameters

PART = 1024  # images that are answered at once; rows of a memory are padded to a multiple
FOLDS = 5  # parts of the images, each of which is held out once
MOST = 20_000  # images that are used


def possible(run: Run) -> bool:
    """Whether training images can stand for new ones: their keys must not be of an E that was trained on them."""
    config = run.config
    alone = configs.roles(config) == ("encoder",) and config.memory.metric == "cosine" and not config.tune.share
    return alone and run.retriever is not None


@dataclasses.dataclass(frozen=True)
class Rows:
    """Images as rows: keys [N, D] and their classes [N]."""

    keys: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: np.ndarray) -> "Rows":
        return Rows(self.keys[chosen], self.labels[chosen])

    def sample(self, random: np.random.Generator) -> "Rows":
        """At most MOST of them."""
        return self[np.sort(random.permutation(len(self))[:MOST])]


def training_rows(run: Run) -> Rows:
    """The keys and classes of a run's training images."""
    assert run.retriever is not None
    keys = feed.keys_of(run.config, run.retriever, run.mesh, run.dataset, "train")
    return Rows(keys, run.dataset.split("train").labels)


def knowledge(rows: Rows, classes: int) -> Knowledge:
    """Counts, sums and centre of some rows."""
    counts, sums = np.zeros(classes), np.zeros((classes, rows.keys.shape[1]))
    np.add.at(counts, rows.labels, 1)
    np.add.at(sums, rows.labels, rows.keys)
    padded = np.pad(rows.labels, (0, -len(rows) % PART), constant_values=-1)  # a few shapes, so that little is compiled
    return jax.tree.map(jnp.asarray, of_sums(counts, sums, padded))


class Voices:
    """Some voices of a run that need E's keys only, to be trained on several parts of about `images` images each.

    The programs are compiled once for all parts.
    """

    def __init__(self, run: Run, settings: VoiceSettings, *, classes: int, width: int, images: int):
        config = run.config
        model = RAC(None, None, num_classes=classes, key_width=width, settings=settings, rngs=nnx.Rngs(config.seed))
        graph, self._first, _ = parameters.split(model)
        tx = optimizer.from_config(config, images, some=True)
        total = optimizer.total_steps(config, images) if jax.tree.leaves(self._first) else 0
        self._steps = min(config.train.steps or total, total)
        self._config, self._tx, self._classes = config, tx, classes

        def loss_of(params: Any, terms: Any, known: Knowledge, labels: Any, found: dict[str, Any]) -> jax.Array:
            left_out = LeftOut(labels, found["inside"], found["inside"])
            logits = nnx.merge(graph, params)(None, Neighbours.of(found), known, train=True, left_out=left_out)
            smoothing = config.loss.smoothing
            each = [losses.general(logits[name], labels, Terms(*terms), smoothing).mean() for name in model.trained]
            return jnp.sum(jnp.stack(each))

        @jax.jit
        def step(params: Any, state: Any, terms: Any, known: Knowledge, labels: Any, found: Any) -> tuple[Any, Any]:
            return optimizer.update(tx, jax.grad(loss_of)(params, terms, known, labels, found), state, params)

        @jax.jit
        def answer(params: Any, found: Neighbours, known: Knowledge) -> jax.Array:
            voices = nnx.merge(graph, params)
            return voices(None, found, known)[voices.output]

        self._step, self._answer = step, answer

    def fit(self, rows: Rows, title: str) -> Any:
        """Parameters, trained on rows of the first classes; each row is left out of the memory for itself."""
        counts = np.bincount(rows.labels, minlength=self._classes)
        terms = dataclasses.astuple(losses.from_config(self._config, counts))
        known, found = knowledge(rows, self._classes), self._retrieved(rows, rows, np.arange(len(rows)))
        params, state = self._first, self._tx.init(self._first)
        for ids in self._batches(len(rows), title):
            some = {name: values[ids] for name, values in found.items()}
            params, state = self._step(params, state, terms, known, rows.labels[ids], some)
        return params

    def _batches(self, images: int, title: str) -> Any:
        """Ids of shuffled batches over all epochs; the last ones of an epoch are filled with others."""
        random, size = np.random.default_rng(self._config.seed), self._config.train.batch_size
        epochs = -(-self._steps * size // images) + 1
        stream = np.concatenate([random.permutation(images) for _ in range(epochs)])
        shown = tqdm(range(self._steps), desc=title, unit="step", disable=not processes.first(), leave=False)
        return (stream[step * size : (step + 1) * size].astype(np.int32) for step in shown)

    def logits(self, params: Any, asked: Rows, inside: Rows, classes: int) -> np.ndarray:
        """The answers [N, classes] for rows, from a memory of other rows."""
        padded = asked[np.arange(len(asked) + -len(asked) % PART) % len(asked)]
        found, known = self._retrieved(padded, inside, None), knowledge(inside, classes)
        parts = ({name: found[name][start : start + PART] for name in found} for start in range(0, len(padded), PART))
        return np.concatenate([np.asarray(self._answer(params, Neighbours.of(part), known)) for part in parts])[
            : len(asked)
        ]

    def _retrieved(self, asked: Rows, inside: Rows, own: np.ndarray | None) -> dict[str, Any]:
        """The nearest rows of keys by exact search, in no order; `own` [N] are rows to leave out."""
        k, rows, similarities = min(self._config.memory.k, len(inside)), [], []
        for start in range(0, len(asked), PART):
            near = asked.keys[start : start + PART] @ inside.keys.T
            if own is not None:
                near[np.arange(len(near)), own[start : start + PART]] = -np.inf
            found = np.argpartition(-near, k - 1, axis=1)[:, :k].astype(np.int32)
            rows.append(found)
            similarities.append(np.take_along_axis(near, found, axis=1))
        arrays = {"rows": np.concatenate(rows), "similarities": np.concatenate(similarities), "key": asked.keys}
        return arrays | {
            "tokens": np.zeros((len(asked), 0), np.int32),
            "inside": np.full(len(asked), own is not None, np.float32),
        }


def held_out(run: Run, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """What a run's voices answer for training images that they were not trained on and that the memory does not have.

    Each fifth of every class is held out once; the only row of a class is never.

    Returns:
      The probability of the true label of each held-out row, and the labels: [M] each.
    """
    random = np.random.default_rng(run.config.seed)
    rows = rows.sample(random)
    fold, classes, found = _folds(rows.labels, random), run.classes.trained, []
    learning = len(rows) - len(rows) // FOLDS
    voices = Voices(run, run.model.settings, classes=classes, width=rows.keys.shape[1], images=learning)
    for number in range(FOLDS):
        held, inside = rows[fold == number], rows[fold != number]
        if len(held):
            logits = voices.logits(voices.fit(inside, f"hold out {number + 1}/{FOLDS}"), held, inside, classes)
            of_all = np.exp(logits - logits.max(axis=1, keepdims=True)).astype(np.float64)
            found.append((of_all[np.arange(len(held)), held.labels] / of_all.sum(axis=1), held.labels))
    of_true, labels = zip(*found, strict=True) if found else ((np.zeros(0),), (np.zeros(0, np.int32),))
    return np.concatenate(of_true), np.concatenate(labels)


def _folds(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The part that each row is in, [N], with equal shares of each class; −1 for the only row of a class."""
    fold = np.full(len(labels), -1)
    for label in np.unique(labels):
        mine = random.permutation(np.flatnonzero(labels == label))
        if len(mine) > 1:
            fold[mine] = (random.integers(FOLDS) + np.arange(len(mine))) % FOLDS
    return fold
