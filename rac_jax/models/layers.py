"""Layers that the encoders share: dense, layer norm, activations, attention, stochastic depth.

They are written for XLA on CPUs as much as for accelerators. Matrix products have two axes ([B·T, D]) and attention has
one batch axis ([B·H, T, d]), which is fastest on CPUs. Layer norm and the activations have their own backward pass and
keep only their inputs. Parameters are float32; `dtype` is the type of matrix products.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models import initialisers


class Dense(nnx.Module):
    """x @ kernel + bias over the last axis, as one product of two matrices."""

    def __init__(
        self,
        width_in: int,
        width_out: int,
        *,
        bias: bool = True,
        init: initialisers.Initializer = initialisers.small,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.kernel = nnx.Param(init(rngs.params(), (width_in, width_out)))
        self.bias = nnx.Param(jnp.zeros((width_out,), jnp.float32)) if bias else None
        self.dtype = dtype

    def __call__(self, x: jax.Array, columns: slice = slice(None)) -> jax.Array:
        """[..., width_in] to [..., width_out], or to some `columns` of it, in the compute dtype."""
        bias = None if self.bias is None else self.bias[...][columns].astype(self.dtype)
        return dense(x.astype(self.dtype), self.kernel[...][:, columns].astype(self.dtype), bias)


def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """[..., I] times [I, O], plus [O]."""
    rows = x.reshape(-1, x.shape[-1]) @ kernel
    if bias is not None:
        rows = rows + bias[None, :]
    return rows.reshape(*x.shape[:-1], kernel.shape[-1])


class LayerNorm(nnx.Module):
    """Normalises the last axis; statistics are computed in float32 for any input dtype."""

    def __init__(self, width: int, *, epsilon: float):
        self.scale = nnx.Param(jnp.ones((width,), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((width,), jnp.float32))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., width] to [..., width], same dtype."""
        rows = x.reshape(-1, x.shape[-1])
        return layer_norm(rows, self.scale[...], self.bias[...], self.epsilon).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Rows [N, D] to mean 0 and variance 1, times scale [D], plus bias [D]."""
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> Any:
    rows = x.astype(jnp.float32)
    mean = jnp.mean(rows, axis=-1, keepdims=True)
    centred = rows - mean
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    y = centred * inverse * scale[None, :] + bias[None, :]
    return y.astype(x.dtype), (x, mean, inverse, scale)


def _layer_norm_backward(epsilon: float, kept: Any, cotangent: jax.Array) -> Any:
    x, mean, inverse, scale = kept
    normal = (x.astype(jnp.float32) - mean) * inverse
    g = cotangent.astype(jnp.float32)
    h = g * scale[None, :]
    along = jnp.mean(h * normal, axis=-1, keepdims=True)
    dx = inverse * (h - jnp.mean(h, axis=-1, keepdims=True) - normal * along)
    return dx.astype(x.dtype), jnp.sum(g * normal, axis=0), jnp.sum(g, axis=0)


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def _activation(f: Callable[[jax.Array], jax.Array], slope: Callable[[jax.Array], jax.Array]) -> Any:
    """An elementwise function whose backward pass recomputes its slope from the input."""

    @jax.custom_vjp
    def apply(x: jax.Array) -> jax.Array:
        return f(x.astype(jnp.float32)).astype(x.dtype)

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return apply(x), x

    def backward(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
        x, cotangent = jax.lax.optimization_barrier((x, cotangent))  # without it XLA keeps what f and its slope share
        slopes = slope(x.astype(jnp.float32))
        return ((cotangent.astype(jnp.float32) * slopes).astype(x.dtype),)

    apply.defvjp(forward, backward)
    return apply


def _normal_cdf(x: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


def _normal_density(x: jax.Array) -> jax.Array:
    return jnp.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


def _quick_slope(x: jax.Array) -> jax.Array:
    gate = jax.lax.logistic(1.702 * x)
    return gate + 1.702 * x * gate * (1.0 - gate)


_SQRT_2_PI = math.sqrt(2.0 / math.pi)


def _tanh_gelu(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1.0 + jnp.tanh(_SQRT_2_PI * (x + 0.044715 * x * x * x)))


def _tanh_slope(x: jax.Array) -> jax.Array:
    t = jnp.tanh(_SQRT_2_PI * (x + 0.044715 * x * x * x))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _SQRT_2_PI * (1.0 + 3 * 0.044715 * x * x)


gelu = _activation(lambda x: x * _normal_cdf(x), lambda x: _normal_cdf(x) + x * _normal_density(x))
gelu_tanh = _activation(_tanh_gelu, _tanh_slope)
quick_gelu = _activation(lambda x: x * jax.lax.logistic(1.702 * x), _quick_slope)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu}


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """gelu (erf: timm, Hugging Face, BERT), gelu_tanh (vit_jax) or quick_gelu (OpenAI's CLIP)."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation={name!r} is unknown; it must be one of {', '.join(map(repr, ACTIVATIONS))}")
    return ACTIVATIONS[name]


class Attention(nnx.Module):
    """Multi-head self-attention with one product for queries, keys and values."""

    def __init__(self, width: int, heads: int, *, dtype: Any = jnp.float32, rngs: nnx.Rngs):
        if width % heads:
            raise ValueError(f"heads={heads} does not divide width={width}")
        self.heads = heads
        self.qkv = Dense(width, 3 * width, dtype=dtype, rngs=rngs)
        self.out = Dense(width, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, bias: jax.Array | None = None, asking: jax.Array | None = None) -> jax.Array:
        """Tokens [B, T, D] to [B, T, D], or to [B, Q, D] when queries are made of the rows `asking` [B, Q, D] only.

        `bias` [B or 1, Q or 1, T] is added to every head's scores.
        """
        if asking is None:
            asking = x
            q, k, v = self._heads(x, 0, 3)
        else:
            (q,), (k, v) = self._heads(asking, 0, 1), self._heads(x, 1, 3)
        if bias is not None and bias.shape[0] > 1:
            bias = jnp.repeat(bias, self.heads, axis=0)
        batch, length, width = asking.shape
        mixed = attend(q, k, v, bias).reshape(batch, self.heads, length, width // self.heads)
        return self.out(jnp.transpose(mixed, (0, 2, 1, 3)).reshape(asking.shape))

    def _heads(self, x: jax.Array, first: int, end: int) -> list[jax.Array]:
        """Queries (0), keys (1) and values (2) from `first` up to `end`, each [B·H, T, d]."""
        batch, length, width = x.shape
        parts = self.qkv(x, slice(first * width, end * width))
        parts = parts.reshape(batch, length, end - first, self.heads, width // self.heads)
        parts = jnp.transpose(parts, (2, 0, 3, 1, 4))
        each = jax.lax.split(parts, (1,) * (end - first))  # the gradient of a slice would be padded with zeros
        return [part.reshape(batch * self.heads, length, -1) for part in each]


def attend(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None) -> jax.Array:
    """softmax(q kᵀ / √d + bias) v on arrays [N, T, d], where N counts examples and heads; softmax in float32.

    The product with v is divided by the softmax's sum. Dividing the T × T weights would cost more and keep them twice.
    """
    scaled = q * jnp.asarray(1.0 / math.sqrt(q.shape[-1]), q.dtype)
    scores = _product(scaled, k, _ROWS_BY_ROWS)
    if bias is not None:
        scores = scores + bias
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    mixed = _product(weights.astype(v.dtype), v, _ROWS_BY_COLUMNS)
    return (mixed / total).astype(v.dtype)


# Axes of [N, I, J] arrays over which two are multiplied.
_ROWS_BY_ROWS, _ROWS_BY_COLUMNS, _COLUMNS_BY_COLUMNS = (2, 2), (2, 1), (1, 1)


def _product(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """A product for each N, summed and returned in float32."""
    return _plain_product(a, b, axes) if a.dtype == jnp.float32 else _short_product(a, b, axes)


def _plain_product(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
    contract = (((axes[0],), (axes[1],)), ((0,), (0,)))
    return jax.lax.dot_general(a, b, contract, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _short_product(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """The same for bfloat16, whose backward products are of bfloat16 too.

    Without this, JAX would multiply the float32 gradient of the result with bfloat16 arrays in float32, which takes
    twice as long on a GPU.
    """
    return _plain_product(a, b, axes)


def _short_product_forward(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> Any:
    return _plain_product(a, b, axes), (a, b)


def _short_product_backward(axes: tuple[int, int], kept: Any, cotangent: jax.Array) -> Any:
    a, b = kept
    g = cotangent.astype(a.dtype)
    if axes == _ROWS_BY_ROWS:
        da, db = _plain_product(g, b, _ROWS_BY_COLUMNS), _plain_product(g, a, _COLUMNS_BY_COLUMNS)
    else:
        da, db = _plain_product(g, b, _ROWS_BY_ROWS), _plain_product(a, g, _COLUMNS_BY_COLUMNS)
    return da.astype(a.dtype), db.astype(b.dtype)


_short_product.defvjp(_short_product_forward, _short_product_backward)


def drop_path(x: jax.Array, rate: float, keys: jax.Array | None) -> jax.Array:
    """Stochastic depth: drops the residual x [B, ...] of whole examples, and scales the others up.

    `keys` [B] has one random key per example, so the result does not depend on how the batch is split.
    """
    if rate == 0.0 or keys is None:
        return x
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - rate))(keys).reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.where(kept, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros_like(x))


def fold_in(keys: jax.Array | None, number: int) -> jax.Array | None:
    """The keys [B] of the block with this number, from those of the examples; None without randomness."""
    return None if keys is None else jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)


def drop_rates(last: float, depth: int) -> tuple[float, ...]:
    """Stochastic depth rates that grow linearly from 0 at the first block to `last` at the last."""
    return tuple(last * i / max(depth - 1, 1) for i in range(depth))


def run_block(block: nnx.Module, x: jax.Array, *, remat: bool, **options: Any) -> jax.Array:
    """block(x); with `remat` its activations are recomputed in the backward pass instead of kept."""
    if not remat:
        return block(x, **options)
    graph, params, *rest = nnx.split(block, nnx.Param, ...)

    def run(params: Any, rest: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        module = nnx.merge(graph, params, rest)
        y = module(x, **options)
        return y, nnx.to_pure_dict(nnx.state(module, nnx.Not(nnx.Param)))

    y, moved = _forget(run)(nnx.to_pure_dict(params), nnx.to_pure_dict(rest[0]), x)
    nnx.update(block, moved)
    return y


def _forget(f: Callable) -> Callable:
    """f(params, rest, x) -> (y, rest) that keeps only its arguments for the backward pass; `rest` has no gradient.

    jax.checkpoint saves nothing on CPUs: XLA removes its barrier and recomputes all blocks at once. Here x depends on
    the gradient of y instead. Temporary memory of the gradient of a ViT of depth 12 and width 64, batch 32: activations
    kept 31.4 MB, jax.checkpoint (nothing_saveable) 31.7, without prevent_cse 31.4, this 5.3 (XLA's memory_analysis).
    """

    def forward(*arguments: Any) -> Any:
        return f(*arguments), arguments

    def backward(kept: Any, cotangents: Any) -> Any:
        (params, rest, x), g = kept, cotangents[0]
        nothing = jnp.zeros((), x.dtype) * g.reshape(len(g), -1)[:, 0].astype(x.dtype)
        x = x + nothing.reshape(-1, *[1] * (x.ndim - 1))
        _, pull, _ = jax.vjp(lambda params, x: f(params, rest, x), params, x, has_aux=True)
        params_cotangent, x_cotangent = pull(g)
        return params_cotangent, None, x_cotangent

    forgetful = jax.custom_vjp(f)
    forgetful.defvjp(forward, backward)
    return forgetful
