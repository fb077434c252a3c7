"""Encoders: images or tokens to features. `create` is the one way in."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax.models import efficientnet_lite as lite
from rac_jax.models import preprocessing
from rac_jax.models.bag_of_words import Glove, RandomWords
from rac_jax.models.bert import Bert
from rac_jax.models.clip_text import ClipText
from rac_jax.models.efficientnet_lite import EfficientNetLite
from rac_jax.models.preprocessing import Preprocessing
from rac_jax.models.resnet import ResNet
from rac_jax.models.vit import ViT

__all__ = ["NAMES", "Preprocessing", "create", "from_config"]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A named model: the module that computes it and the arguments that make it that size."""

    module: Callable[..., nnx.Module]
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing | None = None


_CLIP_IMAGE = {
    "norm_before": True,
    "patch_bias": False,
    "activation": "quick_gelu",
    "epsilon": 1e-5,
    "projection": 512,
}

_VARIANTS = {
    "vit_ti16": Variant(ViT, {"width": 192, "heads": 3}, preprocessing.HALF),
    "vit_s16": Variant(ViT, {"width": 384, "heads": 6}, preprocessing.HALF),
    "vit_b16": Variant(ViT, {}, preprocessing.HALF),
    "vit_b32": Variant(ViT, {"patch": 32}, preprocessing.HALF),
    "vit_l16": Variant(ViT, {"width": 1024, "depth": 24, "heads": 16}, preprocessing.HALF),
    "dinov2_s14": Variant(ViT, {"patch": 14, "width": 384, "heads": 6, "layer_scale": 1e-5}, preprocessing.IMAGENET),
    "dinov2_b14": Variant(ViT, {"patch": 14, "layer_scale": 1e-5}, preprocessing.IMAGENET),
    "clip_image_b16": Variant(ViT, _CLIP_IMAGE, preprocessing.CLIP),
    "clip_image_b32": Variant(ViT, {**_CLIP_IMAGE, "patch": 32}, preprocessing.CLIP),
    "clip_text": Variant(ClipText),
    "bert": Variant(Bert),
    "minilm": Variant(Bert, {"width": 384, "depth": 6}),
    "glove": Variant(Glove),
    "random_words": Variant(RandomWords),
    "resnet50": Variant(ResNet, {}, preprocessing.IMAGENET),
    "resnet152d": Variant(
        ResNet,
        {"blocks": (3, 8, 36, 3), "stem_widths": (32, 32, 64), "average_shortcut": True},
        preprocessing.IMAGENET,
    ),
    "efficientnet_lite0": Variant(EfficientNetLite, {}, preprocessing.EFFICIENTNET_LITE),
    "efficientnet_lite1": Variant(
        EfficientNetLite, {"stages": lite.scaled_stages(1.0, 1.1)}, preprocessing.EFFICIENTNET_LITE
    ),
    "efficientnet_lite2": Variant(
        EfficientNetLite, {"stages": lite.scaled_stages(1.1, 1.2)}, preprocessing.EFFICIENTNET_LITE
    ),
}

NAMES = tuple(_VARIANTS)


def create(
    name: str,
    *,
    num_classes: int = 0,
    image_size: int = 224,
    rngs: nnx.Rngs | None = None,
    dtype: Any = jnp.float32,
    **overrides: Any,
) -> Any:
    """Builds the model `name` with fresh parameters.

    Args:
      name: one of `NAMES`.
      num_classes: 0 for features [B, feature_width]; otherwise a linear head makes logits [B, num_classes].
      image_size: side of the square images; text models have none.
      rngs: where initial parameters are drawn from; nnx.Rngs(0) when None.
      dtype: what products are computed in; parameters, norm statistics and outputs are float32.
      **overrides: any other argument of the module, such as depth=3 or drop_path=0.1.
    """
    if name not in _VARIANTS:
        raise ValueError(f"no model is called {name!r}; there are {', '.join(NAMES)}")
    variant = _VARIANTS[name]
    arguments = {**variant.arguments, **overrides}
    if variant.preprocessing is not None:
        expects = dataclasses.replace(variant.preprocessing, image_size=image_size)
        arguments.setdefault("preprocessing", expects)
    return variant.module(num_classes=num_classes, dtype=dtype, rngs=nnx.Rngs(0) if rngs is None else rngs, **arguments)


def from_config(config: ConfigDict, role: str, rngs: nnx.Rngs, **arguments: Any) -> Any:
    """The model of a role (base, encoder or text) with fresh parameters, as config.model describes it."""
    described = config.model[role]
    options, field = configs.options(described), f"config.model.{role}"
    if described.name not in _VARIANTS:
        raise configs.ConfigError(f"{field}.name is {described.name!r}; known: {', '.join(NAMES)}")
    known = inspect.signature(_VARIANTS[described.name].module.__init__).parameters
    unknown = [name for name in options if name not in known]
    if unknown:
        possible = [name for name in described if name in known]
        raise configs.ConfigError(
            f"{field}.{unknown[0]} is {options[unknown[0]]!r}, but {described.name} has no such option; "
            f"it has {', '.join(possible) or 'none'}"
        )
    try:
        return create(described.name, dtype=jnp.dtype(config.model.dtype), rngs=rngs, **arguments, **options)
    except (TypeError, ValueError) as error:
        raise configs.ConfigError(f"{field}={described.name!r} with {options}: {error}") from error
