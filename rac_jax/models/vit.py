"""Vision transformers: AugReg's and timm's, CLIP's image tower, DINOv2's."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models import initialisers, layers, preprocessing
from rac_jax.models.transformer import Block


class ViT(nnx.Module):
    """Images to the class token after the final norm."""

    entrance = ("patch_embedding", "class_token", "position_embedding", "norm_before")  # what stands before the blocks

    def __init__(
        self,
        *,
        patch: int = 16,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        mlp_width: int = 0,
        activation: str = "gelu",
        epsilon: float = 1e-6,
        norm_before: bool = False,
        patch_bias: bool = True,
        layer_scale: float | None = None,
        projection: int = 0,
        adapter: int = 0,
        drop_path: float = 0.0,
        remat: bool = False,
        preprocessing: preprocessing.Preprocessing = preprocessing.HALF,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        """Fresh parameters.

        Args:
          patch: side of a patch in pixels; it divides the image size.
          width: of a token.
          depth: number of blocks.
          heads: of attention, in each block.
          mlp_width: of the hidden layer; 0 means 4 · width.
          activation: see `layers.activation`.
          epsilon: of all norms: 1e-6 for AugReg and timm, 1e-12 for Hugging Face's ViT, 1e-5 for CLIP.
          norm_before: a norm between the embedding and the first block, as CLIP has it.
          patch_bias: whether the patch embedding has a bias; CLIP's has none.
          layer_scale: first value of a learned scale per channel after attention and MLP (DINOv2); None for no scale.
          projection: width of a last linear layer without bias (CLIP); 0 for none.
          adapter: width of a trained layer beside each MLP (AdaptFormer); 0 for none.
          drop_path: rate of stochastic depth in the last block; the first has none.
          remat: recompute activations in the backward pass instead of keeping them.
          preprocessing: how images are prepared; its image size gives the number of positions.
          dtype: of the products.
          rngs: random keys of the initial values.
        """
        grid = _grid(preprocessing.image_size, patch)
        self.patch_embedding = layers.Dense(patch * patch * 3, width, bias=patch_bias, dtype=dtype, rngs=rngs)
        self.class_token = nnx.Param(initialisers.small(rngs.params(), (width,)))
        self.position_embedding = nnx.Param(initialisers.small(rngs.params(), (1 + grid * grid, width)))
        self.norm_before = layers.LayerNorm(width, epsilon=epsilon) if norm_before else None
        self.blocks = nnx.List(
            Block(
                width,
                heads,
                mlp_width or 4 * width,
                activation=activation,
                epsilon=epsilon,
                drop=drop,
                layer_scale=layer_scale,
                adapter=adapter,
                dtype=dtype,
                rngs=rngs,
            )
            for drop in layers.drop_rates(drop_path, depth)
        )
        self.final_norm = layers.LayerNorm(width, epsilon=epsilon)
        self.projection = layers.Dense(width, projection, bias=False, dtype=dtype, rngs=rngs) if projection else None
        self.feature_width = projection or width
        self.patch = patch
        self.preprocessing = preprocessing
        self.remat = remat
        self.dtype = dtype

    def __call__(self, images: jax.Array, *, train: bool = False, keys: jax.Array | None = None) -> jax.Array:
        """Normalised images [B, H, W, 3] to features [B, feature_width], float32."""
        return self.above(self.embed(images), 0, train=train, keys=keys)

    def below(self, images: jax.Array, cut: int) -> jax.Array:
        """The output of the first `cut` blocks for normalised images: [B, 1 + patches, width]."""
        x = self.embed(images)
        for block in list(self.blocks)[:cut]:
            x = block(x)
        return x

    def above(self, x: jax.Array, cut: int, *, train: bool = False, keys: jax.Array | None = None) -> jax.Array:
        """The features of images for which the first `cut` blocks gave x: [B, feature_width], float32."""
        for i, block in list(enumerate(self.blocks))[cut:]:
            pick = _class_token if i + 1 == len(self.blocks) else None
            own = layers.fold_in(keys if train else None, i)
            x = layers.run_block(block, x, remat=self.remat, keys=own, pick=pick)
        features = self.final_norm(x[:, 0])
        if self.projection is not None:
            features = self.projection(features)
        return features.astype(jnp.float32)

    def embed(self, images: jax.Array) -> jax.Array:
        """[B, H, W, 3] to the first block's input [B, 1 + patches, width]."""
        size = self.preprocessing.image_size
        if images.shape[1:] != (size, size, 3):
            raise ValueError(f"images of shape {images.shape}, but the model was made with image_size={size}")
        patches = self.patch_embedding(_patches(images, self.patch))
        first = jnp.broadcast_to(self.class_token[...][None, None, :], (images.shape[0], 1, patches.shape[-1]))
        x = jnp.concatenate([first.astype(self.dtype), patches], axis=1)
        x = x + self.position_embedding[...].astype(self.dtype)[None]
        return x if self.norm_before is None else self.norm_before(x)


def _class_token(tokens: jax.Array) -> jax.Array:
    return tokens[:, :1]


def _grid(image_size: int, patch: int) -> int:
    if image_size % patch:
        raise ValueError(f"image_size={image_size} is not a multiple of the patch size {patch}")
    return image_size // patch


def _patches(images: jax.Array, patch: int) -> jax.Array:
    """[B, H, W, 3] to [B, patches, patch · patch · 3]: row by row, and each patch row by row."""
    batch, height, width, channels = images.shape
    rows, columns = height // patch, width // patch
    x = images.reshape(batch, rows, patch, columns, patch, channels)
    return jnp.transpose(x, (0, 1, 3, 2, 4, 5)).reshape(batch, rows * columns, patch * patch * channels)
