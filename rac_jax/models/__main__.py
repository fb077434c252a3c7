"""python -m rac_jax.models: every model with its size, its cost and the weights that fit it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax import models
from rac_jax.weights import catalogue

HEADER = ("model", "parameters", "features", "input", "GFLOPs", "weights")


def main() -> None:
    """Prints the table."""
    rows = [HEADER, *(row(name) for name in models.NAMES)]
    widths = [max(len(line[i]) for line in rows) for i in range(len(HEADER))]
    for line in rows:
        cells = [
            cell.ljust(width) if i in (0, 5) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def row(name: str) -> tuple[str, ...]:
    """One line of the table, from shapes only: no parameters are allocated."""
    model = nnx.eval_shape(lambda: models.create(name))
    example, shown = _input(model)
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    fitting = [key for key, entry in catalogue.ENTRIES.items() if name in entry.models]
    return (
        name,
        f"{parameters:,}",
        str(model.feature_width),
        shown,
        f"{_flops(model, example) / 1e9:.2f}",
        " ".join(fitting) or "-",
    )


def _input(model: Any) -> tuple[jax.ShapeDtypeStruct, str]:
    if hasattr(model, "preprocessing"):
        size = model.preprocessing.image_size
        return jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32), f"{size} px"
    length = getattr(model, "context_length", 77)
    return jax.ShapeDtypeStruct((1, length), jnp.int32), f"{length} tokens"


def _flops(model: Any, example: jax.ShapeDtypeStruct) -> float:
    """Of the forward pass of one example, by XLA's cost analysis; a multiplication and an addition are two."""
    graph, state = nnx.split(model)
    lowered = jax.jit(lambda state, x: nnx.merge(graph, state)(x)).lower(state, example)
    cost = lowered.cost_analysis() or {}
    return float(cost.get("flops", math.nan))


if __name__ == "__main__":
    main()
