"""Copies of the training images in other sources: a training query must not find its own label there."""

from typing import Any

import numpy as np
from absl import logging
from tqdm import tqdm

from rac_jax.memory import index
from rac_jax.memory.store import Memory

FIRST, MOST = 4, 16_384  # copies to search for per image: at first, and at most
FOUND = 4096  # rows that are compared at once


def groups(memory: Memory, fingerprint: str, threshold: float, ef_search: int) -> np.ndarray | None:
    """[N] int32: rows of the same image have the same number; None if no training image has a copy.

    Two rows are of the same image if one is of the training split with this fingerprint, the other of another source,
    and the cosine of their keys is above the threshold (0: nothing is). Stored keys are compared, not queries, so that
    copies are known however training augments an image.
    """
    own = memory.rows_of(fingerprint)
    if not threshold or own is None:
        return None
    found = pairs(memory, memory.keys[own], own, threshold, ef_search)
    return _connected(found + np.array([[own.start, 0]]), len(memory)) if len(found) else None


def own_rows(pairs: np.ndarray, labels: np.ndarray, memory: Memory, row_label: np.ndarray) -> tuple[Any, Any]:
    """The own rows of images whose split is not in the memory, and the groups of rows of the same image.

    Args:
      pairs: [P, 2], an image and a row with its key.
      labels: [N], the class of each image.
      memory: that the rows are in.
      row_label: [R], the class of each row; one of the image's class is preferred as its own.

    Returns:
      [N] int32, −1 for none, and [R] int32 as `groups`.
    """
    images, rows = pairs.T
    order = np.lexsort((row_label[rows] != labels[images], images))
    known, first = np.unique(images[order], return_index=True)
    own = np.full(len(labels), -1, np.int32)
    own[known] = rows[order][first]
    return own, _connected(np.stack([own[images], rows], axis=1), len(memory))


def alike(group: np.ndarray, labels: np.ndarray, enabled: np.ndarray) -> np.ndarray:
    """How many enabled rows have the image and the label of each row, [N].

    A copy with another label, or with none, is not among the rows of the image's class.
    """
    _, kind = np.unique(np.stack([group, labels]), axis=1, return_inverse=True)
    return np.bincount(kind, enabled)[kind]


def _others(memory: Memory, own: slice | None) -> np.ndarray:
    """The rows of other sources that a search may return, [R] bool."""
    allowed = memory.allowed()
    others = np.ones(len(memory), bool) if allowed is None else allowed.copy()
    if own is not None:
        others[own] = False
    return others


def pairs(memory: Memory, keys: np.ndarray, own: slice | None, threshold: float, ef_search: int) -> np.ndarray:
    """Pairs of an image, by its place in `keys` [N, D], and an enabled copy of it that is not in `own`, [P, 2]."""
    others, result = _others(memory, own), [np.zeros((0, 2), np.int64)]
    most = min(int(others.sum()), MOST)
    asked, k = np.arange(len(keys)), min(FIRST, most)
    while len(asked) and k:
        full, size = [], max(1, FOUND // k)
        for start in tqdm(range(0, len(asked), size), desc="memory: copies", disable=len(asked) < 20 * size):
            images = asked[start : start + size]
            queries = np.asarray(keys[images], np.float32)
            found, _ = index.search(memory.index, queries, k, max(ef_search, k), others)
            same = (found >= 0) & (_cosines(queries, np.asarray(memory.keys[found], np.float32)) > threshold)
            place, rank = np.nonzero(same)
            result.append(np.stack([images[place], found[place, rank]], axis=1))
            full.append(images[same.all(axis=1)])  # all of the found rows are copies, so there may be more
        asked, k = np.concatenate(full), min(4 * k, most) if k < most else 0
    if len(asked) and most < others.sum():
        logging.warning("%d of the training images have more than %d copies: some are not left out", len(asked), most)
    found = np.concatenate(result)
    if len(found):
        number = len(np.unique(found[:, 0]))
        logging.warning("%d of the training images have copies in other sources; training leaves these out", number)
    return found


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
