"""First values of parameters.

Each number is a function of its parameter's key and of its place there, so that a device draws just the part that it
holds. Outside of a compiled program one small program draws every parameter by the block: to compile one for each
shape, as jax.random does, takes longer for a convolutional network than to load its weights.
"""

import functools
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
        if isinstance(key, jax.core.Tracer):
            return _whole(key, shape) * std
        count = math.prod(shape)
        flat = np.concatenate([_block(key, np.uint32(number)) for number in range(-(-count // _BLOCK))])[:count]
        return jnp.asarray(flat.reshape(shape) * np.float32(std))

    return draw


small = truncated_normal(0.02)
"""What transformers start from."""


@jax.jit
def _block(key: jax.Array, number: jax.Array) -> jax.Array:
    return _drawn(key, jnp.full(_BLOCK, number), jnp.arange(_BLOCK, dtype=jnp.uint32))


@functools.partial(jax.jit, static_argnums=1)  # inside another program too: parameters of one shape are traced once
def _whole(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _drawn(key, *divmod(_places(shape), np.uint32(_BLOCK)))


def _places(shape: tuple[int, ...]) -> jax.Array:
    """The place of each number in its parameter, row by row: uint32 of this shape."""
    strides = np.cumprod([1, *shape[:0:-1]], dtype=np.uint32)[::-1]
    along = (jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride for axis, stride in enumerate(strides))
    return sum(along, start=jnp.zeros(shape, jnp.uint32))


def _drawn(key: jax.Array, block: jax.Array, place: jax.Array) -> jax.Array:
    """Of a normal distribution cut at ±2, as jax.random draws it: the `place`-th number of the key's `block`-th key."""
    first, second = jax.random.key_data(key)
    zero = jnp.zeros_like(place)
    high, low = _threefry(*_threefry(first + zero, second + zero, zero, block), zero, place)
    mantissa = jax.lax.shift_right_logical(high ^ low, np.uint32(9)) | np.uint32(0x3F800000)
    share = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1.0  # in [0, 1)
    end = jax.lax.erf(np.float32(2.0) / np.sqrt(np.float32(2.0)))
    normal = np.float32(np.sqrt(2.0)) * jax.lax.erf_inv(jnp.maximum(-end, share * (end + end) - end))
    inside = np.nextafter(np.float32(2.0), np.float32(0.0))
    return jnp.clip(normal, -inside, inside)


def _threefry(key: jax.Array, other: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The hash that jax.random uses, of each pair (x, y) of uint32, with a pair of keys."""
    keys = key, other, key ^ other ^ np.uint32(0x1BD11BDA)
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = (y << np.uint32(bits) | jax.lax.shift_right_logical(y, np.uint32(32 - bits))) ^ x
        x, y = x + keys[(group + 1) % 3], y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def xavier(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Glorot: variance 2 / (in + out) for a matrix [in, out]."""
    return truncated_normal(math.sqrt(2.0 / (shape[-2] + shape[-1])) / _CUT_STD)(key, shape)


def fan_out(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """He: variance 2 / (pixels · out) for kernels [k, k, in, out] and [k, k, channels], where each output has one."""
    out = shape[-1] if len(shape) == 4 else 1
    return truncated_normal(math.sqrt(2.0 / (shape[0] * shape[1] * out)) / _CUT_STD)(key, shape)
