"""Exact search on the accelerators: keys split over the mesh, one matrix product, top-k, tokens; no callback."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rac_jax import sharding
from rac_jax.memory import index
from rac_jax.memory import lookup as lookups
from rac_jax.memory.lookup import Lookup

CHUNK = 2**17  # keys of a device that are compared at once: what bounds the scores that it holds

# What the program reads of a memory: name -> array on the mesh. `keys` [N', D] and `bias` [N'] are split by rows, which
# are padded to fill all devices; the rest is on every device.
Table = dict[str, jax.Array]


def place(lookup: Lookup, mesh: Mesh, dtype: str) -> Table:
    """The memory of a lookup on the mesh, its keys as `dtype`."""
    memory, snippets = lookup.memory, lookup.snippets
    per_device = -(-max(len(memory), lookup.k + 1) // mesh.size)
    if per_device > CHUNK:
        per_device = -(-per_device // CHUNK) * CHUNK
    rows, width = per_device * mesh.size, memory.keys.shape[1]
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def keys(part: Any) -> np.ndarray:
        padded = np.zeros((per_device, width), jnp.dtype(dtype))
        stored = memory.keys[part[0]]  # fewer at the memory's end
        padded[: len(stored)] = stored
        return padded

    def bias(part: Any) -> np.ndarray:
        return _bias(lookup, part[0], per_device, dtype)

    everywhere = {"text_of": memory.text_of, "tokens": snippets.tokens}
    everywhere |= {"starts": snippets.starts, "lengths": snippets.lengths}
    return {
        "keys": jax.make_array_from_callback((rows, width), split, keys),
        "bias": jax.make_array_from_callback((rows,), split, bias),
        **sharding.put_replicated(mesh, {name: np.asarray(values, np.int32) for name, values in everywhere.items()}),
    }


def _bias(lookup: Lookup, rows: slice, number: int, dtype: str) -> np.ndarray:
    """What is added to a query's products with these rows: −∞ where a row may not come back, −|key|² for L2."""
    keys, allowed = lookup.memory.keys[rows], lookup.memory.allowed()
    bias = np.full(number, -np.inf, np.float32)
    bias[: len(keys)] = 0
    if lookup.metric == "l2":
        for start in range(0, len(keys), CHUNK):
            part = keys[start : start + CHUNK].astype(jnp.dtype(dtype)).astype(np.float32)  # as the devices see them
            bias[start : start + len(part)] = -np.square(part).sum(axis=1)
    if allowed is not None:
        bias[: len(keys)][~allowed[rows]] = -np.inf
    return bias


def specs(mesh: Mesh) -> dict[str, PartitionSpec]:
    """How shard_map hands a table to the devices."""
    split = dict.fromkeys(("keys", "bias"), PartitionSpec(mesh.axis_names))
    return split | dict.fromkeys(("text_of", "tokens", "starts", "lengths"), PartitionSpec())


def search(lookup: Lookup, table: Table, queries: jax.Array, own: jax.Array, axes: tuple[str, ...]) -> dict[str, Any]:
    """`Lookup.search` inside a shard_map over `axes`: each device's part of the batch [b, D] and of the table.

    Every device compares the whole batch with its own rows; then each gathers the best of all rows for its part of
    the batch. Among equals the lower row comes first.
    """
    cosine = lookup.metric == "cosine"
    queries = index.unit(queries, jnp) if cosine else queries
    whole_batch = jax.lax.all_gather(queries, axes, tiled=True)
    scores, rows = _nearest(whole_batch, table["keys"], table["bias"], lookup.k + 1, factor=1.0 if cosine else 2.0)
    rows = rows + jax.lax.axis_index(axes) * table["keys"].shape[0]
    scores, rows = (_to_the_askers(values, axes) for values in (scores, rows))
    scores, rank = jax.lax.top_k(scores, lookup.k + 1)
    rows = jnp.where(jnp.isneginf(scores), -1, jnp.take_along_axis(rows, rank, axis=1))
    scores = scores if cosine else scores - jnp.square(queries).sum(axis=1, keepdims=True)
    rows, scores = lookups.drop_one(rows, scores, lookup.dropped(rows, own, jnp), jnp)
    missing = rows < 0
    texts = jnp.where(missing, -1, table["text_of"][rows])
    tokens, starts, lengths = table["tokens"], table["starts"], table["lengths"]
    snippets = dataclasses.replace(lookup.snippets, tokens=tokens, starts=starts, lengths=lengths)
    return {"tokens": snippets.join(texts, jnp), "rows": rows, "similarities": jnp.where(missing, 0, scores)}


def _nearest(
    queries: jax.Array, keys: jax.Array, bias: jax.Array, k: int, *, factor: float
) -> tuple[jax.Array, jax.Array]:
    """The best k of a device's rows for each query: scores and rows, [B, k]."""
    k, chunk = min(k, len(keys)), min(len(keys), CHUNK)

    def compare(
        best: tuple[jax.Array, jax.Array], part: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        some, added, first = part
        products = jax.lax.dot_general(
            queries.astype(some.dtype),
            some,
            (((1,), (1,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        scores, places = jax.lax.top_k(factor * products + added[None, :], k)
        scores = jnp.concatenate([best[0], scores], axis=1)
        rows = jnp.concatenate([best[1], places + first], axis=1)
        scores, rank = jax.lax.top_k(scores, k)
        return (scores, jnp.take_along_axis(rows, rank, axis=1)), None

    none = jnp.full((len(queries), k), -jnp.inf, jnp.float32), jnp.full((len(queries), k), -1, jnp.int32)
    parts = keys.reshape(-1, chunk, keys.shape[1]), bias.reshape(-1, chunk), jnp.arange(0, len(keys), chunk, jnp.int32)
    return jax.lax.scan(compare, none, parts)[0]


def _to_the_askers(values: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """[B, k] of this device's rows -> [b, devices · k] of all rows, for this device's part of the batch."""
    devices = jax.lax.axis_size(axes)
    by_asker = values.reshape(devices, -1, values.shape[1])
    by_device = jax.lax.all_to_all(by_asker, axes, split_axis=0, concat_axis=0)
    return by_device.transpose(1, 0, 2).reshape(by_asker.shape[1], -1)
