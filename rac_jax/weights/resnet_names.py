"""ResNet's files: timm's and torchvision's names."""

import re

import numpy as np

from rac_jax.models.resnet import ResNet
from rac_jax.weights import renaming
from rac_jax.weights.renaming import Rule
from rac_jax.weights.tensor_files import Tensors


def convert(tensors: Tensors, model: ResNet) -> dict[str, np.ndarray]:
    """File names to our paths, in our layouts; the classifier is left out."""
    rules = (*_stem(len(model.stem)), *_blocks(model.average_shortcut), Rule(r"fc\.(weight|bias)", None))
    return renaming.rename(_stages_from_0(tensors), rules)


def _stem(convolutions: int) -> tuple[Rule, ...]:
    """One layer is conv1 and bn1; three are a sequence of convolution, norm and ReLU whose last norm is bn1."""
    if convolutions == 1:
        return renaming.conv_norm_rules("conv1", "bn1", "stem.0")
    last = convolutions - 1
    norms = [rf"conv1\.{3 * i + 1}" for i in range(last)] + ["bn1"]
    return tuple(
        rule for i, norm in enumerate(norms) for rule in renaming.conv_norm_rules(rf"conv1\.{3 * i}", norm, f"stem.{i}")
    )


def _blocks(average_shortcut: bool) -> tuple[Rule, ...]:
    """The "d" variant's shortcuts begin with a pool, also where it does nothing, so they count from 1."""
    old, first = r"layer(\d)\.(\d+)\.", 1 if average_shortcut else 0
    parts = [(f"conv{i}", f"bn{i}", f"conv{i}") for i in (1, 2, 3)]
    parts.append((rf"downsample\.{first}", rf"downsample\.{first + 1}", "shortcut"))
    return tuple(
        rule
        for convolution, norm, target in parts
        for rule in renaming.conv_norm_rules(old + convolution, old + norm, r"stages.\1.\2." + target)
    )


def _stages_from_0(tensors: Tensors) -> dict[str, np.ndarray]:
    """layer1 … layer4 are our stages 0 … 3."""
    return {re.sub(r"^layer(\d)", lambda m: f"layer{int(m[1]) - 1}", name): array for name, array in tensors.items()}
