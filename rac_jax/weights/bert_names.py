"""The BERT family's files: Hugging Face's names, new and old."""

import re

import numpy as np

from rac_jax.weights import renaming
from rac_jax.weights.renaming import Rule
from rac_jax.weights.tensor_files import Tensors


def convert(tensors: Tensors, context_length: int) -> dict[str, np.ndarray]:
    """File names to our paths, in our layouts; the pooler and the heads of pretraining are left out.

    So are positions that the model does not have: files have 512, and a run reads fewer tokens.
    """
    arrays = renaming.rename({_modern(name): array for name, array in tensors.items()}, _RULES)
    if "position_embedding" in arrays:
        arrays["position_embedding"] = arrays["position_embedding"][:context_length]
    return arrays


def _modern(name: str) -> str:
    """Early files say gamma and beta, and whole models put "bert." before the encoder's names."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    return re.sub(r"^bert\.", "", name)


_LAYER = r"encoder\.layer\.(\d+)\."
_RULES = (
    Rule(r"embeddings\.word_embeddings\.weight", "token_embedding"),
    Rule(r"embeddings\.position_embeddings\.weight", "position_embedding"),
    Rule(r"embeddings\.token_type_embeddings\.weight", "segment_embedding"),
    Rule(r"embeddings\.position_ids|pooler\..*|cls\..*", None),
    *renaming.layer_norm_rules(r"embeddings\.LayerNorm", "embedding_norm"),
    *renaming.qkv_rules(
        [_LAYER + rf"attention\.self\.{part}" for part in ("query", "key", "value")], r"blocks.\1.attention.qkv"
    ),
    *renaming.dense_rules(_LAYER + r"attention\.output\.dense", r"blocks.\1.attention.out"),
    *renaming.layer_norm_rules(_LAYER + r"attention\.output\.LayerNorm", r"blocks.\1.norm1"),
    *renaming.dense_rules(_LAYER + r"intermediate\.dense", r"blocks.\1.up"),
    *renaming.dense_rules(_LAYER + r"output\.dense", r"blocks.\1.down"),
    *renaming.layer_norm_rules(_LAYER + r"output\.LayerNorm", r"blocks.\1.norm2"),
)
