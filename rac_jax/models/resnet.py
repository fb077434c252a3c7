"""ResNet with bottleneck blocks as timm defines it, and its "d" variant."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rac_jax.models import layers, preprocessing
from rac_jax.models.convolution import BatchNormMode, ConvNorm

_EXPANSION = 4
_EPSILON = 1e-5


class Bottleneck(nnx.Module):
    """1 × 1 down, 3 × 3 with the stride, 1 × 1 up, added to the input or to its projection to the new shape."""

    def __init__(self, width_in: int, width: int, stride: int, *, average_shortcut: bool, drop: float, **options: Any):
        width_out = width * _EXPANSION
        self.conv1 = ConvNorm(width_in, width, 1, **options)
        self.conv2 = ConvNorm(width, width, 3, stride=stride, **options)
        self.conv3 = ConvNorm(width, width_out, 1, **options)
        self.pooled = average_shortcut and stride > 1
        reshaped = stride > 1 or width_in != width_out
        shortcut_stride = 1 if average_shortcut else stride
        self.shortcut = ConvNorm(width_in, width_out, 1, stride=shortcut_stride, **options) if reshaped else None
        self.drop = drop

    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None) -> jax.Array:
        """[B, H, W, in] to [B, ⌈H / stride⌉, ⌈W / stride⌉, 4 · width]."""
        y = jax.nn.relu(self.conv1(x, train=train))
        y = jax.nn.relu(self.conv2(y, train=train))
        y = layers.drop_path(self.conv3(y, train=train), self.drop, keys)
        if self.shortcut is not None:
            x = self.shortcut(average_pairs(x) if self.pooled else x, train=train)
        return jax.nn.relu(x + y)


class ResNet(nnx.Module):
    """Images to the average of the last feature map, 2048-d for the published sizes."""

    def __init__(
        self,
        *,
        blocks: tuple[int, ...] = (3, 4, 6, 3),
        widths: tuple[int, ...] = (64, 128, 256, 512),
        stem_widths: tuple[int, ...] = (64,),
        average_shortcut: bool = False,
        drop_path: float = 0.0,
        batch_norm: BatchNormMode = "frozen",
        remat: bool = False,
        preprocessing: preprocessing.Preprocessing = preprocessing.IMAGENET,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Fresh parameters.

        Args:
          blocks: number in each stage.
          widths: of the 3 × 3 convolutions in each stage; a block's output is four times as wide.
          stem_widths: one for a 7 × 7 convolution; several for as many 3 × 3 ones (the "d" variant).
          average_shortcut: shortcuts average 2 × 2 pixels instead of taking every second one (the "d" variant).
          drop_path: rate of stochastic depth in the last block; the first has none.
          batch_norm: "frozen" running statistics, or "update" with the batch's while training.
          remat: recompute activations in the backward pass instead of keeping them.
          preprocessing: how images are prepared.
          dtype: of the products.
          rngs: random keys of the initial values.
        """
        options: dict[str, Any] = {
            "padding": "symmetric",
            "epsilon": _EPSILON,
            "batch_norm": batch_norm,
            "dtype": dtype,
            "rngs": rngs,
        }
        size = 7 if len(stem_widths) == 1 else 3
        self.stem: nnx.List[ConvNorm] = nnx.List()
        width = 3
        for i, stem_width in enumerate(stem_widths):
            self.stem.append(ConvNorm(width, stem_width, size, stride=2 if i == 0 else 1, **options))
            width = stem_width
        drops = iter(layers.drop_rates(drop_path, sum(blocks)))
        self.stages: nnx.List[nnx.List[Bottleneck]] = nnx.List()
        for stage, (count, stage_width) in enumerate(zip(blocks, widths, strict=True)):
            self.stages.append(nnx.List())
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                block = Bottleneck(
                    width, stage_width, stride, average_shortcut=average_shortcut, drop=next(drops), **options
                )
                self.stages[-1].append(block)
                width = stage_width * _EXPANSION
        self.feature_width = width
        self.average_shortcut = average_shortcut
        self.preprocessing = preprocessing
        self.remat = remat
        self.dtype = dtype

    def __call__(self, images: jax.Array, *, train: bool = False, keys: jax.Array | None = None) -> jax.Array:
        """Normalised images [B, H, W, 3] to features [B, feature_width], float32."""
        return jnp.mean(self.feature_map(images, train=train, keys=keys).astype(jnp.float32), axis=(1, 2))

    def feature_map(self, images: jax.Array, *, train: bool = False, keys: jax.Array | None = None) -> jax.Array:
        """[B, H, W, 3] to the last stage's output [B, H / 32, W / 32, feature_width]."""
        x = images
        for convolution in self.stem:
            x = jax.nn.relu(convolution(x, train=train))
        x = max_pool(x)
        number = 0
        for stage in self.stages:
            for block in stage:
                own = layers.fold_in(keys if train else None, number)
                x = layers.run_block(block, x, remat=self.remat, train=train, keys=own)
                number += 1
        return x


def max_pool(x: jax.Array) -> jax.Array:
    """The largest of 3 × 3 pixels at every second one, [B, H, W, C] to [B, ⌈H / 2⌉, ⌈W / 2⌉, C]."""
    lowest = np.asarray(-np.inf, x.dtype)
    pads = ((0, 0), (1, 1), (1, 1), (0, 0))
    return jax.lax.reduce_window(x, lowest, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)


def average_pairs(x: jax.Array) -> jax.Array:
    """The mean of each 2 × 2 pixels, or of fewer at an odd border: [B, H, W, C] to [B, ⌈H / 2⌉, ⌈W / 2⌉, C]."""
    batch, height, width, channels = x.shape
    rows, columns = -(-height // 2), -(-width // 2)
    padded = jnp.pad(x, ((0, 0), (0, 2 * rows - height), (0, 2 * columns - width), (0, 0)))
    sums = jnp.sum(padded.reshape(batch, rows, 2, columns, 2, channels), axis=(2, 4))
    present = np.outer(np.minimum(2, height - 2 * np.arange(rows)), np.minimum(2, width - 2 * np.arange(columns)))
    return sums * jnp.asarray(1.0 / present, x.dtype)[None, :, :, None]
