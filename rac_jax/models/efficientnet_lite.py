"""EfficientNet-Lite: a small convolutional encoder that trains on a CPU.

Tan and Le 2019 without squeeze-and-excite and with ReLU6; the stem, the head and the number of blocks in the first and
last stage are the same at every scale.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models import layers, preprocessing
from rac_jax.models.convolution import BatchNormMode, ConvNorm, relu6

_EPSILON = 1e-3
_STEM_WIDTH = 32


@dataclasses.dataclass(frozen=True)
class Stage:
    """`blocks` blocks of one width; the first of them has the stride."""

    blocks: int
    size: int
    stride: int
    expansion: int
    width: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


def scaled_stages(width: float, depth: float) -> tuple[Stage, ...]:
    """The stages of a larger network: widths to the nearest multiple of 8, block counts up."""
    inner = range(1, len(STAGES) - 1)
    return tuple(
        dataclasses.replace(
            stage,
            width=_round_to_8(stage.width * width),
            blocks=math.ceil(stage.blocks * depth) if i in inner else stage.blocks,
        )
        for i, stage in enumerate(STAGES)
    )


def _round_to_8(width: float) -> int:
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded


def _blocks(stages: tuple[Stage, ...]) -> list[tuple[Stage, int]]:
    """Every block's stage and stride, in order."""
    return [(stage, stage.stride if i == 0 else 1) for stage in stages for i in range(stage.blocks)]


class Block(nnx.Module):
    """Inverted residual: 1 × 1 up, depthwise, 1 × 1 down; the sum where the shape stays."""

    def __init__(self, width_in: int, stage: Stage, stride: int, drop: float, **options: Any):
        wide = width_in * stage.expansion
        self.expand = ConvNorm(width_in, wide, 1, **options) if stage.expansion > 1 else None
        self.depthwise = ConvNorm(wide, wide, stage.size, stride=stride, depthwise=True, **options)
        self.project = ConvNorm(wide, stage.width, 1, **options)
        self.residual = stride == 1 and width_in == stage.width
        self.drop = drop

    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None) -> jax.Array:
        """[B, H, W, in] to [B, H / stride, W / stride, out]."""
        y = x if self.expand is None else relu6(self.expand(x, train=train))
        y = relu6(self.depthwise(y, train=train))
        y = self.project(y, train=train)
        return x + layers.drop_path(y, self.drop, keys) if self.residual else y


class EfficientNetLite(nnx.Module):
    """Images to the average of the last feature map, 1280-d."""

    entrance = ("stem",)  # what stands before the blocks

    def __init__(
        self,
        *,
        depth: int | None = None,
        stages: tuple[Stage, ...] = STAGES,
        feature_width: int = 1280,
        drop_path: float = 0.0,
        batch_norm: BatchNormMode = "frozen",
        remat: bool = False,
        preprocessing: preprocessing.Preprocessing = preprocessing.EFFICIENTNET_LITE,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Builds the network with fresh parameters.

        Args:
          depth: number of blocks that are kept, counted from the images; None for all of them. The features of a
            network that is cut off are the last kept block's output, without the 1280-d convolution above it.
          stages: widths, strides and block counts.
          feature_width: of the convolution above the blocks.
          drop_path: rate of stochastic depth, which grows from 0 in the first block.
          batch_norm: frozen, or update to train with the statistics of the batch.
          remat: recompute activations in the backward pass instead of keeping them.
          preprocessing: how images are prepared.
          dtype: of the products.
          rngs: random keys of the initial values.
        """
        total = sum(stage.blocks for stage in stages)
        if depth is not None and not 0 < depth <= total:
            raise ValueError(f"depth is {depth}; this network has 1 to {total} blocks")
        depth = depth or total
        options: dict[str, Any] = dict(padding="same", epsilon=_EPSILON, batch_norm=batch_norm, dtype=dtype, rngs=rngs)
        self.stem = ConvNorm(3, _STEM_WIDTH, 3, stride=2, **options)
        self.blocks: nnx.List[Block] = nnx.List()
        width = _STEM_WIDTH
        for stage, stride in _blocks(stages)[:depth]:
            drop = drop_path * len(self.blocks) / depth
            self.blocks.append(Block(width, stage, stride, drop, **options))
            width = stage.width
        self.top = ConvNorm(width, feature_width, 1, **options) if depth == total else None
        feature_width = feature_width if depth == total else width
        self.feature_width = feature_width
        self.preprocessing = preprocessing
        self.remat = remat
        self.dtype = dtype

    def __call__(self, images: jax.Array, *, train: bool = False, keys: jax.Array | None = None) -> jax.Array:
        """Normalised images [B, H, W, 3] to features [B, feature_width], float32."""
        return self.above(relu6(self.stem(images, train=train)), 0, train=train, keys=keys)

    def below(self, images: jax.Array, cut: int) -> jax.Array:
        """The output of the first `cut` blocks for normalised images: [B, H / s, W / s, width]."""
        x = relu6(self.stem(images, train=False))
        for block in list(self.blocks)[:cut]:
            x = block(x, train=False, keys=None)
        return x

    def above(self, x: jax.Array, cut: int, *, train: bool = False, keys: jax.Array | None = None) -> jax.Array:
        """The features of images for which the first `cut` blocks gave x: [B, feature_width], float32."""
        for i, block in list(enumerate(self.blocks))[cut:]:
            own = layers.fold_in(keys if train else None, i)
            x = layers.run_block(block, x, remat=self.remat, train=train, keys=own)
        if self.top is not None:
            x = relu6(self.top(x, train=train))
        return jnp.mean(x.astype(jnp.float32), axis=(1, 2))
