"""The voices that are read from the memory: a vote of the neighbours, and prototypes.

Both follow the memory: rows that are added or removed change the answer without training.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import nnx

READ_FROM_MEMORY = ("vote", "prototype")
LOWEST = 1e-24  # of a squared length
NEVER = -1e9  # the logit of padding: finite, so that it can be multiplied by a weight of 0
LEAST_WEIGHT = 1e-4  # of a class's rows together; below, its only row was left out
# The shared map learns at 0.63² = 0.4 of the rate of the corrections. At the same rate it overfits: 52.1 % instead of
# 55.9 % on held-out training images of CIFAR-100-LT (EfficientNet-Lite0, 128 pixels, 2 draws).
MAP_FACTOR = 0.63


class Knowledge(flax.struct.PyTreeNode):
    """What the rows of a memory say about the classes of a model, on every device.

    The first classes are those that the model was trained on; classes that exist in the memory only come after them.
    There may be padding: classes with the count −1, which are never the answer, and rows with the label −1.
    """

    counts: Any  # [L] float32: rows of each class; −1 for padding
    sums: Any  # [L, D] float32: sum of their keys
    centre: Any  # [D] float32: the mean of the class means
    row_label: Any  # [N] int32: class of each row, −1 for none
    offset: Any  # float32: added to the fused logits of classes without training
    row_weight: Any = None  # [N] float32: how much a row's vote counts; None for all alike
    class_weight: Any = None  # [L] float32: the sum of those of each class


class Neighbours(flax.struct.PyTreeNode):
    """The neighbours of a batch, as the model sees them. What no voice needs is None."""

    key: Any = None  # [B, D] float32: E's key of the image, of unit length for cosine
    tokens: Any = None  # [B, T] int32: texts of the neighbours
    rows: Any = None  # [B, k] int32, −1 for none
    similarities: Any = None  # [B, k] float32
    activation: Any = None  # [B, V, …]: the output of B's frozen first blocks for V crops, if it is known

    @classmethod
    def of(cls, found: dict[str, jax.Array] | None) -> "Neighbours | None":
        """What was retrieved for a batch; None without a memory."""
        names = ("key", "tokens", "rows", "similarities", "activation")
        return cls(**{name: found.get(name) for name in names}) if found else None


class LeftOut(flax.struct.PyTreeNode):
    """In training, the image's own rows are left out of counts and sums."""

    label: Any  # [B] int32: class of the image's row, −1 if there is none
    inside: Any  # [B] float32: 1 if a row of the image is in the memory, else 0
    weight: Any  # [B] float32: how much its vote would count
    key: Any = None  # [B, D] float32: the key of that row, if it differs from the query's; else None


def vote(
    found: Neighbours,
    knowledge: Knowledge,
    left_out: LeftOut | None,
    *,
    temperature: float,
    tau: float,
    epsilon: float,
) -> jax.Array:
    """Logits [B, L]: similarity-weighted votes of the neighbours, divided by the number of rows of each class."""
    classes = knowledge.counts.shape[0]
    labels = jnp.where(found.rows < 0, -1, knowledge.row_label[found.rows])
    similarities = jnp.where(labels < 0, NEVER, found.similarities)
    # Shares are relative, so the nearest that votes may count 1: with metric l2 all weights could be too small.
    weights = jnp.exp((similarities - similarities.max(axis=1, keepdims=True)) / temperature)
    counts = knowledge.counts
    if knowledge.row_weight is not None:
        weights, counts = weights * knowledge.row_weight[found.rows], knowledge.class_weight
    votes = jnp.einsum("bk,bkl->bl", weights, jax.nn.one_hot(labels, classes, dtype=jnp.float32))
    counts = jnp.broadcast_to(counts[None], votes.shape)
    if left_out is not None:
        counts = counts - left_out.weight[:, None] * jax.nn.one_hot(left_out.label, classes, dtype=jnp.float32)
    votes = votes / jnp.where(counts > LEAST_WEIGHT, counts, 1.0) ** tau
    total = jnp.sum(votes, axis=1, keepdims=True)
    shares = votes / jnp.maximum(total, LOWEST)
    return without_padding(jnp.log(shares + epsilon), knowledge)


class Prototype(nnx.Module):
    """Scaled cosines between an image's key and the mean key of each class, plus a learned correction.

    The head is read from the memory: rows added to a class move its mean, and a class without a correction works at
    once. Keys and means are centred on the mean of the class means and, with a `rank`, pass through a linear map
    I + A B that all classes share, so that what it learns holds for new rows and new classes too.
    """

    def __init__(self, width: int, num_classes: int, *, scale: float, rank: int, rngs: nnx.Rngs):
        self.correction = nnx.Param(jnp.zeros((num_classes, width), jnp.float32))
        if rank:
            first = jax.random.normal(rngs.params(), (width, rank), jnp.float32) * width**-0.5
            self.down, self.up = nnx.Param(first), nnx.Param(jnp.zeros((rank, width), jnp.float32))
        self.rank = rank
        self.scale = scale

    def seen(self, vectors: jax.Array, knowledge: Knowledge) -> jax.Array:
        """Keys or means [M, D], centred, mapped and scaled to length 1."""
        centred = vectors - knowledge.centre[None]
        if self.rank:
            centred = centred + MAP_FACTOR * (centred @ self.down[...]) @ self.up[...]
        return unit(centred)

    def __call__(self, found: Neighbours, knowledge: Knowledge, left_out: LeftOut | None) -> jax.Array:
        """Logits [B, L]; a class without rows gets the lowest possible value."""
        query = self.seen(found.key, knowledge)
        means = knowledge.sums / jnp.maximum(knowledge.counts, 1.0)[:, None]
        trained, classes = self.correction[...], knowledge.counts.shape[0]
        correction = jnp.pad(trained, ((0, classes - trained.shape[0]), (0, 0)))
        heads = unit(self.seen(means, knowledge) + correction)
        cosines = query @ heads.T
        if left_out is not None:
            cosines = self._without_itself(cosines, query, found.key, knowledge, left_out)
        return without_padding(self.scale * jnp.where(knowledge.counts[None] > 0, cosines, -1.0), knowledge)

    def _without_itself(
        self, cosines: jax.Array, query: jax.Array, key: jax.Array, knowledge: Knowledge, left_out: LeftOut
    ) -> jax.Array:
        """The true class's cosine, with a mean that does not contain the image itself.

        Without this the means of rare classes fit their own training images, and the correction is never learned.
        """
        label, inside = left_out.label, left_out.inside
        key = key if left_out.key is None else left_out.key
        others = knowledge.counts[label] - inside
        mean = (knowledge.sums[label] - inside[:, None] * key) / jnp.maximum(others, 1.0)[:, None]
        mean = jnp.where(others[:, None] > 0, mean, knowledge.sums[label])  # the only row of its class
        head = unit(self.seen(mean, knowledge) + self.correction[...][label])
        own = jnp.sum(query * head, axis=1)
        is_true = label[:, None] == jnp.arange(cosines.shape[1], dtype=jnp.int32)[None]
        return jnp.where(is_true, own[:, None], cosines)


def without_padding(logits: jax.Array, knowledge: Knowledge) -> jax.Array:
    """Logits [B, L] whose padding has no probability."""
    return jnp.where(knowledge.counts[None] < 0, NEVER, logits)


def extended(known: jax.Array, memory: jax.Array | None) -> jax.Array:
    """Log-probabilities of a voice that knows the first classes only, [B, M], extended to all classes [B, L].

    Whether the image is of a class that the voice does not know, and of which, is left to the voices that are read from
    the memory, whose fused logits are `memory` [B, L].
    """
    if memory is None or memory.shape[1] == known.shape[1]:
        return known
    share = jax.nn.log_softmax(memory)
    inside, outside = share[:, : known.shape[1]], share[:, known.shape[1] :]
    return jnp.concatenate([known + jax.nn.logsumexp(inside, axis=1, keepdims=True), outside], axis=1)


def unit(vectors: jax.Array, axis: int = -1) -> jax.Array:
    """Vectors of length 1; zeros stay zeros."""
    squares = jnp.sum(vectors * vectors, axis=axis, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, LOWEST))
