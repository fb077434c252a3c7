"""How far the rows of a memory can be trusted: a row that is often near images of other classes counts less.

Every labelled row of the memory is looked up without itself. A row that was a wrong neighbour w times votes with the
weight 1 / (1 + w). The weights belong to the rows that are enabled now: after an edit they are computed again.
"""

from pathlib import Path

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax.memory import index
from rac_jax.memory.store import Memory
from rac_jax.retrieval import cached, retriever
from rac_jax.runtime import processes

BATCH = 1024  # rows that are looked up at once


def weights(config: ConfigDict, memory: Memory, cache: Path | None) -> np.ndarray | None:
    """The weight of each row's vote, [N] float32, kept in the folder `cache` if one is given.

    None if config.model.vote.reliability is 0.
    """
    near = config.model.vote.reliability
    if not near:
        return None
    made_of = retriever.recipe(config, memory) | {"reliability": near}
    find = lambda: {"wrong": wrong_neighbours(memory, near, index.ef_search(config))}  # noqa: E731
    if cache is None:
        found = find()
    else:
        found = cached.open_or_make(cache, "reliability", made_of, find, must_keep=False)  # it may be read-only
    return (1.0 / (1.0 + found["wrong"])).astype(np.float32)


def wrong_neighbours(memory: Memory, near: int, ef_search: int) -> np.ndarray:
    """How often each row is one of the `near` nearest of a row with another label: [N] int64."""
    allowed, labels = memory.allowed(), memory.label_of
    asked = np.flatnonzero(labels >= 0 if allowed is None else allowed & (labels >= 0))
    wrong = np.zeros(len(memory), np.int64)
    shown = {"desc": "memory: reliability", "unit": "batch", "disable": not processes.first()}
    for start in tqdm(range(0, len(asked), BATCH), **shown):
        some = asked[start : start + BATCH]
        keys = np.asarray(memory.keys[some], np.float32)
        found = index.search(memory.index, keys, near + 1, max(ef_search, near + 1), allowed)
        rows = index.leave_out(*found, found[0] == some[:, None], near)[0]
        others = (rows >= 0) & (labels[rows] >= 0) & (labels[rows] != labels[some][:, None])
        np.add.at(wrong, rows[others], 1)
    return wrong
