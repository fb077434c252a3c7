"""From images to neighbours: E and the lookup in one jitted call, or apart, with the lookup on a thread of the host."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from rac_jax import sharding
from rac_jax.memory import on_device
from rac_jax.memory.lookup import Lookup
from rac_jax.models.rac import ImageEncoder

Retrieved = dict[str, jax.Array]  # tokens [B, T], rows [B, k], similarities [B, k]
Encode = Callable[[Any, jax.Array], jax.Array]


def encoder_function(encoder: ImageEncoder) -> Encode:
    """E as a pure function of (parameters, uint8 images [B, S, S, 3])."""
    graph = nnx.graphdef(encoder)

    def encode(parameters: Any, images: jax.Array) -> jax.Array:
        module = nnx.merge(graph, parameters)
        return module(module.preprocessing.normalise(images))

    return encode


def create(encode: Encode, lookup: Lookup, mesh: Mesh) -> Callable[..., Retrieved]:
    """`retrieve(parameters, images [B, S, S, 3] uint8, own [B] int32)`, sharded over the batch.

    Under shard_map each device looks its own part of the batch up: no image or key moves between
    devices, and in a run of many processes each asks its own copy of the index.
    """
    length, k = lookup.snippets.tokenizer.length, lookup.k

    def local(parameters: Any, images: jax.Array, own: jax.Array) -> Retrieved:
        keys = _keys(encode, parameters, images)
        batch = images.shape[0]
        shapes = (
            jax.ShapeDtypeStruct((batch, length), jnp.int32),
            jax.ShapeDtypeStruct((batch, k), jnp.int32),
            jax.ShapeDtypeStruct((batch, k), jnp.float32),
        )
        tokens, rows, similarities = jax.pure_callback(lookup.callback, shapes, keys, own)
        return {"tokens": tokens, "rows": rows, "similarities": similarities}

    return _over_the_batch(local, mesh, PartitionSpec(), batched=2)


def create_on_device(encode: Encode, lookup: Lookup, mesh: Mesh, dtype: str) -> Callable[..., Retrieved]:
    """The same function, with the memory on the devices, its keys as `dtype`: the host is not asked."""

    def local(table: on_device.Table, parameters: Any, images: jax.Array, own: jax.Array) -> Retrieved:
        return on_device.search(lookup, table, _keys(encode, parameters, images), own, mesh.axis_names)

    program = _over_the_batch(local, mesh, on_device.specs(mesh), PartitionSpec(), batched=2)
    return functools.partial(program, on_device.place(lookup, mesh, dtype))


def create_keys(encode: Encode, mesh: Mesh) -> Callable[..., jax.Array]:
    """`keys(parameters, images)`: what `create` asks the memory for, bit for bit, without asking."""
    return _over_the_batch(
        lambda parameters, images: _keys(encode, parameters, images), mesh, PartitionSpec(), batched=1
    )


def search_on_host(lookup: Lookup, keys: jax.Array, own: np.ndarray) -> dict[str, np.ndarray]:
    """What `create`'s callbacks would answer for this process's keys [b, D]: the same calls, by threads of the host."""
    queries = sharding.parts_of_this_process(keys)
    with ThreadPoolExecutor(len(queries)) as threads:
        found = list(threads.map(lookup.callback, queries, np.split(own, len(queries))))
    tokens, rows, similarities = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return {"tokens": tokens, "rows": rows, "similarities": similarities}


def _keys(encode: Encode, parameters: Any, images: jax.Array) -> jax.Array:
    """E's keys, fenced off: whatever follows, E is compiled alike and gives the same bits."""
    return jax.lax.optimization_barrier(jax.lax.stop_gradient(encode(parameters, images)))


def _over_the_batch(local: Callable, mesh: Mesh, *specs: Any, batched: int) -> Callable:
    """`local` on each device, compiled: arguments placed as `specs` say, then so many that are split by the batch."""
    batch_axes = PartitionSpec(mesh.axis_names)
    in_specs = (*specs, *[batch_axes] * batched)
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=batch_axes, check_vma=False))
