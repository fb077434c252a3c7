"""CLIP's files: OpenAI's own names, open_clip's, and Hugging Face's."""

import numpy as np

from rac_jax.weights import renaming
from rac_jax.weights.renaming import Rule
from rac_jax.weights.tensor_files import Tensors


def convert_text(tensors: Tensors) -> dict[str, np.ndarray]:
    """The text tower's tensors under our paths; the image tower's are left out."""
    tensors = without_script_constants(tensors)
    if "token_embedding.weight" in tensors:
        return renaming.rename(tensors, _TEXT_OPENAI)
    return renaming.rename(tensors, _TEXT_HF)


def without_script_constants(tensors: Tensors) -> dict[str, np.ndarray]:
    """OpenAI's published archives hold three whole numbers beside the weights."""
    constants = ("input_resolution", "context_length", "vocab_size", "logit_scale", "logit_bias")
    return {name: array for name, array in tensors.items() if name not in constants}


def openai_blocks(old: str, new: str) -> tuple[Rule, ...]:
    """Blocks of torch's MultiheadAttention, whose queries, keys and values are already one array."""
    return (
        *renaming.layer_norm_rules(old + r"ln_1", new + "norm1"),
        *renaming.layer_norm_rules(old + r"ln_2", new + "norm2"),
        Rule(old + r"attn\.in_proj_weight", new + "attention.qkv.kernel", renaming.linear),
        Rule(old + r"attn\.in_proj_bias", new + "attention.qkv.bias"),
        *renaming.dense_rules(old + r"attn\.out_proj", new + "attention.out"),
        *renaming.dense_rules(old + r"mlp\.c_fc", new + "up"),
        *renaming.dense_rules(old + r"mlp\.c_proj", new + "down"),
    )


def hf_blocks(old: str, new: str) -> tuple[Rule, ...]:
    """Blocks of transformers' CLIPEncoder, with queries, keys and values apart."""
    return (
        *renaming.layer_norm_rules(old + r"layer_norm1", new + "norm1"),
        *renaming.layer_norm_rules(old + r"layer_norm2", new + "norm2"),
        *renaming.qkv_rules([old + rf"self_attn\.{part}_proj" for part in "qkv"], new + "attention.qkv"),
        *renaming.dense_rules(old + r"self_attn\.out_proj", new + "attention.out"),
        *renaming.dense_rules(old + r"mlp\.fc1", new + "up"),
        *renaming.dense_rules(old + r"mlp\.fc2", new + "down"),
    )


_TEXT_OPENAI = (
    Rule(r"visual\..*", None),
    Rule(r"attn_mask", None),
    Rule(r"token_embedding\.weight", "token_embedding"),
    Rule(r"positional_embedding", "position_embedding"),
    *openai_blocks(r"transformer\.resblocks\.(\d+)\.", r"blocks.\1."),
    *renaming.layer_norm_rules("ln_final", "final_norm"),
    Rule(r"text_projection", "projection.kernel"),
)

_TEXT_HF = (
    Rule(r"vision_model\..*|visual_projection\..*", None),
    Rule(r"(text_model\.)?embeddings\.position_ids", None),
    Rule(r"(?:text_model\.)?embeddings\.token_embedding\.weight", "token_embedding"),
    Rule(r"(?:text_model\.)?embeddings\.position_embedding\.weight", "position_embedding"),
    *hf_blocks(r"(?:text_model\.)?encoder\.layers\.(\d+)\.", r"blocks.\1."),
    *renaming.layer_norm_rules(r"(?:text_model\.)?final_layer_norm", "final_norm"),
    Rule(r"text_projection\.weight", "projection.kernel", renaming.linear),
)
