"""ViT's files: vit_jax's (AugReg) .npz, timm's and DINOv2's names, Hugging Face's, CLIP's image towers."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np

from rac_jax.models.vit import ViT
from rac_jax.weights import clip_names, renaming
from rac_jax.weights.renaming import Rule
from rac_jax.weights.tensor_files import Tensors


def convert(tensors: Tensors, model: ViT) -> dict[str, np.ndarray]:
    """Any of the known names to our paths and layouts, positions resampled to the model's grid."""
    arrays = renaming.rename(_common_prefix_removed(tensors), _rules(tensors))
    if "position_embedding" in arrays:
        wanted = model.position_embedding.shape[0]
        arrays["position_embedding"] = resample_positions(arrays["position_embedding"], wanted)
    return arrays


def resample_positions(table: np.ndarray, length: int) -> np.ndarray:
    """Position embeddings [1 + h·h, D] to [length, D] for another square grid.

    Bicubic with antialiasing, as timm's `resample_abs_pos_embed`; the class token's position stays.
    """
    if table.shape[0] == length:
        return table
    old, new = math.isqrt(table.shape[0] - 1), math.isqrt(length - 1)
    if old * old != table.shape[0] - 1 or new * new != length - 1:
        raise ValueError(
            f"position embeddings for {table.shape[0]} tokens cannot be resampled to {length}: "
            "both must be a square grid and a class token"
        )
    grid = jnp.asarray(table[1:], jnp.float32).reshape(old, old, -1)
    resized = jax.image.resize(grid, (new, new, grid.shape[-1]), "bicubic").reshape(new * new, -1)
    return np.concatenate([np.asarray(table[:1], np.float32), np.asarray(resized)])


def _common_prefix_removed(tensors: Tensors) -> dict[str, np.ndarray]:
    """Whole Hugging Face classifiers put "vit." or "dinov2." before the encoder's names."""
    return {re.sub(r"^(vit|dinov2|module)\.", "", name): array for name, array in tensors.items()}


def _rules(tensors: Tensors) -> tuple[Rule, ...]:
    names = set(_common_prefix_removed(tensors))
    if any(name.startswith("Transformer/") for name in names):
        return _AUGREG
    if "visual.class_embedding" in names:
        return _CLIP_OPENAI
    if any(name.startswith("vision_model.") for name in names):
        return _CLIP_HF
    if "embeddings.cls_token" in names:
        return _HF
    return _TIMM


def _patch_kernel(array: np.ndarray) -> np.ndarray:
    """torch's [width, 3, p, p] to [p · p · 3, width]."""
    return array.transpose(2, 3, 1, 0).reshape(-1, array.shape[0])


def _last_axis(array: np.ndarray) -> np.ndarray:
    """A vector or table with leading axes of length 1, [1, 1, D] or [1, T, D], without them."""
    return array.reshape(array.shape[-2:] if array.shape[-2] > 1 else array.shape[-1:])


_BLOCK = r"Transformer/encoderblock_(\d+)/"
_SELF = _BLOCK + "MultiHeadDotProductAttention_1/"
_AUGREG = (
    Rule("cls", "class_token", _last_axis),
    Rule("Transformer/posembed_input/pos_embedding", "position_embedding", _last_axis),
    Rule("embedding/kernel", "patch_embedding.kernel", lambda a: a.reshape(-1, a.shape[-1])),
    Rule("embedding/bias", "patch_embedding.bias"),
    *(Rule(_BLOCK + f"LayerNorm_{old}/(scale|bias)", rf"blocks.\1.norm{new}.\2") for old, new in ((0, 1), (2, 2))),
    *(
        Rule(_SELF + f"{part}/kernel", rf"blocks.\1.attention.qkv.kernel#{i}", lambda a: a.reshape(a.shape[0], -1))
        for i, part in enumerate(("query", "key", "value"))
    ),
    *(
        Rule(_SELF + f"{part}/bias", rf"blocks.\1.attention.qkv.bias#{i}", lambda a: a.reshape(-1))
        for i, part in enumerate(("query", "key", "value"))
    ),
    Rule(_SELF + "out/kernel", r"blocks.\1.attention.out.kernel", lambda a: a.reshape(-1, a.shape[-1])),
    Rule(_SELF + "out/bias", r"blocks.\1.attention.out.bias"),
    Rule(_BLOCK + "MlpBlock_3/Dense_0/(kernel|bias)", r"blocks.\1.up.\2"),
    Rule(_BLOCK + "MlpBlock_3/Dense_1/(kernel|bias)", r"blocks.\1.down.\2"),
    Rule("Transformer/encoder_norm/(scale|bias)", r"final_norm.\1"),
    Rule("(pre_logits|head)/(kernel|bias)", None),
)

_T = r"blocks\.(\d+)\."
_TIMM = (
    Rule("cls_token", "class_token", _last_axis),
    Rule("pos_embed", "position_embedding", _last_axis),
    Rule("mask_token", None),
    Rule(r"patch_embed\.proj\.weight", "patch_embedding.kernel", _patch_kernel),
    Rule(r"patch_embed\.proj\.bias", "patch_embedding.bias"),
    *renaming.layer_norm_rules("norm_pre", "norm_before"),
    *renaming.layer_norm_rules(_T + "norm1", r"blocks.\1.norm1"),
    *renaming.layer_norm_rules(_T + "norm2", r"blocks.\1.norm2"),
    *renaming.dense_rules(_T + r"attn\.qkv", r"blocks.\1.attention.qkv"),
    *renaming.dense_rules(_T + r"attn\.proj", r"blocks.\1.attention.out"),
    *renaming.dense_rules(_T + r"mlp\.fc1", r"blocks.\1.up"),
    *renaming.dense_rules(_T + r"mlp\.fc2", r"blocks.\1.down"),
    Rule(_T + r"ls(\d)\.gamma", r"blocks.\1.scale\2"),
    *renaming.layer_norm_rules("norm", "final_norm"),
    Rule(r"(pre_logits\.fc|head)\.(weight|bias)", None),
)

_H = r"encoder\.layer\.(\d+)\."
_HF = (
    Rule(r"embeddings\.cls_token", "class_token", _last_axis),
    Rule(r"embeddings\.position_embeddings", "position_embedding", _last_axis),
    Rule(r"embeddings\.mask_token", None),
    Rule(r"embeddings\.patch_embeddings\.projection\.weight", "patch_embedding.kernel", _patch_kernel),
    Rule(r"embeddings\.patch_embeddings\.projection\.bias", "patch_embedding.bias"),
    *renaming.layer_norm_rules(_H + "(?:layernorm_before|norm1)", r"blocks.\1.norm1"),
    *renaming.layer_norm_rules(_H + "(?:layernorm_after|norm2)", r"blocks.\1.norm2"),
    *renaming.qkv_rules(
        [_H + rf"attention\.attention\.{part}" for part in ("query", "key", "value")], r"blocks.\1.attention.qkv"
    ),
    *renaming.dense_rules(_H + r"attention\.output\.dense", r"blocks.\1.attention.out"),
    *renaming.dense_rules(_H + r"(?:intermediate\.dense|mlp\.fc1)", r"blocks.\1.up"),
    *renaming.dense_rules(_H + r"(?:output\.dense|mlp\.fc2)", r"blocks.\1.down"),
    Rule(_H + r"layer_scale(\d)\.lambda1", r"blocks.\1.scale\2"),
    *renaming.layer_norm_rules("layernorm", "final_norm"),
    Rule(r"pooler\.dense\..*", None),  # a layer on top of the class token that RAC does not use
    Rule(r"classifier\.(weight|bias)", None),
)

_CLIP_OPENAI = (
    Rule(r"visual\.class_embedding", "class_token"),
    Rule(r"visual\.positional_embedding", "position_embedding"),
    Rule(r"visual\.conv1\.weight", "patch_embedding.kernel", _patch_kernel),
    *renaming.layer_norm_rules(r"visual\.ln_pre", "norm_before"),
    *clip_names.openai_blocks(r"visual\.transformer\.resblocks\.(\d+)\.", r"blocks.\1."),
    *renaming.layer_norm_rules(r"visual\.ln_post", "final_norm"),
    Rule(r"visual\.proj", "projection.kernel"),
    Rule(r"(?!visual\.).*", None),  # the text tower
)

_CLIP_HF = (
    Rule(r"vision_model\.embeddings\.class_embedding", "class_token"),
    Rule(r"vision_model\.embeddings\.position_embedding\.weight", "position_embedding"),
    Rule(r"vision_model\.embeddings\.position_ids", None),
    Rule(r"vision_model\.embeddings\.patch_embedding\.weight", "patch_embedding.kernel", _patch_kernel),
    *renaming.layer_norm_rules(r"vision_model\.pre_layrnorm", "norm_before"),  # sic
    *clip_names.hf_blocks(r"vision_model\.encoder\.layers\.(\d+)\.", r"blocks.\1."),
    *renaming.layer_norm_rules(r"vision_model\.post_layernorm", "final_norm"),
    Rule(r"visual_projection\.weight", "projection.kernel", renaming.linear),
    Rule(r"text_model\..*|text_projection\..*|logit_scale", None),
)
