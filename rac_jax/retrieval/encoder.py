"""E, the frozen image encoder that makes keys."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import models, sharding, weights
from rac_jax.models import convolution, cut
from rac_jax.models.preprocessing import Preprocessing
from rac_jax.models.rac import ImageEncoder, flat
from rac_jax.models.voices import unit
from rac_jax.weights import parameters as first_parameters

Encode = Callable[[Any, jax.Array], jax.Array]
See = Callable[[Any, jax.Array], dict[str, jax.Array]]  # as Encode, to `key` and `activation`


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """E: a pure function, and its parameters on every device."""

    encode: Encode  # (parameters, uint8 images [B, S, S, 3]) -> keys [B, width]
    parameters: Any
    preprocessing: Preprocessing
    width: int
    see: See | None = None  # the same with the output of the first `blocks`, where B starts from that
    blocks: int = 0


def load(config: ConfigDict, mesh: Mesh) -> Encoder:
    """E as `config.model.encoder` describes it. Batch norms are folded into the kernels once, here."""

    def make() -> Any:
        return models.from_config(config, "encoder", nnx.Rngs(0), image_size=config.data.image_size)

    module = nnx.eval_shape(make)
    places = jax.tree.map(lambda _: sharding.replicated(mesh), nnx.to_pure_dict(nnx.state(module)))
    read = weights.from_config(config, "encoder", module)
    (arrays,) = first_parameters.place(make, read, places)
    blocks = cut_of(config, module)
    if convolution.with_norms(module):
        graph = nnx.graphdef(module)

        def folded(arrays: Any) -> Any:
            return nnx.to_pure_dict(nnx.state(convolution.fold_norms(nnx.merge(graph, arrays))))

        arrays = jax.jit(folded, out_shardings=sharding.replicated(mesh))(arrays)
        module = nnx.eval_shape(convolution.fold_norms, module)
    see = seeing(module, blocks) if blocks else None
    return Encoder(as_function(module), arrays, module.preprocessing, module.feature_width, see, blocks)


def cut_of(config: ConfigDict, e: Any = None) -> int:
    """The number of first blocks that B shares with E: see models/cut.py. `e` are E's shapes, if they are known."""
    if not config.train.views or "base" not in configs.roles(config):
        return 0
    if e is not None and config.model.base.to_dict() == config.model.encoder.to_dict():
        return cut.of(config, e)
    sizes = {"image_size": config.data.image_size}
    return cut.of(config, nnx.eval_shape(lambda: models.from_config(config, "base", nnx.Rngs(0), **sizes)))


def as_function(module: ImageEncoder) -> Encode:
    """An image encoder as a pure function of (parameters, uint8 images [B, S, S, 3] or their crops [B, V, S, S, 3])."""
    graph = nnx.graphdef(module)

    def encode(parameters: Any, images: jax.Array) -> jax.Array:
        merged = nnx.merge(graph, parameters)
        if images.ndim == 4:
            return merged(merged.preprocessing.normalise(images))
        return mean_key(merged(merged.preprocessing.normalise(flat(images))), images.shape[1])

    return encode


def seeing(module: Any, blocks: int) -> See:
    """The same, and as `activation` [B, V, …] the output of the first blocks (V is 1 without crops)."""
    graph = nnx.graphdef(module)

    def see(parameters: Any, images: jax.Array) -> dict[str, jax.Array]:
        merged = nnx.merge(graph, parameters)
        crops = images if images.ndim == 5 else images[:, None]
        below = merged.below(merged.preprocessing.normalise(flat(crops)), blocks)
        keys = merged.above(below, blocks)
        key = keys if images.ndim == 4 else mean_key(keys, crops.shape[1])
        return {"key": key, "activation": below.reshape(*crops.shape[:2], *below.shape[1:])}

    return see


def mean_key(keys: jax.Array, crops: int) -> jax.Array:
    """One key for the crops of each image, [B · V, D] to [B, D]: the mean direction, of the mean length."""
    each = keys.reshape(-1, crops, keys.shape[1])
    length = jnp.sqrt(jnp.sum(each * each, axis=2)).mean(axis=1)
    return length[:, None] * unit(each).mean(axis=1)
