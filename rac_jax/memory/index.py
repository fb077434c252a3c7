"""Nearest keys, by FAISS. Similarity is larger for nearer keys, whatever the metric.

What an index is made of is its `spec`, which a memory keeps, so that it can grow and be rebuilt without a config.
"""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
from ml_collections import ConfigDict

METRICS = {"cosine": faiss.METRIC_INNER_PRODUCT, "l2": faiss.METRIC_L2}
CHUNK = 2**16  # keys that are converted to float32 at once

Spec = dict[str, Any]


def spec(config: ConfigDict) -> Spec:
    """What of the config decides an index's file; settings of the search are not among it."""
    memory = config.memory
    result: Spec = {"kind": memory.index, "metric": memory.metric}
    if memory.index == "hnsw":
        result |= {"m": memory.hnsw_m, "ef_construction": memory.ef_construction}
    return result


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows [N, D] scaled to length 1 (a zero row stays zero), float32."""
    vectors = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, np.finfo(np.float32).tiny)


def build(keys: np.ndarray, spec: Spec) -> faiss.Index:
    """An index of keys [N, D], of float32 or float16; for cosine they are scaled to unit length."""
    metric = METRICS[spec["metric"]]
    if spec["kind"] == "flat":
        index: faiss.Index = faiss.IndexFlat(keys.shape[1], metric)
    else:
        graph = faiss.IndexHNSWFlat(keys.shape[1], spec["m"], metric)
        graph.hnsw.efConstruction = spec["ef_construction"]
        index = graph
    return add(index, keys)


def add(index: faiss.Index, keys: np.ndarray) -> faiss.Index:
    """The index with further keys [M, D], which get the rows after its last."""
    cosine = index.metric_type == faiss.METRIC_INNER_PRODUCT
    for start in range(0, len(keys), CHUNK):
        chunk = np.asarray(keys[start : start + CHUNK], np.float32)
        index.add(unit(chunk) if cosine else chunk)
    return index


def search(
    index: faiss.Index, queries: np.ndarray, k: int, ef_search: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [B, k] int64 (−1 where there are no more) and similarities [B, k], nearest first.

    Only rows that are `allowed` [N] come back; None allows all.
    """
    if queries.shape[1] != index.d:
        raise ValueError(
            f"a query has {queries.shape[1]} numbers but the memory's keys have {index.d}: "
            "this memory was built with another encoder"
        )
    cosine = index.metric_type == faiss.METRIC_INNER_PRODUCT
    queries = np.ascontiguousarray(unit(queries) if cosine else queries, np.float32)
    selector = {} if allowed is None else {"sel": _selector(allowed)}
    if isinstance(index, faiss.IndexHNSW):
        params: Any = faiss.SearchParametersHNSW(efSearch=max(ef_search, k), **selector)  # type: ignore[attr-defined]
    else:
        params = faiss.SearchParameters(**selector)
    distances, rows = index.search(queries, k, params=params)
    return rows, distances if cosine else -distances


def _selector(allowed: np.ndarray) -> Any:
    bitmap: Any = np.packbits(allowed, bitorder="little")
    return faiss.IDSelectorBitmap(bitmap)  # type: ignore[call-arg]


def rows(index: faiss.Index) -> int:
    """How many keys it holds."""
    return index.ntotal


def write(index: faiss.Index, path: Path) -> None:
    """One file that `read` opens."""
    faiss.write_index(index, str(path))


def read(path: Path, keys: np.ndarray, spec: Spec, *, writable: bool = False) -> faiss.Index:
    """The index in a file, mapped where its kind allows and it is not to be added to.

    `keys` [N, D] and `spec` are those of its memory, for an index whose file leaves out what they hold.
    """
    del keys, spec
    return faiss.read_index(str(path), 0 if writable else faiss.IO_FLAG_MMAP)


def ef_search(config: ConfigDict) -> int:
    """How many candidates a search of the graph keeps."""
    return config.memory.ef_search or max(64, 4 * config.memory.k)
