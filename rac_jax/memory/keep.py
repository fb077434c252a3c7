"""Asking only a part of a memory, to see what its content is worth: some rows, some classes, some of each class."""

from collections.abc import Mapping

import numpy as np

from rac_jax.config import ConfigError
from rac_jax.memory.store import Memory

KNOWN = ("share", "classes", "per_class")


def rows(memory: Memory, part: Mapping[str, float], seed: int) -> np.ndarray:
    """The rows to keep, [N] bool, drawn by the seed: of those that are enabled, first classes, then rows."""
    unknown = set(part) - set(KNOWN)
    if unknown or not all(number > 0 for number in part.values()):
        raise ConfigError(
            f"config.memory.keep is {dict(part)}; it is made of share and classes (as 0.5) and per_class (as 5)"
        )
    random = np.random.default_rng(seed)
    allowed = memory.allowed()
    kept = np.ones(len(memory), bool) if allowed is None else allowed.copy()
    distinct, class_of_text = np.unique(np.array(list(memory.texts)), return_inverse=True)
    classes = class_of_text[memory.text_of]
    if "classes" in part:
        chosen = random.permutation(len(distinct))[: round(part["classes"] * len(distinct))]
        kept &= np.isin(classes, chosen)
    order = random.permutation(np.flatnonzero(kept))
    if "share" in part:
        order = order[: round(part["share"] * len(order))]
    if "per_class" in part:
        order = order[_rank_in_class(classes[order]) < part["per_class"]]
    result = np.zeros(len(memory), bool)
    result[order] = True
    return result


def _rank_in_class(classes: np.ndarray) -> np.ndarray:
    """How many of the same class come before each, [M]."""
    order = np.argsort(classes, kind="stable")
    ordered = classes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(ordered)])
    rank = np.empty(len(classes), np.int64)
    rank[order] = np.arange(len(classes)) - np.repeat(starts, counts)
    return rank
