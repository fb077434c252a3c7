"""Nearest keys. Similarity is larger for nearer keys, whatever the metric.

flat, hnsw, hnsw_sq, ivf_sq and ivf_rabitq are FAISS's (faiss_index.py), milvus is a server (milvus.py), and device is
not an index: the accelerators compare every key (device.py). auto is flat while there are few rows, then hnsw.

The settings of an index are its `spec`. The memory stores them, so the index can grow and be rebuilt without a config.
"""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ml_collections import ConfigDict

from rac_jax.memory.index import faiss_index, milvus
from rac_jax.memory.index.faiss_index import FaissIndex
from rac_jax.memory.index.left_out import leave_out as leave_out

FLAT_UP_TO = 10_000  # rows, for "auto"

Spec = dict[str, Any]


class Index(Protocol):
    """Finds rows by their keys."""

    spec: Spec

    @property
    def width(self) -> int:
        """Numbers in a key."""
        ...

    def __len__(self) -> int:
        """How many keys it holds."""
        ...

    def find(
        self, queries: np.ndarray, k: int, ef_search: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]: ...

    def add(self, every: np.ndarray) -> None: ...

    def write(self, path: Path) -> None:
        """One file that `read` opens."""
        ...


def spec(config: ConfigDict) -> Spec:
    """The settings of the config that define an index; settings of the search are not included."""
    memory = config.memory
    kind = "flat" if memory.index == "device" else memory.index  # the devices only need the keys of a memory
    result: Spec = {"kind": kind, "metric": memory.metric}
    if kind in ("hnsw", "hnsw_sq", "milvus", "auto"):
        result |= {"m": memory.hnsw_m, "ef_construction": memory.ef_construction}
    if kind == "milvus":
        result["uri"] = memory.milvus_uri
    return result


def precision(config: ConfigDict) -> str:
    """The type of the stored keys."""
    if config.memory.precision != "auto":
        return config.memory.precision
    return "float16" if config.memory.index in ("hnsw_sq", "ivf_sq", "ivf_rabitq") else "float32"


def ef_search(config: ConfigDict) -> int:
    """How many candidates a search of the graph keeps."""
    return config.memory.ef_search or max(64, 4 * config.memory.k)


def unit(vectors: Any, xp: Any = np) -> Any:
    """Rows [N, D] scaled to length 1 (a zero row stays zero), float32. `xp` is numpy, or jax.numpy."""
    vectors = xp.asarray(vectors, np.float32)
    norms = xp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / xp.maximum(norms, np.finfo(np.float32).tiny)


def build(keys: np.ndarray, spec: Spec) -> Index:
    """An index of keys [N, D] in stored form: float32 or float16, of unit length for cosine."""
    if spec["kind"] == "milvus":
        return milvus.build(keys, spec)
    return faiss_index.build(keys, _faiss_kind(spec, len(keys)), spec)


def read(path: Path, keys: np.ndarray, spec: Spec, *, writable: bool = False) -> Index:
    """The index in a file over its memory's keys [N, D]; mapped, unless it is to be added to."""
    if spec["kind"] == "milvus":
        return milvus.read(path, keys, spec)
    return faiss_index.read(path, keys, _faiss_kind(spec, len(keys)), spec, writable=writable)


def _faiss_kind(spec: Spec, rows: int) -> str:
    if spec["kind"] != "auto":
        return spec["kind"]
    return "flat" if rows <= FLAT_UP_TO else "hnsw"


def add(index: Index, every: np.ndarray) -> Index:
    """The index with further keys: those of `every` [N, D], in stored form, that come after its last one."""
    rows = len(index), len(every)
    outgrown = len({_faiss_kind(index.spec, number) for number in rows}) > 1
    if isinstance(index, FaissIndex) and (outgrown or not len(index)):  # without keys, it has no centres of lists
        return build(every, index.spec)
    index.add(every)
    return index


def search(
    index: Index, queries: np.ndarray, k: int, ef_search: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [B, k] int64 (−1 where there are no more) and similarities [B, k], nearest first.

    Only `allowed` [N] rows are returned; None allows all. If at least k rows are allowed, k are returned.
    """
    if queries.shape[1] != index.width:
        raise ValueError(
            f"a query has {queries.shape[1]} numbers but the memory's keys have {index.width}: "
            "this memory was built with another encoder"
        )
    queries = unit(queries) if index.spec["metric"] == "cosine" else queries
    return index.find(np.ascontiguousarray(queries, np.float32), k, ef_search, allowed)
