"""The transformer block that ViT and CLIP's text tower share: norm first, then attention or MLP, added back."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models import layers

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
        mixed = self.down(layers.activation(self.activation)(self.up(self.norm2(x))))
        if self.scaled:
            mixed = mixed * self.scale2[...].astype(x.dtype)[None, None, :]
        return x + layers.drop_path(mixed, self.drop, second)
