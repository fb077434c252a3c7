"""CLIP's text transformer: token ids to one vector, read at the end token."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rac_jax.models import initialisers, layers
from rac_jax.models.transformer import Block


class ClipText(nnx.Module):
    """A causal transformer whose output is the row of the first highest id, which in CLIP's vocabulary is the end."""

    def __init__(
        self,
        *,
        vocab_size: int = 49408,
        context_length: int = 77,
        width: int = 512,
        depth: int = 12,
        heads: int = 8,
        mlp_width: int = 0,
        projection: int = 512,
        activation: str = "quick_gelu",
        epsilon: float = 1e-5,
        remat: bool = False,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Fresh parameters. mlp_width=0 means 4 · width, projection=0 leaves the projection out."""
        self.token_embedding = nnx.Param(initialisers.small(rngs.params(), (vocab_size, width)))
        self.position_embedding = nnx.Param(initialisers.truncated_normal(0.01)(rngs.params(), (context_length, width)))
        self.blocks = nnx.List(
            Block(width, heads, mlp_width or 4 * width, activation=activation, epsilon=epsilon, dtype=dtype, rngs=rngs)
            for _ in range(depth)
        )
        self.final_norm = layers.LayerNorm(width, epsilon=epsilon)
        self.feature_width = projection or width
        init = initialisers.truncated_normal(width**-0.5)
        self.projection = (
            layers.Dense(width, projection, bias=False, init=init, dtype=dtype, rngs=rngs) if projection else None
        )
        self.context_length = context_length
        self.remat = remat
        self.dtype = dtype

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Token ids int32 [B, T], T up to context_length, to features [B, feature_width], float32."""
        # The end token has the highest id. Zeros fill the rest, so the first one found is the end itself.
        x = self.encode(tokens, end=jnp.argmax(tokens, axis=-1))
        pooled = self.final_norm(x[:, 0])
        features = pooled if self.projection is None else self.projection(pooled)
        return features.astype(jnp.float32)

    def encode(self, tokens: jax.Array, *, end: jax.Array | None = None) -> jax.Array:
        """[B, T] to the last block's output before the final norm: [B, T, width], or [B, 1, width] at `end` [B]."""
        length = tokens.shape[1]
        if length > self.context_length:
            raise ValueError(f"tokens of length {length}, but context_length={self.context_length}")
        x = self.token_embedding[...][tokens] + self.position_embedding[...][None, :length]
        x = x.astype(self.dtype)
        bias = jnp.asarray(causal_bias(length))
        *earlier, last = self.blocks
        for block in earlier:
            x = layers.run_block(block, x, remat=self.remat, bias=bias)
        if end is None:
            return layers.run_block(last, x, remat=self.remat, bias=bias)
        pick = functools.partial(jnp.take_along_axis, indices=end[:, None, None], axis=1)
        return layers.run_block(last, x, remat=self.remat, bias=bias[0, end][:, None, :], pick=pick)


def causal_bias(length: int) -> np.ndarray:
    """[1, T, T] float32: 0 where a token may look, a very low score where it may not (the future)."""
    future = np.triu(np.ones((length, length), bool), k=1)
    return np.where(future, np.float32(-1e30), np.float32(0.0))[None]
