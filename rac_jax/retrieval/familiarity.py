"""How familiar an image is: are the rows near it as near as those around held-out images?

Held-out images are some of the split val, whose keys training keeps in the run's folder. A run without them holds out
some of the memory's own images in turn. A published E has seen neither. An E that was trained for the data
(config.tune) has seen the memory's images: without a split val, answers of such a run have no familiarity. An image of
a kind that the memory does not know has no near rows, and its answer should not be trusted.
"""

from pathlib import Path

import numpy as np

from rac_jax.memory import index
from rac_jax.retrieval.lookup import Lookup
from rac_jax.runtime import files

FILE = "held_out.npy"
NEAREST = 3  # rows whose mean similarity is compared
MOST = 256  # held-out images
FEWEST = 50  # of the split val; with fewer, the memory's own images say more


def reference(lookup: Lookup, held_out: np.ndarray | None = None) -> np.ndarray:
    """The mean similarity of held-out images to their nearest rows: [M], ascending; those without are left out.

    Args:
      lookup: in the memory as it is now.
      held_out: keys [M, D] of images that are not in the memory; None to hold out some of the memory's own in turn.
    """
    if held_out is not None and not len(held_out):
        return np.zeros(0)
    memory, k = lookup.memory, min(NEAREST, lookup.k)
    if held_out is not None:
        found = index.search(memory.index, np.asarray(held_out, np.float32), k, lookup.ef_search, memory.allowed())
        return _sorted(_nearness(*found))
    some = lookup.some_rows()
    keys = np.asarray(memory.keys[some], np.float32)
    found = index.search(memory.index, keys, k + 1, lookup.ef_search, memory.allowed())
    rows, similarities = index.leave_out(*found, found[0] == some[:, None], k)
    return _sorted(_nearness(rows, similarities))


def _sorted(nearness: np.ndarray) -> np.ndarray:
    return np.sort(nearness[np.isfinite(nearness)])


def shares(reference: np.ndarray, rows: np.ndarray, similarities: np.ndarray) -> np.ndarray | None:
    """The share of the held-out images whose rows are no nearer than those of images [B, k]: [B], from 0 to 1.

    None without held-out images, as where the memory has a single row.
    """
    if not len(reference):
        return None
    k = min(NEAREST, rows.shape[1])
    return np.searchsorted(reference, _nearness(rows[:, :k], similarities[:, :k]), side="right") / len(reference)


def _nearness(rows: np.ndarray, similarities: np.ndarray) -> np.ndarray:
    """The mean similarity of the rows that were found, [B]; lowest where there are none."""
    there = rows >= 0
    total = np.where(there, similarities, 0).sum(axis=1, dtype=np.float64)
    return np.where(there.any(axis=1), total / np.maximum(there.sum(axis=1), 1), -np.inf)


def write(workdir: Path, keys: np.ndarray) -> None:
    """Keep the keys [M, D] of held-out images with a run."""
    with files.atomic(workdir / FILE) as temporary, temporary.open("wb") as file:
        np.save(file, keys.astype(np.float32))


def read(workdir: Path, width: int) -> np.ndarray | None:
    """The keys [M, width] of a run's held-out images, if it has them."""
    path = workdir / FILE
    if not path.exists():
        return None
    try:
        keys = np.load(path, allow_pickle=False)
        if keys.ndim != 2 or keys.shape[1] != width or not len(keys) or not np.isfinite(keys).all():
            raise ValueError(f"an array of {keys.shape}, not of keys with {width} numbers")
    except (EOFError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to compare with the memory's own images") from error
    return keys
