"""Exact search on the accelerators: keys split over the mesh, one matrix product, top-k; no callback."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rac_jax.memory import index
from rac_jax.memory.store import Memory

CHUNK = 2**17  # keys of a device that are compared at once; bounds the memory for scores

# A memory's rows on the mesh: `keys` [N', D] and `bias` [N'], split by rows, which are padded to fill all devices.
Table = dict[str, jax.Array]


def place(memory: Memory, mesh: Mesh, k: int, dtype: str) -> Table:
    """The rows of a memory on the mesh, at least k of them, keys as `dtype`."""
    per_device = rows_per_device(max(len(memory), k), mesh.size)
    rows, width = per_device * mesh.size, memory.keys.shape[1]
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def keys(shard: Any) -> np.ndarray:
        padded = np.zeros((per_device, width), jnp.dtype(dtype))
        stored = memory.keys[shard[0]]  # fewer at the memory's end
        padded[: len(stored)] = stored
        return padded

    def bias(shard: Any) -> np.ndarray:
        return _bias(memory, shard[0], per_device, dtype)

    return {
        "keys": jax.make_array_from_callback((rows, width), split, keys),
        "bias": jax.make_array_from_callback((rows,), split, bias),
    }


def rows_per_device(rows: int, devices: int) -> int:
    """How many rows each device holds, padding included."""
    each = -(-rows // devices)
    return each if each <= CHUNK else -(-each // CHUNK) * CHUNK


def _bias(memory: Memory, rows: slice, number: int, dtype: str) -> np.ndarray:
    """What is added to a query's products with these rows: −∞ where a row may not be returned, −|key|² for L2."""
    keys, allowed = memory.keys[rows], memory.allowed()
    bias = np.full(number, -np.inf, np.float32)
    bias[: len(keys)] = 0
    if memory.recipe["index"]["metric"] == "l2":
        for start in range(0, len(keys), CHUNK):
            some = keys[start : start + CHUNK].astype(jnp.dtype(dtype)).astype(np.float32)  # as the devices see them
            bias[start : start + len(some)] = -np.square(some).sum(axis=1)
    if allowed is not None:
        bias[: len(keys)][~allowed[rows]] = -np.inf
    return bias


def specs(mesh: Mesh) -> dict[str, PartitionSpec]:
    """How shard_map hands a table to the devices."""
    return dict.fromkeys(("keys", "bias"), PartitionSpec(mesh.axis_names))


def search(
    table: Table, queries: jax.Array, k: int, *, metric: str, axes: tuple[str, ...]
) -> tuple[jax.Array, jax.Array]:
    """Rows and similarities [b, k], inside a shard_map over `axes`: each device has its queries [b, D] and its rows.

    Every device compares the whole batch with its own rows; then each gathers the best of all rows for its own
    queries. Among equals the lower row comes first. A missing row is −1.
    """
    cosine = metric == "cosine"
    queries = index.unit(queries, jnp) if cosine else queries
    gathered = jax.lax.all_gather(queries, axes, tiled=True)
    scores, rows = _nearest(gathered, table["keys"], table["bias"], k, factor=1.0 if cosine else 2.0)
    rows = rows + jax.lax.axis_index(axes) * table["keys"].shape[0]
    scores, rows = (_to_their_queries(values, axes) for values in (scores, rows))
    scores, rank = jax.lax.top_k(scores, k)
    rows = jnp.where(jnp.isneginf(scores), -1, jnp.take_along_axis(rows, rank, axis=1))
    return rows, scores if cosine else scores - jnp.square(queries).sum(axis=1, keepdims=True)


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


def _to_their_queries(values: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """[B, k] of this device's rows -> [b, devices · k] of all rows, for this device's queries."""
    devices = jax.lax.axis_size(axes)
    by_query = values.reshape(devices, -1, values.shape[1])
    by_device = jax.lax.all_to_all(by_query, axes, split_axis=0, concat_axis=0)
    return by_device.transpose(1, 0, 2).reshape(by_query.shape[1], -1)
