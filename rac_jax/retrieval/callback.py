"""The compiled programs from images to neighbours: E, then `jax.pure_callback` into the host's lookup.

Also E alone, for lookups by a thread of the host, and E with the search on the devices.
"""

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from rac_jax import sharding
from rac_jax.memory import index
from rac_jax.memory.index import device
from rac_jax.retrieval.encoder import Encode, See
from rac_jax.retrieval.lookup import Lookup
from rac_jax.retrieval.snippets import Snippets

Retrieved = dict[str, jax.Array]  # tokens [B, T], rows [B, k], similarities [B, k], key [B, D]


def through_host(encode: Encode, lookup: Lookup, mesh: Mesh) -> Callable[..., Retrieved]:
    """`retrieve(parameters, images [B, S, S, 3] uint8, own [B] int32)`, sharded over the batch.

    Under shard_map each device looks up its own part of the batch: no image or key moves between
    devices, and each process searches its own copy of the index.
    """
    length, k = lookup.length, lookup.k

    def local(parameters: Any, images: jax.Array, own: jax.Array) -> Retrieved:
        keys = _keys(encode, parameters, images)
        batch = images.shape[0]
        shapes = (
            jax.ShapeDtypeStruct((batch, length), jnp.int32),
            jax.ShapeDtypeStruct((batch, k), jnp.int32),
            jax.ShapeDtypeStruct((batch, k), jnp.float32),
        )
        tokens, rows, similarities = jax.pure_callback(lookup.callback, shapes, keys, own)
        return {"tokens": tokens, "rows": rows, "similarities": similarities, "key": keys}

    return _over_the_batch(local, mesh, PartitionSpec(), batched=2)


def on_device(encode: Encode, lookup: Lookup, mesh: Mesh, dtype: str) -> Callable[..., Retrieved]:
    """The same function with the memory on the devices, its keys as `dtype`: no call to the host."""
    snippets = lookup.snippets
    texts: dict[str, Any] = {}
    if snippets is not None:
        texts |= {"text_of": lookup.memory.text_of, "tokens": snippets.tokens}
        texts |= {"starts": snippets.starts, "lengths": snippets.lengths}
    if lookup.same_image is not None:
        texts["same_image"] = lookup.same_image
    placed = sharding.put_replicated(mesh, {name: np.asarray(values, np.int32) for name, values in texts.items()})
    table = device.place(lookup.memory, mesh, lookup.fetched, dtype)
    return functools.partial(device_program(encode, lookup, mesh), table, placed)


def device_program(encode: Encode, lookup: Lookup, mesh: Mesh) -> Callable[..., Retrieved]:
    """What `on_device` calls, before the memory's keys and texts are bound to it as its first two arguments."""
    axes, snippets = mesh.axis_names, lookup.snippets

    def local(table: device.Table, texts: dict[str, jax.Array], parameters: Any, images: Any, own: Any) -> Retrieved:
        keys = _keys(encode, parameters, images)
        rows, similarities = device.search(table, keys, lookup.fetched, metric=lookup.metric, axes=axes)
        left_out = lookup.left_out(rows, own, jnp, texts.get("same_image"))
        rows, similarities = index.leave_out(rows, similarities, left_out, lookup.k, jnp)
        there = rows >= 0
        tokens = _join_on_device(snippets, texts, rows)
        return {"tokens": tokens, "rows": rows, "similarities": jnp.where(there, similarities, 0), "key": keys}

    return _over_the_batch(local, mesh, device.specs(mesh), PartitionSpec(), PartitionSpec(), batched=2)


def _join_on_device(snippets: Snippets | None, texts: dict[str, jax.Array], rows: jax.Array) -> jax.Array:
    """The texts of rows [B, k] as token sequences [B, T], from arrays on the devices."""
    if snippets is None:
        return jnp.zeros((rows.shape[0], 0), jnp.int32)
    arrays = {"tokens": texts["tokens"], "starts": texts["starts"], "lengths": texts["lengths"]}
    on_device = dataclasses.replace(snippets, **arrays)  # type: ignore[arg-type]  # arrays alone
    return on_device.join(jnp.where(rows >= 0, texts["text_of"][rows], -1), jnp)


def keys_only(encode: Encode | See, mesh: Mesh) -> Callable[..., Any]:
    """`keys(parameters, images)`: what `encode` gives, the keys of `through_host` bit for bit, without the lookup."""
    return _over_the_batch(
        lambda parameters, images: _keys(encode, parameters, images), mesh, PartitionSpec(), batched=1
    )


def search_on_host(lookup: Lookup, keys: jax.Array, own: np.ndarray) -> dict[str, np.ndarray]:
    """The answers of the callbacks of `through_host` for this process's keys [b, D], by threads of the host."""
    queries = sharding.shards_of_this_process(keys)
    if len(queries) == 1:  # by this thread: FAISS starts threads of its own for each new one
        found = [lookup.callback(queries[0], own)]
    else:
        with ThreadPoolExecutor(len(queries)) as threads:
            found = list(threads.map(lookup.callback, queries, np.split(own, len(queries))))
    tokens, rows, similarities = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return {"tokens": tokens, "rows": rows, "similarities": similarities}


def _keys(encode: Encode | See, parameters: Any, images: jax.Array) -> Any:
    """E's keys, behind a barrier: E gives the same bits, whichever program it is part of."""
    return jax.lax.optimization_barrier(jax.lax.stop_gradient(encode(parameters, images)))


def _over_the_batch(local: Callable, mesh: Mesh, *specs: Any, batched: int) -> Callable:
    """Compile `local` for each device: first arguments placed by `specs`, then `batched` ones split over the batch."""
    batch_axes = PartitionSpec(mesh.axis_names)
    in_specs = (*specs, *[batch_axes] * batched)
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=batch_axes, check_vma=False))
