"""A head made of texts: CLIP's features of a prompt for each class, in the space of its image features."""

from collections.abc import Sequence

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from rac_jax import models, weights
from rac_jax.retrieval import tokenizers
from rac_jax.retrieval.tokenizers import Tokenizer

BATCH = 128  # prompts that are encoded at once


def head(config: ConfigDict, class_texts: Sequence[str]) -> np.ndarray:
    """A column of unit length for each class, [D, L] float32: with B's features they give CLIP's zero-shot answers.

    B keeps CLIP's image projection, so its features and those of the text tower are in the same space. The text tower
    is config.model.text with its weights, whether or not the voice "text" speaks.
    """
    tokenizer = tokenizers.clip()
    sizes = {"vocab_size": tokenizer.vocab_size, "context_length": tokenizer.length}
    shapes = nnx.eval_shape(lambda: models.from_config(config, "text", nnx.Rngs(0), **sizes))
    arrays = weights.from_config(config, "text", shapes)
    graph, state = nnx.split(shapes)
    filled = jax.tree_util.tree_map_with_path(
        lambda path, _: arrays[jax.tree_util.keystr(path, simple=True, separator=".")], nnx.to_pure_dict(state)
    )
    encode = jax.jit(lambda parameters, tokens: nnx.merge(graph, parameters)(tokens))
    tokens = sequences(tokenizer, [config.model.prompt.format(text) for text in class_texts])
    starts = range(0, len(tokens), BATCH)
    features = np.concatenate([np.asarray(encode(filled, tokens[start : start + BATCH])) for start in starts])
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).T


def sequences(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """Texts as token ids [N, T] int32: start, the text (cut if it is too long), end, padding."""
    tokens = np.full((len(texts), tokenizer.length), tokenizer.pad, np.int32)
    for row, ids in zip(tokens, tokenizer.encode(list(texts)), strict=True):
        ids = [tokenizer.start, *ids[: tokenizer.length - 2], tokenizer.end]
        row[: len(ids)] = ids
    return tokens
