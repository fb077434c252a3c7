"""E, the frozen image encoder that makes keys."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rac_jax import models, sharding, weights
from rac_jax.models import convolution
from rac_jax.models.preprocessing import Preprocessing
from rac_jax.models.rac import ImageEncoder
from rac_jax.weights import parameters as first_parameters

Encode = Callable[[Any, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """E: a pure function, and its parameters on every device."""

    encode: Encode  # (parameters, uint8 images [B, S, S, 3]) -> keys [B, width]
    parameters: Any
    preprocessing: Preprocessing
    width: int


def load(config: ConfigDict, mesh: Mesh) -> Encoder:
    """E as `config.model.encoder` describes it. Batch norms are folded into the kernels once, here."""

    def make() -> Any:
        return models.from_config(config, "encoder", nnx.Rngs(0), image_size=config.data.image_size)

    module = nnx.eval_shape(make)
    places = jax.tree.map(lambda _: sharding.replicated(mesh), nnx.to_pure_dict(nnx.state(module)))
    read = weights.from_config(config, "encoder", module)
    (arrays,) = first_parameters.place(make, read, places)
    if convolution.with_norms(module):
        graph = nnx.graphdef(module)

        def folded(arrays: Any) -> Any:
            return nnx.to_pure_dict(nnx.state(convolution.fold_norms(nnx.merge(graph, arrays))))

        arrays = jax.jit(folded, out_shardings=sharding.replicated(mesh))(arrays)
        module = nnx.eval_shape(lambda: convolution.fold_norms(make()))
    return Encoder(as_function(module), arrays, module.preprocessing, module.feature_width)


def as_function(module: ImageEncoder) -> Encode:
    """An image encoder as a pure function of (parameters, uint8 images [B, S, S, 3])."""
    graph = nnx.graphdef(module)

    def encode(parameters: Any, images: jax.Array) -> jax.Array:
        merged = nnx.merge(graph, parameters)
        return merged(merged.preprocessing.normalise(images))

    return encode
