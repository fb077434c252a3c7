"""Counts of correct predictions per class, and accuracies of the many, medium and few shot classes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

MANY_ABOVE, FEW_BELOW = 100, 20  # training images of a class


@dataclasses.dataclass(frozen=True)
class Counts:
    """Per class: images seen, top-1 hits, top-5 hits. Arrays [C], summed over batches."""

    seen: np.ndarray
    correct: np.ndarray
    correct5: np.ndarray

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.seen + other.seen, self.correct + other.correct, self.correct5 + other.correct5)


def batch_counts(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
    """[3, C] int32: seen, correct and correct5 of a batch with logits [B, C]; masked rows are ignored."""
    classes = logits.shape[-1]
    true = jnp.take_along_axis(logits, labels[:, None], axis=1)
    # Ties go to the lower class, as in argmax. A row with a logit that is not finite is never correct.
    position = jnp.arange(classes, dtype=jnp.int32)[None]
    ahead = (logits > true) | ((logits == true) & (position < labels[:, None]))
    rank = ahead.sum(axis=1)
    finite = jnp.isfinite(logits).all(axis=1)
    hits = jnp.stack([mask, mask & finite & (rank < 1), mask & finite & (rank < 5)])
    return _by_class(hits, labels, classes)


def nearest_counts(classes_found: jax.Array, labels: jax.Array, mask: jax.Array, classes: int) -> jax.Array:
    """The same for the nearest neighbours' classes [B, k]: the first is correct, any of the first 5 is correct."""
    right = classes_found == labels[:, None]
    hits = jnp.stack([mask, mask & right[:, 0], mask & right[:, :5].any(axis=1)])
    return _by_class(hits, labels, classes)


def _by_class(hits: jax.Array, labels: jax.Array, classes: int) -> jax.Array:
    """Sums of hits [3, B] over the examples of each class: [3, C] int32."""
    one_hot = (labels[:, None] == jnp.arange(classes, dtype=jnp.int32)[None]).astype(jnp.int32)
    return hits.astype(jnp.int32) @ one_hot


def groups(class_counts: np.ndarray, trained: int | None = None) -> dict[str, np.ndarray]:
    """Which classes are all, many, medium, few and new, by their training counts: bool [C] each."""
    counts = np.asarray(class_counts)
    new = np.arange(len(counts)) >= (len(counts) if trained is None else trained)
    many, few = (counts > MANY_ABOVE) & ~new, (counts < FEW_BELOW) & ~new
    return {"all": counts >= 0, "many": many, "medium": ~many & ~few & ~new, "few": few, "new": new}


def summary(counts: Counts, class_counts: np.ndarray, trained: int | None = None) -> dict[str, float]:
    """Accuracy over the images of each group, and top-5 over all; an empty group is absent.

    Classes after the first `trained` ones (default: all are trained) form a group `new` of their own.
    """
    result = {}
    for name, member in groups(class_counts, trained).items():
        if counts.seen[member].sum():
            result[name] = float(counts.correct[member].sum() / counts.seen[member].sum())
    result["top5"] = float(counts.correct5.sum() / counts.seen.sum())
    return result
