"""Use only a part of a memory, to measure the value of its content: some rows, some classes, some rows per class."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from ml_collections import ConfigDict

from rac_jax.memory.store import Memory


def part_of(memory: Memory, keep: ConfigDict, seed: int) -> Memory:
    """The memory with only the rows that config.memory.keep describes: the memory itself if that is all of them."""
    if keep.classes == keep.share == 1 and not keep.per_class:
        return memory
    return dataclasses.replace(memory, kept=rows(memory, keep, seed))


def rows(memory: Memory, keep: Mapping[str, float], seed: int) -> np.ndarray:
    """The rows to keep, [N] bool, drawn by the seed from those that are enabled: first classes, then rows."""
    random = np.random.default_rng(seed)
    allowed = memory.allowed()
    kept = np.ones(len(memory), bool) if allowed is None else allowed.copy()
    classes = _class_of(memory)
    if keep["classes"] < 1:
        distinct = np.unique(classes[kept])
        chosen = random.permutation(len(distinct))[: round(keep["classes"] * len(distinct))]
        kept &= np.isin(classes, distinct[chosen])
    order = random.permutation(np.flatnonzero(kept))
    if keep["share"] < 1:
        order = order[: round(keep["share"] * len(order))]
    if keep["per_class"]:
        order = order[_rank_in_class(classes[order]) < keep["per_class"]]
    result = np.zeros(len(memory), bool)
    result[order] = True
    return result


def _class_of(memory: Memory) -> np.ndarray:
    """A number for each row, [N]: its label's or, where it has none, its text's, in the order of their names."""
    names = [*((name, 0) for name in memory.class_names), *((text, 1) for text in memory.texts)]
    place = {name: number for number, name in enumerate(sorted(set(names)))}
    numbers = np.array([place[name] for name in names], np.int64)
    known = len(memory.class_names)
    return numbers[np.where(memory.label_of < 0, known + memory.text_of, memory.label_of)]


def _rank_in_class(classes: np.ndarray) -> np.ndarray:
    """How many of the same class come before each, [M]."""
    order = np.argsort(classes, kind="stable")
    ordered = classes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(ordered)])
    rank = np.empty(len(classes), np.int64)
    rank[order] = np.arange(len(classes)) - np.repeat(starts, counts)
    return rank
