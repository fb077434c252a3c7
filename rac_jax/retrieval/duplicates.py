"""Copies of the training images in other sources: a training query must not find its own label there."""

import numpy as np
from absl import logging
from tqdm import tqdm

from rac_jax.memory import index
from rac_jax.memory.store import Memory

BATCH = 1024  # rows that are looked up at once
FIRST, MOST = 4, 64  # copies to search for per image: at first, and at most


def groups(memory: Memory, fingerprint: str, threshold: float, ef_search: int) -> np.ndarray | None:
    """[N] int32: rows of the same image have the same number; None if no training image has a copy.

    Two rows are of the same image if one is of the training split with this fingerprint, the other of another source,
    and the cosine of their keys is above the threshold (0: nothing is). Stored keys are compared, not queries, so that
    copies are known however training augments an image.
    """
    own = memory.rows_of(fingerprint)
    if not threshold or own is None or (others := _others(memory, own)) is None:
        return None
    pairs = _pairs(memory, own, others, threshold, ef_search)
    if not len(pairs):
        return None
    images = len(np.unique(pairs[:, 0]))
    logging.warning("%d of the training images have copies in other sources; training leaves these out", images)
    return _connected(pairs, len(memory))


def alike(group: np.ndarray, labels: np.ndarray, enabled: np.ndarray) -> np.ndarray:
    """How many enabled rows have the image and the label of each row, [N].

    A copy with another label, or with none, is not among the rows of the image's class.
    """
    _, kind = np.unique(np.stack([group, labels]), axis=1, return_inverse=True)
    return np.bincount(kind, enabled)[kind]


def _others(memory: Memory, own: slice) -> np.ndarray | None:
    """The rows of other sources that a search may return, [N] bool; None if there are none."""
    allowed = memory.allowed()
    others = np.ones(len(memory), bool) if allowed is None else allowed.copy()
    others[own] = False
    return others if others.any() else None


def _pairs(memory: Memory, own: slice, others: np.ndarray, threshold: float, ef_search: int) -> np.ndarray:
    """Pairs of a training row and a copy of it, [P, 2]."""
    result = [np.zeros((0, 2), np.int64)]
    asked, k = np.arange(own.start, own.stop), FIRST
    while len(asked) and k <= MOST:
        full = []
        for start in tqdm(range(0, len(asked), BATCH), desc="memory: copies", disable=len(asked) < 20 * BATCH):
            rows = asked[start : start + BATCH]
            keys = np.asarray(memory.keys[rows], np.float32)
            found, _ = index.search(memory.index, keys, k, max(ef_search, k), others)
            same = (found >= 0) & (_cosines(keys, np.asarray(memory.keys[found], np.float32)) > threshold)
            place, rank = np.nonzero(same)
            result.append(np.stack([rows[place], found[place, rank]], axis=1))
            full.append(rows[same.all(axis=1)])  # all of the found rows are copies, so there may be more
        asked, k = np.concatenate(full), 4 * k
    return np.concatenate(result)


def _connected(pairs: np.ndarray, rows: int) -> np.ndarray:
    """[rows] int32: rows that pairs [P, 2] connect get one number, the lowest row's."""
    group = np.arange(rows, dtype=np.int32)
    while True:
        lowest = group[pairs].min(axis=1)
        if (group[pairs] == lowest[:, None]).all():
            return group
        np.minimum.at(group, pairs, lowest[:, None])


def _cosines(keys: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Cosines between keys [B, D] and others [B, k, D]: [B, k]."""
    shape = others.shape
    return np.einsum("bd,bkd->bk", index.unit(keys), index.unit(others.reshape(-1, shape[-1])).reshape(shape))
