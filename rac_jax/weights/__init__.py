"""Reads weights files of other projects, without torch, for our models."""

import pathlib

import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from rac_jax.models.bag_of_words import Glove
from rac_jax.models.bert import Bert
from rac_jax.models.clip_text import ClipText
from rac_jax.models.efficientnet_lite import EfficientNetLite
from rac_jax.models.resnet import ResNet
from rac_jax.models.vit import ViT
from rac_jax.weights import (
    bert_names,
    clip_names,
    efficientnet_names,
    glove,
    hf_config,
    merging,
    resnet_names,
    tensor_files,
    vit_names,
)
from rac_jax.weights.catalogue import resolve
from rac_jax.weights.tensor_files import digest

__all__ = ["digest", "from_config", "read", "resolve"]


def read(model: nnx.Module, path_or_name: str | pathlib.Path, *, weights_dir: str = "") -> dict[str, np.ndarray]:
    """A published file's arrays by the dotted paths of `model`, on the host.

    Args:
      model: made by `models.create`, of the file's sizes (the image size may differ); shapes without values are enough.
      path_or_name: a file, a Hugging Face folder, or a name of the catalogue such as "vit_b16:augreg_in21k".
      weights_dir: the folder of weight files; when empty, the environment variable RAC_JAX_WEIGHTS.
    """
    path = resolve(str(path_or_name), weights_dir)
    arrays = _convert(path, model)
    merging.check(model, arrays, source=str(path))
    return arrays


def from_config(config: ConfigDict, role: str, model: nnx.Module) -> dict[str, np.ndarray]:
    """The arrays of the weights of a role (base, encoder or text) by path; empty if it is trained from scratch."""
    source = config.model[role].weights
    return read(model, source, weights_dir=config.weights_dir) if source else {}


def _convert(path: pathlib.Path, model: nnx.Module) -> dict[str, np.ndarray]:
    """The file's arrays under the model's paths and in its layouts."""
    if isinstance(model, Glove):
        return {"vectors": glove.vectors(path)}
    tensors = tensor_files.read(path)
    if merging.is_own(model, tensors):
        return dict(tensors)
    hf_config.check(model, tensor_files.config(path), path)
    try:
        return _renamed(tensors, model)
    except (ValueError, IndexError) as error:  # a layout that an array of another rank cannot have
        raise ValueError(f"{path} does not fit {type(model).__name__}: {error}") from error


def _renamed(tensors: tensor_files.Tensors, model: nnx.Module) -> dict[str, np.ndarray]:
    match model:
        case Bert():
            return bert_names.convert(tensors, model.context_length)
        case ClipText():
            return clip_names.convert_text(tensors)
        case EfficientNetLite():
            return efficientnet_names.convert(tensors, model)
        case ResNet():
            return resnet_names.convert(tensors, model)
        case ViT():
            return vit_names.convert(tensors, model)
    raise ValueError(f"no weights files are known for {type(model).__name__}")
