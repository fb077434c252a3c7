"""Weights of other projects, read without torch, in our models."""

import pathlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from flax import nnx

from rac_jax.models.clip_text import ClipText
from rac_jax.models.efficientnet_lite import EfficientNetLite
from rac_jax.models.resnet import ResNet
from rac_jax.models.vit import ViT
from rac_jax.weights import clip_names, efficientnet_names, merging, resnet_names, tensor_files, vit_names
from rac_jax.weights.catalogue import resolve
from rac_jax.weights.tensor_files import digest

__all__ = ["digest", "load", "resolve"]

Model = TypeVar("Model", bound=nnx.Module)


def load(
    model: Model,
    path_or_name: str | pathlib.Path,
    *,
    weights_dir: str = "",
    expect_missing: Sequence[str] = (),
) -> Model:
    """Fills `model` in place from a published file and returns it.

    Args:
      model: made by `models.create`, of the file's sizes; the image size may differ.
      path_or_name: a file, a Hugging Face folder, or a name of the catalogue such as "vit_b16:augreg_in21k".
      weights_dir: where files of the catalogue lie; when empty, the environment variable RAC_JAX_WEIGHTS.
      expect_missing: first parts of parameter paths that keep their initial values, such as ("head",).
    """
    path = resolve(str(path_or_name), weights_dir)
    arrays = _convert(tensor_files.read(path), model)
    merging.merge(model, arrays, source=str(path), expect_missing=expect_missing)
    return model


def _convert(tensors: tensor_files.Tensors, model: nnx.Module) -> dict[str, np.ndarray]:
    match model:
        case ClipText():
            return clip_names.convert_text(tensors)
        case EfficientNetLite():
            return efficientnet_names.convert(tensors, model)
        case ResNet():
            return resnet_names.convert(tensors, model)
        case ViT():
            return vit_names.convert(tensors, model)
    raise TypeError(f"no weights of other projects are known for {type(model).__name__}")
