"""Convolutions and batch norm, channels last.

On CPUs, XLA's grouped convolutions are many times slower than the same sums written as products of shifted images, and
its sums over all pixels are slow too. `depthwise` therefore has its own forward and backward pass.
"""

import functools
import itertools
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models import initialisers, layers

BatchNormMode = Literal["frozen", "update"]
BATCH_NORMS = ("frozen", "update")
Padding = Literal["same", "symmetric"]
Model = TypeVar("Model")
_MOMENTUM = 0.9  # of the running statistics; PyTorch calls it 0.1


class BatchNorm(nnx.Module):
    """Per-channel scale and shift over running statistics, or over the batch's own while training with "update"."""

    def __init__(self, width: int, *, epsilon: float, mode: BatchNormMode):
        if mode not in BATCH_NORMS:
            raise ValueError(f"batch_norm={mode!r} is neither 'frozen' nor 'update'")
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((width,), jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros((width,), jnp.float32))
        self.variance = nnx.BatchStat(jnp.ones((width,), jnp.float32))
        self.epsilon = epsilon
        self.mode = mode

    def folded(self) -> tuple[jax.Array, jax.Array]:
        """Factor and shift [C], float32, so that norm(x) = x * factor + shift with the running statistics."""
        factor = self.scale[...] * jax.lax.rsqrt(self.variance[...] + self.epsilon)
        return factor, self.bias[...] - self.mean[...] * factor

    def over_batch(self, x: jax.Array) -> jax.Array:
        """Normalises x [B, H, W, C] by its own statistics, and moves the running ones towards them."""
        pixels = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        mean = jnp.mean(pixels, axis=0)
        variance = jnp.mean(jnp.square(pixels - mean[None, :]), axis=0)
        count = pixels.shape[0]
        unbiased = jax.lax.stop_gradient(variance) * (count / max(count - 1, 1))
        self.mean[...] = _MOMENTUM * self.mean[...] + (1 - _MOMENTUM) * jax.lax.stop_gradient(mean)
        self.variance[...] = _MOMENTUM * self.variance[...] + (1 - _MOMENTUM) * unbiased
        factor = self.scale[...] * jax.lax.rsqrt(variance + self.epsilon)
        shift = self.bias[...] - mean * factor
        return (pixels * factor[None, :] + shift[None, :]).astype(x.dtype).reshape(x.shape)


class ConvNorm(nnx.Module):
    """A convolution and its batch norm, which outside of "update" training is folded into the kernel.

    The kernel is [k, k, in, out], or [k, k, channels] for a depthwise one.
    """

    def __init__(
        self,
        width_in: int,
        width_out: int,
        size: int,
        *,
        stride: int = 1,
        depthwise: bool = False,
        padding: Padding,
        epsilon: float,
        batch_norm: BatchNormMode,
        dtype: Any,
        rngs: nnx.Rngs,
    ):
        shape = (size, size, width_out) if depthwise else (size, size, width_in, width_out)
        self.kernel = nnx.Param(initialisers.fan_out(rngs.params(), shape))
        self.norm = BatchNorm(width_out, epsilon=epsilon, mode=batch_norm)
        self.stride = stride
        self.padding = padding
        self.dtype = dtype

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """[B, H, W, in] to [B, H', W', out]."""
        if train and self.norm.mode == "update":
            return self.norm.over_batch(self._convolve(x, self.kernel[...]))
        kernel, shift = self._folded()
        return self._convolve(x, kernel) + shift.astype(self.dtype)[None, None, None, :]

    def fold(self) -> None:
        """Merge the norm into the kernel permanently, for a model that is not trained."""
        kernel, shift = self._folded()
        self.kernel, self.shift = nnx.Param(kernel), nnx.Param(shift)
        del self.norm

    def _folded(self) -> tuple[jax.Array, jax.Array]:
        """Kernel and shift [out] that are equivalent to the convolution followed by its norm."""
        if not hasattr(self, "norm"):
            return self.kernel[...], self.shift[...]
        factor, shift = self.norm.folded()
        return self.kernel[...] * factor.reshape((1,) * (self.kernel.ndim - 1) + (-1,)), shift

    def _convolve(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        size, stride = kernel.shape[0], self.stride
        pads = tuple(_pads(self.padding, n, size, stride) for n in x.shape[1:3])
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        if kernel.ndim == 3:
            return depthwise(x, kernel, stride, pads)
        return convolve(x, kernel, stride, pads)


def with_norms(model: Any) -> list[ConvNorm]:
    """The convolutions of a model that have a batch norm."""
    return [module for _, module in nnx.iter_graph(model) if isinstance(module, ConvNorm)]


def fold_norms(model: Model) -> Model:
    """Folds every batch norm of a model that is not trained into its kernel, once instead of in every call."""
    for convolution in with_norms(model):
        convolution.fold()
    return model


def _pads(padding: Padding, length: int, size: int, stride: int) -> tuple[int, int]:
    """Zeros before and after an axis; "same" is TensorFlow's, which puts the odd one after."""
    if padding == "symmetric":
        return size // 2, size // 2
    total = max((-(-length // stride) - 1) * stride + size - length, 0)
    return total // 2, total - total // 2


def convolve(x: jax.Array, kernel: jax.Array, stride: int, pads: Any) -> jax.Array:
    """[B, H, W, I] with [k, k, I, O] to [B, H', W', O]; a small kernel is a matrix product."""
    size, _, width_in, width_out = kernel.shape
    if size == 1:
        return layers.dense(x[:, ::stride, ::stride, :], kernel[0, 0])
    if size * size * width_in <= 32:  # a 3 × 3 stem over colours: twice as fast on a CPU
        padded = jnp.pad(x, ((0, 0), *pads, (0, 0)))
        height, width = _output_size(x, kernel, stride, pads)
        taps = [_tap(padded, i, j, stride, height, width) for i in range(size) for j in range(size)]
        return layers.dense(jnp.concatenate(taps, axis=-1), kernel.reshape(-1, width_out))
    order = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride,) * 2, pads, dimension_numbers=order)


def depthwise(x: jax.Array, kernel: jax.Array, stride: int, pads: Any) -> jax.Array:
    """[B, H, W, C] with one [k, k] kernel a channel, [k, k, C], to [B, H', W', C].

    Taps that meet only zeros are cut off: on an image of 2 × 2 pixels these are 16 of the 25 of a 5 × 5 kernel.
    """
    parts, inner = [], []
    for length, size, (before, after) in zip(x.shape[1:3], kernel.shape[:2], pads, strict=True):
        last = (length + before + after - size) // stride * stride  # where the last output begins
        first, stop = max(0, before - last), min(size, length + before)
        parts.append(slice(first, stop))
        inner.append((before - first, after - (size - stop)))
    return _depthwise(x, kernel[tuple(parts)], stride, tuple(inner))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _depthwise(x: jax.Array, kernel: jax.Array, stride: int, pads: Any) -> jax.Array:
    padded = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    height, width = _output_size(x, kernel, stride, pads)
    # Without the barrier XLA tests for the border again for each tap.
    padded = jax.lax.optimization_barrier(padded)
    terms = (_tap(padded, i, j, stride, height, width) * _weights(kernel, i, j) for i, j in _taps(kernel))
    return functools.reduce(jnp.add, terms)


def _output_size(x: jax.Array, kernel: jax.Array, stride: int, pads: Any) -> tuple[int, int]:
    sizes = zip(x.shape[1:3], kernel.shape[:2], pads, strict=True)
    height, width = ((length + sum(pad) - size) // stride + 1 for length, size, pad in sizes)
    return height, width


def _taps(kernel: jax.Array) -> list[tuple[int, int]]:
    return list(itertools.product(range(kernel.shape[0]), range(kernel.shape[1])))


def _weights(kernel: jax.Array, i: int, j: int) -> jax.Array:
    return kernel[i, j][None, None, None, :]


def _tap(padded: jax.Array, i: int, j: int, stride: int, height: int, width: int) -> jax.Array:
    """The pixels that kernel element (i, j) meets, [B, height, width, C]."""
    batch, _, _, channels = padded.shape
    stop = (batch, i + (height - 1) * stride + 1, j + (width - 1) * stride + 1, channels)
    return jax.lax.slice(padded, (0, i, j, 0), stop, (1, stride, stride, 1))


def _depthwise_forward(x: jax.Array, kernel: jax.Array, stride: int, pads: Any) -> Any:
    return _depthwise(x, kernel, stride, pads), (x, kernel)


def _depthwise_backward(stride: int, pads: Any, kept: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = kept
    return _image_gradient(x, kernel, stride, pads, g), _kernel_gradient(x, kernel, stride, pads, g)


def _image_gradient(x: jax.Array, kernel: jax.Array, stride: int, pads: Any, g: jax.Array) -> jax.Array:
    """For each pixel the sum over the outputs that it is part of.

    With a stride of 2, pixels of even and odd rows and columns meet different taps. They are computed as four images,
    which are interleaved at the end.
    """
    batch, channels = x.shape[0], x.shape[-1]
    height, width = (-(-length // stride) for length in x.shape[1:3])
    rows, columns = (_meetings(kernel.shape[axis], stride, pads[axis][0]) for axis in (0, 1))
    around = [_zeros_around(*sizes) for sizes in ((rows, height, g.shape[1]), (columns, width, g.shape[2]))]
    padded = jax.lax.optimization_barrier(jnp.pad(g, ((0, 0), *around, (0, 0))))

    def image(row: int, column: int) -> jax.Array:
        terms = []
        for (i, down), (j, right) in itertools.product(rows[row], columns[column]):
            top, left = down + around[0][0], right + around[1][0]
            met = jax.lax.slice(padded, (0, top, left, 0), (batch, top + height, left + width, channels))
            terms.append(met * _weights(kernel, i, j))
        return functools.reduce(jnp.add, terms)

    if stride == 1:
        return image(0, 0)
    images = [jnp.stack([image(row, column) for column in range(stride)], axis=3) for row in range(stride)]
    whole = jnp.stack(images, axis=2).reshape(batch, height * stride, width * stride, channels)
    return whole[:, : x.shape[1], : x.shape[2]]


def _meetings(size: int, stride: int, before: int) -> list[list[tuple[int, int]]]:
    """For pixels at each remainder by the stride: the taps that meet them, and in which output, relative to theirs."""
    taps = [[(i, remainder + before - i) for i in range(size)] for remainder in range(stride)]
    return [[(i, distance // stride) for i, distance in of_one if distance % stride == 0] for of_one in taps]


def _zeros_around(meetings: list[list[tuple[int, int]]], length: int, outputs: int) -> tuple[int, int]:
    """How far the outputs that `length` pixels of each remainder meet go beyond the first and the last."""
    shifts = [shift for of_one in meetings for _, shift in of_one]
    return max(0, -min(shifts)), max(0, length + max(shifts) - outputs)


def _kernel_gradient(x: jax.Array, kernel: jax.Array, stride: int, pads: Any, g: jax.Array) -> jax.Array:
    """For each tap the sum of x · g over all pixels.

    A few rows are added elementwise and the rest is summed by a product with ones, because XLA's sums over pixels are
    slow on CPUs. A loop over taps would compile in half the time, but its slices are not vectorised: it takes 3 to 7
    times as long. Examples are summed at the end, so that there is one sum over devices.
    """
    batch, height, width, channels = g.shape
    padded = jax.lax.optimization_barrier(jnp.pad(x, ((0, 0), *pads, (0, 0))))
    fold = max(n for n in range(1, 9) if height % n == 0)
    ones = jnp.ones((batch, (height // fold) * width), g.dtype)

    def tap(i: int, j: int) -> jax.Array:
        product = _tap(padded, i, j, stride, height, width) * g
        rows = functools.reduce(jnp.add, [product[:, n::fold] for n in range(fold)])
        rows = jax.lax.optimization_barrier(rows.reshape(batch, -1, channels))
        return jnp.einsum("bn,bnc->bc", ones, rows, preferred_element_type=jnp.float32)

    sums = jnp.sum(jnp.stack([tap(i, j) for i, j in _taps(kernel)]), axis=1)
    return sums.reshape(kernel.shape).astype(kernel.dtype)


_depthwise.defvjp(_depthwise_forward, _depthwise_backward)


@jax.custom_vjp
def relu6(x: jax.Array) -> jax.Array:
    """min(max(x, 0), 6), whose slope is read off the output, which the next layer keeps anyway."""
    return jnp.clip(x, 0.0, 6.0)


def _relu6_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = relu6(x)
    return y, y


def _relu6_backward(y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (jnp.where((y > 0) & (y < 6), g, jnp.zeros_like(g)),)


relu6.defvjp(_relu6_forward, _relu6_backward)
