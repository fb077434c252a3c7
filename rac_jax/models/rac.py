"""RAC: the base and the retrieval branch, and the fusion of their logits."""

import functools
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from rac_jax.models import initialisers
from rac_jax.models.preprocessing import Preprocessing

Logits = dict[str, jax.Array]  # by branch: rac (when both are there), base, retrieval; [B, L] float32

COSINE_SCALE = 30.0  # of a cosine head's logits


class ImageEncoder(Protocol):
    """B or E: normalised images [B, S, S, 3] -> features [B, feature_width] float32."""

    feature_width: int
    preprocessing: Preprocessing

    def __call__(self, images: jax.Array, *, train: bool = False, keys: jax.Array | None = None) -> jax.Array: ...


class TextEncoder(Protocol):
    """T: token ids [B, T] -> features [B, feature_width] float32."""

    feature_width: int

    def __call__(self, tokens: jax.Array) -> jax.Array: ...


class RAC(nnx.Module):
    """B with a head, T with a head, or both, fused.

    The heads compute in float32 and their logits are the branches' own answers: with `cosine`, scaled
    cosines between the features and a vector for each class.
    """

    def __init__(
        self,
        base: ImageEncoder | None,
        text: TextEncoder | None,
        *,
        num_classes: int,
        scale: str = "sqrt",
        cosine: bool = False,
        rngs: nnx.Rngs,
    ):
        if base is None and text is None:
            raise ValueError("RAC needs a base encoder, a text encoder, or both")
        self.base = base
        self.text = text
        self.fixed_scale = fusion_scale(scale, num_classes)
        head = CosineHead if cosine else functools.partial(nnx.Linear, kernel_init=initialisers.xavier)
        if base is not None:
            self.base_head = head(base.feature_width, num_classes, rngs=rngs)
        if text is not None:
            self.text_head = head(text.feature_width, num_classes, rngs=rngs)
        if scale == "learned" and base is not None and text is not None:
            self.logit_scale = nnx.Param(jnp.log(jnp.float32(self.fixed_scale)))

    @property
    def output(self) -> str:
        """The branch whose logits are trained and evaluated."""
        if self.base is None:
            return "retrieval"
        return "base" if self.text is None else "rac"

    def __call__(
        self,
        images: jax.Array,
        tokens: jax.Array | None,
        *,
        train: bool = False,
        keys: jax.Array | None = None,
    ) -> Logits:
        """Logits by branch for uint8 images [B, S, S, 3] and token ids [B, T]."""
        logits: Logits = {}
        if self.base is not None:
            features = self.base(self.base.preprocessing.normalise(images), train=train, keys=keys)
            logits["base"] = self.base_head(features)
        if self.text is not None:
            assert tokens is not None, "the retrieval branch reads tokens"
            logits["retrieval"] = self.text_head(self.text(tokens))
        if self.output == "rac":
            logits["rac"] = fuse(logits["retrieval"], logits["base"], self.scale())
        return logits

    def probabilities(self, logits: Logits) -> Logits:
        """Probabilities by branch. In RAC only the direction of a branch's logits matters, at the fused scale."""
        if self.output == "rac":
            alone = {name: self.scale() * _unit(logits[name]) for name in ("base", "retrieval")}
            logits = {"rac": logits["rac"], **alone}
        return {name: jax.nn.softmax(values) for name, values in logits.items()}

    def scale(self) -> jax.Array:
        """The factor of the sum of the two unit vectors."""
        if hasattr(self, "logit_scale"):
            return jnp.exp(self.logit_scale[...])
        return jnp.float32(self.fixed_scale)


class CosineHead(nnx.Module):
    """COSINE_SCALE times the cosines between features [B, D] and one vector a class, [B, L]."""

    def __init__(self, width: int, num_classes: int, *, rngs: nnx.Rngs):
        self.kernel = nnx.Param(initialisers.xavier(rngs.params(), (width, num_classes)))

    def __call__(self, features: jax.Array) -> jax.Array:
        return COSINE_SCALE * (_unit(features) @ _unit(self.kernel[...], axis=0))


def fusion_scale(scale: str, num_classes: int) -> float:
    """L / 2 as the paper has it, or √L / 2, which is also where a learned scale starts."""
    return num_classes / 2 if scale == "paper" else num_classes**0.5 / 2


def fuse(retrieval: jax.Array, base: jax.Array, scale: jax.Array) -> jax.Array:
    """scale · (retrieval / |retrieval| + base / |base|), [B, L]."""
    return scale * (_unit(retrieval) + _unit(base))


def _unit(vectors: jax.Array, axis: int = -1) -> jax.Array:
    squares = jnp.sum(vectors * vectors, axis=axis, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))  # all zeros stay zeros
