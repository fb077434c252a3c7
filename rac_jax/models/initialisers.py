"""First values of parameters.

jax.random compiles one program for each shape, which for a convolutional network takes longer than loading its weights.
Here one program draws numbers by the block, and a parameter is cut from as many blocks as it needs.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

Initialiser = Callable[[jax.Array, tuple[int, ...]], jax.Array]

_BLOCK = 2**16
_CUT_STD = 0.87962566103423978  # of a normal distribution cut at ±2


def truncated_normal(std: float) -> Initialiser:
    """Normal, cut at two standard deviations."""

    def draw(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        count = math.prod(shape)
        numbers = jnp.arange(-(-count // _BLOCK), dtype=jnp.uint32)
        if isinstance(key, jax.core.Tracer):
            flat = jax.vmap(_block, in_axes=(None, 0))(key, numbers).reshape(-1)[:count]
            return flat.reshape(shape) * std
        flat = np.concatenate([_block(key, number) for number in numbers])[:count]
        return jnp.asarray(flat.reshape(shape) * np.float32(std))

    return draw


small = truncated_normal(0.02)
"""What transformers start from."""


@jax.jit
def _block(key: jax.Array, number: jax.Array) -> jax.Array:
    return jax.random.truncated_normal(jax.random.fold_in(key, number), -2.0, 2.0, (_BLOCK,), jnp.float32)


def xavier(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Glorot: variance 2 / (in + out) for a matrix [in, out]."""
    return truncated_normal(math.sqrt(2.0 / (shape[-2] + shape[-1])) / _CUT_STD)(key, shape)


def fan_out(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """He: variance 2 / (pixels · out) for kernels [k, k, in, out] and [k, k, channels], where each output has one."""
    out = shape[-1] if len(shape) == 4 else 1
    return truncated_normal(math.sqrt(2.0 / (shape[0] * shape[1] * out)) / _CUT_STD)(key, shape)
