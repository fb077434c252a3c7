"""The BERT family: token ids to the mean of the last layer's rows. Up to 512 tokens."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models import initialisers, layers

PAD = 0  # the id of padding in every published vocabulary of the family


class PostNormBlock(nnx.Module):
    """norm(x + attention(x)), then norm(x + mlp(x)): the order of the first transformers."""

    def __init__(self, width: int, heads: int, mlp_width: int, *, epsilon: float, dtype: Any, rngs: nnx.Rngs):
        self.attention = layers.Attention(width, heads, dtype=dtype, rngs=rngs)
        self.norm1 = layers.LayerNorm(width, epsilon=epsilon)
        self.up = layers.Dense(width, mlp_width, dtype=dtype, rngs=rngs)
        self.down = layers.Dense(mlp_width, width, dtype=dtype, rngs=rngs)
        self.norm2 = layers.LayerNorm(width, epsilon=epsilon)

    def __call__(self, x: jax.Array, *, bias: jax.Array) -> jax.Array:
        """Tokens [B, T, D] to [B, T, D]; `bias` [B, 1, T] masks padding."""
        x = self.norm1(x + self.attention(x, bias))
        return self.norm2(x + self.down(layers.gelu(self.up(x))))


class Bert(nnx.Module):
    """A bidirectional transformer; its feature is the mean over all tokens that are not padding."""

    def __init__(
        self,
        *,
        vocab_size: int = 30522,
        context_length: int = 512,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        mlp_width: int = 0,
        epsilon: float = 1e-12,
        remat: bool = False,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Fresh parameters. mlp_width=0 means 4 · width."""
        self.token_embedding = nnx.Param(initialisers.small(rngs.params(), (vocab_size, width)))
        self.position_embedding = nnx.Param(initialisers.small(rngs.params(), (context_length, width)))
        # Row 0 is added to every token of a single text; row 1 is for the second of two texts.
        self.segment_embedding = nnx.Param(initialisers.small(rngs.params(), (2, width)))
        self.embedding_norm = layers.LayerNorm(width, epsilon=epsilon)
        self.blocks = nnx.List(
            PostNormBlock(width, heads, mlp_width or 4 * width, epsilon=epsilon, dtype=dtype, rngs=rngs)
            for _ in range(depth)
        )
        self.feature_width = width
        self.context_length = context_length
        self.remat = remat
        self.dtype = dtype

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Token ids int32 [B, T], T up to context_length, to features [B, width], float32."""
        x = self.encode(tokens).astype(jnp.float32)
        return mean_of_present(x, tokens != PAD)

    def encode(self, tokens: jax.Array) -> jax.Array:
        """[B, T] to the last block's output [B, T, width]."""
        length = tokens.shape[1]
        if length > self.context_length:
            raise ValueError(f"tokens of length {length}, but context_length={self.context_length}")
        places = self.position_embedding[...][:length] + self.segment_embedding[...][:1]
        x = self.embedding_norm(self.token_embedding[...][tokens] + places[None]).astype(self.dtype)
        bias = jnp.where(tokens == PAD, jnp.float32(-1e30), jnp.float32(0.0))[:, None, :]
        for block in self.blocks:
            x = layers.run_block(block, x, remat=self.remat, bias=bias)
        return x


def mean_of_present(x: jax.Array, present: jax.Array) -> jax.Array:
    """The mean of the tokens [B, T, D] where present [B, T]; zeros where none is."""
    shares = present.astype(x.dtype) / jnp.maximum(jnp.sum(present, axis=1, keepdims=True), 1).astype(x.dtype)
    return jnp.sum(x * shares[:, :, None], axis=1)
