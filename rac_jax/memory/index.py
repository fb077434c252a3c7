"""Nearest keys, by FAISS. Similarity is larger for nearer keys, whatever the metric."""

import faiss
import numpy as np
from ml_collections import ConfigDict

METRICS = {"cosine": faiss.METRIC_INNER_PRODUCT, "l2": faiss.METRIC_L2}


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows [N, D] scaled to length 1 (a zero row stays zero), float32."""
    vectors = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, np.finfo(np.float32).tiny)


def build(keys: np.ndarray, config: ConfigDict) -> faiss.Index:
    """An index of keys [N, D]; for cosine the keys are scaled to unit length."""
    memory = config.memory
    metric = METRICS[memory.metric]
    if memory.index == "flat":
        index: faiss.Index = faiss.IndexFlat(keys.shape[1], metric)
    else:
        graph = faiss.IndexHNSWFlat(keys.shape[1], memory.hnsw_m, metric)
        graph.hnsw.efConstruction = memory.ef_construction
        index = graph
    index.add(unit(keys) if memory.metric == "cosine" else np.asarray(keys, np.float32))
    return index


def search(index: faiss.Index, queries: np.ndarray, k: int, ef_search: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [B, k] int64 (−1 where there are no more) and similarities [B, k], nearest first."""
    if queries.shape[1] != index.d:
        raise ValueError(
            f"a query has {queries.shape[1]} numbers but the memory's keys have {index.d}: "
            "this memory was built with another encoder"
        )
    cosine = index.metric_type == faiss.METRIC_INNER_PRODUCT
    queries = np.ascontiguousarray(unit(queries) if cosine else queries, np.float32)
    params = None
    if isinstance(index, faiss.IndexHNSW):
        params = faiss.SearchParametersHNSW(efSearch=max(ef_search, k))  # type: ignore[attr-defined]
    distances, rows = index.search(queries, k, params=params)
    return rows, distances if cosine else -distances


def ef_search(config: ConfigDict) -> int:
    """How many candidates a search of the graph keeps."""
    return config.memory.ef_search or max(64, 4 * config.memory.k)
