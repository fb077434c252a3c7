"""A global batch on fewer devices: worked through in parts, whose gradients are added up."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rac_jax.models.draws import Draws, part_of

Gradient = Callable[..., tuple[Any, Any]]  # (params, stats, batch, tokens, draws) -> gradient, (metrics, stats)


def mean(
    gradient: Gradient, params: Any, stats: Any, batch: dict[str, jax.Array], tokens: jax.Array | None, draws: Draws
) -> tuple[Any, Any]:
    """What `gradient` gives for the whole batch, from its equal parts one after another: the mean over them.

    A part has some rows of every device, so no example moves.
    """
    rows = {"batch": batch, "tokens": tokens}

    def of(part: jax.Array, stats: Any) -> tuple[Any, Any]:
        mine = jax.tree.map(lambda x: part_of(x, part, draws.parts, draws.devices), rows)
        return gradient(params, stats, mine["batch"], mine["tokens"], draws.replace(part=part))

    def add(carry: Any, part: jax.Array) -> tuple[Any, None]:
        sums, stats = carry
        grads, (metrics, stats) = of(part, stats)
        return (jax.tree.map(jnp.add, sums, (grads, metrics)), stats), None

    numbers = jnp.arange(draws.parts, dtype=jnp.int32)
    shapes, (metric_shapes, _) = jax.eval_shape(of, numbers[0], stats)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes, metric_shapes))
    (sums, stats), _ = jax.lax.scan(add, (zeros, stats), numbers)
    grads, metrics = jax.tree.map(lambda total: total / draws.parts, sums)
    return grads, (metrics, stats)
