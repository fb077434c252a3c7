"""How images are prepared for a pretrained model."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

Interpolation = Literal["bilinear", "bicubic"]


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """From an image file to the array a model was trained on.

    The input pipeline resizes and crops on the host and hands over uint8; `normalise` runs on the device.

    Attributes:
      image_size: side of the square input, in pixels.
      crop: share of the resized image that the centre crop keeps: resize to image_size / crop, then crop.
      mean: per channel, in units of 0..255 pixel values.
      std: per channel, in units of 0..255 pixel values.
      interpolation: how the host resizes.
    """

    image_size: int = 224
    crop: float = 0.95
    mean: tuple[float, float, float] = (127.5, 127.5, 127.5)
    std: tuple[float, float, float] = (127.5, 127.5, 127.5)
    interpolation: Interpolation = "bicubic"

    def normalise(self, images: jax.Array, dtype: jnp.dtype = jnp.float32) -> jax.Array:
        """Pixel values uint8 [B, H, W, 3] to (pixel - mean) / std, [B, H, W, 3] of `dtype`."""
        mean = jnp.asarray(self.mean, jnp.float32)[None, None, None, :]
        inverse_std = 1.0 / jnp.asarray(self.std, jnp.float32)[None, None, None, :]
        return ((images.astype(jnp.float32) - mean) * inverse_std).astype(dtype)


HALF = Preprocessing()
"""AugReg and timm's ViT: pixels to -1..1."""

IMAGENET = Preprocessing(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
"""Mean and deviation of ImageNet's pixels: torchvision, timm's ResNet, DINOv2."""

CLIP = Preprocessing(
    crop=1.0,
    mean=(0.48145466 * 255, 0.4578275 * 255, 0.40821073 * 255),
    std=(0.26862954 * 255, 0.26130258 * 255, 0.27577711 * 255),
)
"""OpenAI's CLIP."""

EFFICIENTNET_LITE = Preprocessing(crop=0.875, mean=(127.0,) * 3, std=(128.0,) * 3)
"""EfficientNet-Lite, made for integer inference: (pixel - 127) / 128."""
