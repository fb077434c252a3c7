"""How familiar an image is: are the rows near it as near as those around the memory's own images?

An image of a kind that the memory does not know has no near rows, and its answer should not be trusted.
"""

import numpy as np

from rac_jax.memory import index
from rac_jax.retrieval.lookup import Lookup

NEAREST = 3  # rows whose mean similarity is compared


def reference(lookup: Lookup) -> np.ndarray:
    """The mean similarity of some of the memory's images to their nearest rows, without themselves: [M], ascending."""
    some, memory = lookup.some_rows(), lookup.memory
    keys, k = np.asarray(memory.keys[some], np.float32), min(NEAREST, lookup.k)
    found = index.search(memory.index, keys, k + 1, lookup.ef_search, memory.allowed())
    rows, similarities = index.leave_out(*found, found[0] == some[:, None], k)
    return np.sort(_nearness(rows, similarities))


def shares(reference: np.ndarray, rows: np.ndarray, similarities: np.ndarray) -> np.ndarray:
    """The share of the memory's own images whose rows are no nearer than those of images [B, k]: [B], from 0 to 1."""
    k = min(NEAREST, rows.shape[1])
    return np.searchsorted(reference, _nearness(rows[:, :k], similarities[:, :k]), side="right") / len(reference)


def _nearness(rows: np.ndarray, similarities: np.ndarray) -> np.ndarray:
    """The mean similarity of the rows that were found, [B]; lowest where there are none."""
    there = rows >= 0
    total = np.where(there, similarities, 0).sum(axis=1, dtype=np.float64)
    return np.where(there.any(axis=1), total / np.maximum(there.sum(axis=1), 1), -np.inf)
