"""Initial values of parameters. jax.random is partitionable: in a jitted program a device draws only its own shard."""

import jax
from jax.nn.initializers import Initializer, truncated_normal, variance_scaling, zeros

__all__ = ["Initializer", "fan_out", "small", "truncated_normal", "xavier", "zeros"]

small = truncated_normal(0.02)
"""For transformers: normal, cut at two standard deviations."""

xavier = variance_scaling(1.0, "fan_avg", "uniform")
"""Glorot: uniform with variance 2 / (in + out) for a matrix [in, out]. The heads start from it."""

_full = variance_scaling(2.0, "fan_out", "truncated_normal")
_depthwise = variance_scaling(2.0, "fan_out", "truncated_normal", in_axis=(), out_axis=(0, 1), batch_axis=2)


def fan_out(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """He: variance 2 / (k · k · out) for kernels [k, k, in, out], 2 / (k · k) for depthwise ones [k, k, channels]."""
    return (_full if len(shape) == 4 else _depthwise)(key, shape)
