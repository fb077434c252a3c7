"""Encoders: images or tokens to features, built by `create` or `from_config`."""

import dataclasses
import inspect
import math
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
from rac_jax.models.convolution import BATCH_NORMS
from rac_jax.models.efficientnet_lite import EfficientNetLite
from rac_jax.models.layers import ACTIVATIONS
from rac_jax.models.preprocessing import Preprocessing
from rac_jax.models.resnet import ResNet
from rac_jax.models.vit import ViT

__all__ = ["NAMES", "Preprocessing", "create", "from_config"]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A named model: its module and the arguments that give it its size."""

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
    image_size: int = 224,
    rngs: nnx.Rngs | None = None,
    dtype: Any = jnp.float32,
    **overrides: Any,
) -> Any:
    """Builds the model `name` with fresh parameters.

    Args:
      name: one of `NAMES`.
      image_size: side of the square images; text models have none.
      rngs: random keys of the initial parameters; nnx.Rngs(0) when None.
      dtype: of matrix products; parameters, norm statistics and outputs are float32.
      **overrides: any other argument of the module, such as depth=3 or drop_path=0.1.
    """
    if name not in _VARIANTS:
        raise ValueError(f"no model is called {name!r}; there are {', '.join(NAMES)}")
    variant = _VARIANTS[name]
    arguments = {**variant.arguments, **overrides}
    if variant.preprocessing is not None:
        expects = dataclasses.replace(variant.preprocessing, image_size=image_size)
        arguments.setdefault("preprocessing", expects)
    return variant.module(dtype=dtype, rngs=nnx.Rngs(0) if rngs is None else rngs, **arguments)


def from_config(config: ConfigDict, role: str, rngs: nnx.Rngs, **arguments: Any) -> Any:
    """The model of a role (base, encoder or text) with fresh parameters, as config.model describes it."""
    _check(config, role)
    described = config.model[role]
    options = configs.options(described)
    try:
        return create(described.name, dtype=jnp.dtype(config.model.dtype), rngs=rngs, **arguments, **options)
    except (TypeError, ValueError) as error:
        raise configs.ConfigError(f"config.model.{role}={described.name!r} with {options}: {error}") from error


def _check(config: ConfigDict, role: str) -> None:
    """Raise ConfigError for the first option of a model that cannot work."""
    described, field = config.model[role], f"config.model.{role}"
    images = role != "text"
    fitting = [name for name, variant in _VARIANTS.items() if (variant.preprocessing is not None) == images]
    if described.name not in fitting:
        kind = "image models" if images else "text models"
        raise configs.ConfigError(f"{field}.name is {described.name!r}; the {kind} are {', '.join(fitting)}")
    variant, options = _VARIANTS[described.name], configs.options(described)
    known = inspect.signature(variant.module.__init__).parameters
    used = {name: parameter.default for name, parameter in known.items()} | variant.arguments | options

    def require(holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise configs.ConfigError(f"{field}.{name} is {used[name]!r}; {wanted}")

    possible = ", ".join(name for name in described if name in known) or "none"
    for name, value in options.items():
        require(name in known, name, f"{described.name} has no such option; it has {possible}")
        if isinstance(value, int | float):
            require(0 < value < math.inf, name, f"it must be positive, or 0 for the value of {described.name}")
    if "heads" in known:
        require(used["width"] % used["heads"] == 0, "heads", f"it must divide the width, {used['width']}")
    if "patch" in known:
        size = config.data.image_size
        require(size % used["patch"] == 0, "patch", f"it must divide config.data.image_size, {size}")
    if "activation" in known:
        require(used["activation"] in ACTIVATIONS, "activation", f"it must be one of {', '.join(ACTIVATIONS)}")
    if "batch_norm" in known:
        require(used["batch_norm"] in BATCH_NORMS, "batch_norm", f"it must be one of {', '.join(BATCH_NORMS)}")
