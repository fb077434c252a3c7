"""The transformer block that ViT and CLIP's text tower share: norm first, then attention or MLP, added back."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models import initialisers, layers

Rows = Callable[[jax.Array], jax.Array]  # selects rows [B, Q, D] of [B, T, D]


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); optionally each scaled per channel (LayerScale)."""

    def __init__(
        self,
        width: int,
        heads: int,
        mlp_width: int,
        *,
        activation: str,
        epsilon: float,
        drop: float = 0.0,
        layer_scale: float | None = None,
        adapter: int = 0,
        dtype: Any,
        rngs: nnx.Rngs,
    ):
        self.norm1 = layers.LayerNorm(width, epsilon=epsilon)
        self.attention = layers.Attention(width, heads, dtype=dtype, rngs=rngs)
        self.norm2 = layers.LayerNorm(width, epsilon=epsilon)
        self.up = layers.Dense(width, mlp_width, dtype=dtype, rngs=rngs)
        self.down = layers.Dense(mlp_width, width, dtype=dtype, rngs=rngs)
        if layer_scale is not None:
            self.scale1 = nnx.Param(jnp.full((width,), layer_scale, jnp.float32))
            self.scale2 = nnx.Param(jnp.full((width,), layer_scale, jnp.float32))
        self.scaled = layer_scale is not None
        self.adapter = Adapter(width, adapter, epsilon=epsilon, dtype=dtype, rngs=rngs) if adapter else None
        self.activation = activation
        self.drop = drop

    def __call__(
        self,
        x: jax.Array,
        *,
        bias: jax.Array | None = None,
        keys: jax.Array | None = None,
        pick: Rows | None = None,
    ) -> jax.Array:
        """Tokens [B, T, D] to [B, T, D]; `bias` is added to attention scores; `keys` [B] are for stochastic depth.

        `pick` selects the rows whose output is needed, as in a last block; only these are computed.
        """
        first, second = layers.fold_in(keys, 0), layers.fold_in(keys, 1)
        normal = self.norm1(x)
        if pick is None:
            mixed = self.attention(normal, bias)
        else:
            x, mixed = pick(x), self.attention(normal, bias, pick(normal))
        if self.scaled:
            mixed = mixed * self.scale1[...].astype(x.dtype)[None, None, :]
        x = x + layers.drop_path(mixed, self.drop, first)
        adapted = None if self.adapter is None else self.adapter(x)
        mixed = self.down(layers.activation(self.activation)(self.up(self.norm2(x))))
        if self.scaled:
            mixed = mixed * self.scale2[...].astype(x.dtype)[None, None, :]
        x = x + layers.drop_path(mixed, self.drop, second)
        return x if adapted is None else x + adapted


class Adapter(nnx.Module):
    """AdaptFormer: a narrow layer beside the MLP of a frozen block, scale · (up(relu(down(norm(x))))).

    It starts at zero, so that a model with adapters first computes exactly what it does without.
    """

    def __init__(self, width: int, narrow: int, *, epsilon: float, dtype: Any, rngs: nnx.Rngs):
        self.norm = layers.LayerNorm(width, epsilon=epsilon)
        self.down = layers.Dense(width, narrow, dtype=dtype, rngs=rngs)
        self.up = layers.Dense(narrow, width, init=initialisers.zeros, dtype=dtype, rngs=rngs)
        self.scale = nnx.Param(jnp.ones((), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, T, D] to [B, T, D]."""
        return self.scale[...].astype(x.dtype) * self.up(jax.nn.relu(self.down(self.norm(x))))
