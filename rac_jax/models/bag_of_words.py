"""Bags of words, the paper's comparison to CLIP's text tower: the mean of word vectors that are not trained."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models.bert import PAD, mean_of_present


class Fixed(nnx.Variable):
    """An array of the model that is not trained."""


class Glove(nnx.Module):
    """Vectors from a file. Id 0 is padding, and word i of the file has id i + 1."""

    def __init__(
        self,
        *,
        vocab_size: int = 400_001,
        width: int = 300,
        context_length: int = 0,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """An empty table of vectors. context_length and dtype are ignored: a sequence may have any length."""
        del context_length, dtype
        self.vectors = Fixed(jnp.zeros((vocab_size, width), jnp.float32))
        self.feature_width = width

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Word ids int32 [B, T] to the mean of their vectors [B, width], float32."""
        return mean_of_present(self.vectors[...][tokens], tokens != PAD)


class RandomWords(nnx.Module):
    """Each id has a vector of numbers in [0, 1), drawn from the id: the same in every run, and not stored."""

    def __init__(
        self,
        *,
        vocab_size: int = 2**31 - 1,
        width: int = 300,
        seed: int = 0,
        context_length: int = 0,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """No parameters. vocab_size, context_length and dtype are ignored: any id has a vector."""
        del vocab_size, context_length, dtype
        self.seed = seed
        self.feature_width = width

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Word ids int32 [B, T] to the mean of their vectors [B, width], float32."""
        return mean_of_present(self.vectors(tokens), tokens != PAD)

    def vectors(self, tokens: jax.Array) -> jax.Array:
        """[B, T] to [B, T, width], drawn from the ids, without a table."""
        key = jax.random.key(self.seed, impl="threefry2x32")

        def draw(token: jax.Array) -> jax.Array:
            return jax.random.uniform(jax.random.fold_in(key, token), (self.feature_width,), jnp.float32)

        return jax.vmap(draw)(tokens.reshape(-1)).reshape(*tokens.shape, self.feature_width)
