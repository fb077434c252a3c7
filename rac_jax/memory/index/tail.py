"""Rows that were added one by one are compared exactly, until they are many enough to be indexed: an edit is cheap."""

import dataclasses
from typing import Any

import numpy as np


def longest(indexed: int) -> int:
    """How many rows an index of so many may leave to the tail."""
    return max(1024, indexed // 64)


@dataclasses.dataclass
class WithTail:
    """An index, and the keys of the rows after those that it holds."""

    indexed: Any  # see index.Index
    keys: np.ndarray  # [M, D] in stored form

    def __post_init__(self) -> None:
        self._seen: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def spec(self) -> dict[str, Any]:
        return self.indexed.spec

    @property
    def width(self) -> int:
        return self.indexed.width

    def __len__(self) -> int:
        return len(self.indexed) + len(self.keys)

    def find(
        self, queries: np.ndarray, k: int, ef_search: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `index.search`."""
        first = len(self.indexed)
        rows, near = self.indexed.find(queries, k, ef_search, self._of_index(allowed))
        also = _similarities(queries, np.asarray(self.keys, np.float32), self.spec["metric"])
        if allowed is not None:
            also[:, ~allowed[first:]] = -np.inf
        near = np.concatenate([np.where(rows < 0, -np.inf, near), also], axis=1)
        tail = np.broadcast_to(np.arange(first, len(self)), also.shape)
        rows = np.concatenate([rows, tail], axis=1)
        order = np.argsort(-near, axis=1, kind="stable")[:, :k]
        rows, near = np.take_along_axis(rows, order, axis=1), np.take_along_axis(near, order, axis=1)
        return np.where(np.isneginf(near), -1, rows), near

    def _of_index(self, allowed: np.ndarray | None) -> np.ndarray | None:
        """The part for the index; the same array at each call, which the index relies on."""
        if allowed is None:
            return None
        seen = self._seen  # several threads may search
        if seen is None or seen[0] is not allowed:
            seen = self._seen = allowed, allowed[: len(self.indexed)]
        return seen[1]

    def add(self, keys: np.ndarray) -> None:
        raise NotImplementedError("rows are added to the index alone")

    def write(self, path: Any) -> None:
        raise NotImplementedError("the index is written alone")


def _similarities(queries: np.ndarray, keys: np.ndarray, metric: str) -> np.ndarray:
    """Similarities [B, M] of queries [B, D] and keys [M, D]; of unit length for cosine."""
    products = queries @ keys.T
    if metric == "cosine":
        return products
    return 2 * products - (keys**2).sum(axis=1)[None] - (queries**2).sum(axis=1, keepdims=True)
