"""EfficientNet-Lite's files: the names of efficientnet-lite-pytorch and of timm."""

import re

import numpy as np

from rac_jax.models.efficientnet_lite import EfficientNetLite
from rac_jax.weights import renaming
from rac_jax.weights.renaming import Rule
from rac_jax.weights.tensor_files import Tensors


def convert(tensors: Tensors, model: EfficientNetLite) -> dict[str, np.ndarray]:
    """File names to our paths, in our layouts; the classifier and what is above the last kept block are left out."""
    renamed = renaming.rename(tensors, _ORIGINAL) if "_conv_stem.weight" in tensors else _from_timm(tensors)
    if model.top is not None:
        return renamed
    kept = ("stem.", *(f"blocks.{i}." for i in range(len(model.blocks))))
    return {path: array for path, array in renamed.items() if path.startswith(kept)}


_ORIGINAL = (
    *renaming.conv_norm_rules("_conv_stem", "_bn0", "stem"),
    *renaming.conv_norm_rules(r"_blocks\.(\d+)\._expand_conv", r"_blocks\.(\d+)\._bn0", r"blocks.\1.expand"),
    *renaming.conv_norm_rules(
        r"_blocks\.(\d+)\._depthwise_conv", r"_blocks\.(\d+)\._bn1", r"blocks.\1.depthwise", renaming.depthwise
    ),
    *renaming.conv_norm_rules(r"_blocks\.(\d+)\._project_conv", r"_blocks\.(\d+)\._bn2", r"blocks.\1.project"),
    *renaming.conv_norm_rules("_conv_head", "_bn1", "top"),
    Rule(r"_fc\.(weight|bias)", None),
)


def _from_timm(tensors: Tensors) -> dict[str, np.ndarray]:
    """timm counts blocks within stages, and names the parts of an unexpanded block differently."""
    numbered = [m.groups() for name in tensors if (m := re.match(r"blocks\.(\d+)\.(\d+)\.", name))]
    order = {pair: i for i, pair in enumerate(sorted(set(numbered), key=lambda p: (int(p[0]), int(p[1]))))}
    rules = [
        *renaming.conv_norm_rules("conv_stem", "bn1", "stem"),
        *renaming.conv_norm_rules("conv_head", "bn2", "top"),
        Rule(r"classifier\.(weight|bias)", None),
    ]
    for (stage, block), i in order.items():
        old, new = rf"blocks\.{stage}\.{block}\.", f"blocks.{i}."
        if f"blocks.{stage}.{block}.conv_pwl.weight" in tensors:
            parts = [("conv_pw", "bn1", "expand"), ("conv_dw", "bn2", "depthwise"), ("conv_pwl", "bn3", "project")]
        else:
            parts = [("conv_dw", "bn1", "depthwise"), ("conv_pw", "bn2", "project")]
        for convolution, norm, target in parts:
            layout = renaming.depthwise if target == "depthwise" else renaming.convolution
            rules += renaming.conv_norm_rules(old + convolution, old + norm, new + target, layout)
    return renaming.rename(tensors, rules)
