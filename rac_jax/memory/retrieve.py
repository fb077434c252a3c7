"""The retrieve program: images -> E -> keys -> host lookup -> tokens, one jitted call."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from rac_jax.memory.lookup import Lookup
from rac_jax.models.rac import ImageEncoder

Retrieved = dict[str, jax.Array]  # tokens [B, T], rows [B, k], similarities [B, k]
Encode = Callable[[Any, jax.Array], jax.Array]


def encoder_function(encoder: ImageEncoder) -> tuple[Encode, Any]:
    """E as a pure function of (parameters, uint8 images [B, S, S, 3]), and its parameters."""
    graph, state = nnx.split(encoder)

    def encode(parameters: Any, images: jax.Array) -> jax.Array:
        module = nnx.merge(graph, parameters)
        return module(module.preprocessing.normalise(images))

    return encode, nnx.to_pure_dict(state)


def create(encode: Encode, lookup: Lookup, mesh: Mesh) -> Callable[..., Retrieved]:
    """`retrieve(parameters, images [B, S, S, 3] uint8, own [B] int32)`, sharded over the batch.

    Under shard_map each device looks its own part of the batch up: no image or key moves between
    devices, and in a run of many processes each asks its own copy of the index.
    """
    length, k = lookup.snippets.tokenizer.length, lookup.k

    def local(parameters: Any, images: jax.Array, own: jax.Array) -> Retrieved:
        keys = jax.lax.stop_gradient(encode(parameters, images))
        batch = images.shape[0]
        shapes = (
            jax.ShapeDtypeStruct((batch, length), jnp.int32),
            jax.ShapeDtypeStruct((batch, k), jnp.int32),
            jax.ShapeDtypeStruct((batch, k), jnp.float32),
        )
        tokens, rows, similarities = jax.pure_callback(lookup.callback, shapes, keys, own)
        return {"tokens": tokens, "rows": rows, "similarities": similarities}

    batch_axes = PartitionSpec(mesh.axis_names)
    sharded = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(PartitionSpec(), batch_axes, batch_axes),
        out_specs=batch_axes,
        check_vma=False,
    )
    return jax.jit(sharded)
