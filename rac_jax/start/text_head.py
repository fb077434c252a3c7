"""The start of the text head with model.text_start="memory": a linear discriminant.

T, as it starts (from a file or at random), reads the neighbours of some training images of each class, and the head is
the linear discriminant of its features. A random transformer keeps enough of the words for that.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rac_jax import sharding
from rac_jax.data.dataset import Dataset
from rac_jax.retrieval import feed
from rac_jax.retrieval.retriever import Retriever

EACH = 50  # training images of each class that are read, at most
BATCH = 256  # images that are read at once
SHRUNK = 0.1  # share of the identity in the covariance
LOWEST = 1e-12  # of a variance
FACTORS = tuple(2.0**power for power in range(2, -9, -1))  # of the logits


def head(
    config: ConfigDict,
    retriever: Retriever,
    mesh: Mesh,
    dataset: Dataset,
    read: Callable[[np.ndarray], jax.Array],
) -> dict[str, np.ndarray]:
    """The first values of the text head: `kernel` [D, L] and `bias` [L].

    Args:
      config: of the run.
      retriever: of the training images' neighbours; an image is never its own.
      mesh: of the run.
      dataset: with the training images.
      read: T as it starts: tokens [M, T] -> features [M, D].
    """
    labels = dataset.split("train").labels
    ids = some_of_each(labels)
    keys = feed.keys_of(config, retriever, mesh, dataset, "train")[ids]
    features = np.concatenate([
        np.asarray(read(tokens))[:count] for tokens, count in _batches(retriever, keys, ids, mesh.size)
    ])  # fmt: skip
    classes = dataset.num_classes
    kernel, bias = discriminant(features, labels[ids], classes)
    factor = best_factor(features, labels[ids], classes)
    return {"kernel": factor * kernel, "bias": factor * bias}


def some_of_each(labels: np.ndarray) -> np.ndarray:
    """The numbers of at most EACH images of each class, evenly spaced, ascending: [M] int32."""
    chosen = []
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        chosen.append(mine[np.unique(np.linspace(0, len(mine) - 1, min(EACH, len(mine))).astype(int))])
    return np.sort(np.concatenate(chosen)).astype(np.int32)


def _batches(retriever: Retriever, keys: np.ndarray, ids: np.ndarray, devices: int) -> Iterator[tuple[np.ndarray, int]]:
    """Tokens of the images' neighbours in batches of one size, and how many rows of each are real, not padding."""
    size = sharding.padded_size(BATCH, devices)
    own = retriever.own_rows(ids, training=True)
    for start in range(0, len(ids), size):
        mine = slice(start, start + size)
        tokens = retriever.lookup.search(keys[mine], own[mine]).tokens
        yield tokens[np.arange(size) % len(tokens)], len(tokens)


def discriminant(features: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Fisher's linear discriminant for classes of equal weight, with a covariance that is shrunk to the identity.

    Args:
      features: [M, D].
      labels: [M].
      classes: how many there are, L. One without features gets the lowest bias.

    Returns:
      The kernel [D, L] and the bias [L] float32, whose mean over the classes that have features is 0.
    """
    counts = np.bincount(labels, minlength=classes)
    present = counts > 0
    means = np.zeros((classes, features.shape[1]))
    np.add.at(means, labels, features)
    means[present] /= counts[present, None]
    within = features - means[labels]
    covariance = within.T @ within / len(features)
    spread = max(np.trace(covariance) / len(covariance), LOWEST)
    covariance = (1 - SHRUNK) * covariance + SHRUNK * spread * np.eye(len(covariance))
    centre = means[present].mean(axis=0)
    apart = np.where(present[:, None], means - centre, 0.0)
    kernel = np.linalg.solve(covariance, apart.T)
    bias = -0.5 * np.sum(apart * kernel.T, axis=1) - centre @ kernel
    bias = np.where(present, bias, bias[present].min())
    return kernel.astype(np.float32), (bias - bias[present].mean()).astype(np.float32)


def best_factor(features: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """The factor of a discriminant's logits with the best likelihood for features that it was not made of.

    Each half of the features is held out once; without it, a head of few images would be far too certain.
    """
    half = np.empty(len(labels), bool)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        half[mine] = np.arange(len(mine)) % 2 == 0
    total = np.zeros(len(FACTORS))
    for part in (half, ~half):
        if part.any() and not part.all():
            kernel, bias = discriminant(features[part], labels[part], classes)
            rest, found = features[~part], labels[~part]
            for start in range(0, len(rest), BATCH):  # many logits do not fit into memory at once
                some = slice(start, start + BATCH)
                logits = rest[some] @ kernel + bias
                total += [_likelihood(factor * logits, found[some]) for factor in FACTORS]
    return FACTORS[int(total.argmax())]


def _likelihood(logits: np.ndarray, labels: np.ndarray) -> float:
    """The sum of log-probabilities of the labels."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return float(np.sum(shifted[np.arange(len(labels)), labels] - np.log(np.exp(shifted).sum(axis=1))))
