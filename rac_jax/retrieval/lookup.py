"""Keys in, the neighbours' rows and tokens out: the part of retrieval that runs on the host."""

import dataclasses
import os
import threading
import time
from typing import Any

import faiss
import jax
import numpy as np

from rac_jax.memory import index
from rac_jax.memory.store import Memory
from rac_jax.retrieval.snippets import Snippets

# Instead of a query's own row: it is not in this memory; or nothing is left out for it.
NO_ROW, KEEP_ALL = -1, -2

# To measure how many texts fit: keys that may be read, and the least and most images that are looked up.
SAMPLED_KEYS, SAMPLE = 10_000_000, (16, 256)

MOST_SPARE = 128  # rows that are fetched beyond k, to be left out; an image with more copies may have fewer neighbours


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The neighbours of a batch, nearest first. A missing neighbour has row −1 and similarity 0."""

    tokens: np.ndarray  # [B, T] int32
    rows: np.ndarray  # [B, k] int32
    similarities: np.ndarray  # [B, k] float32


class LookupFailed(RuntimeError):
    """A lookup inside a compiled program went wrong; the cause says how."""


@dataclasses.dataclass
class Lookup:
    """Looks up neighbours in a memory.

    `callback` is for compiled programs. It never raises: an exception in one device's callback would
    leave the others waiting in a collective until the process aborts. It answers "no neighbours" and
    keeps the exception, which `check` raises on the host.
    """

    memory: Memory
    snippets: Snippets | None  # None if no voice reads texts; then there are no tokens
    k: int
    ef_search: int
    exclude: str  # what a training query leaves out: id | first | none
    same_image: np.ndarray | None = None  # [N] int32: with exclude=id, rows of one image have the same number

    def __post_init__(self) -> None:
        spare = 1
        if self.same_image is not None:
            spare = min(int(np.bincount(self.same_image).max()), MOST_SPARE)
        self.fetched = self.k + spare  # rows to search for, so that k are left
        self._failure: Exception | None = None
        self._seconds, self._calls = 0.0, 0
        self._lock = threading.Lock()
        # The callbacks of all devices run at the same time and share the cores.
        self._threads = max(1, (os.cpu_count() or 1) // jax.local_device_count())

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return 0 if self.snippets is None else self.snippets.tokenizer.length

    @property
    def metric(self) -> str:
        return self.memory.index.spec["metric"]

    def search(self, queries: np.ndarray, own: np.ndarray) -> Neighbours:
        """Neighbours of queries [B, D]; `own` [B] are the rows of the queries' own images (see NO_ROW)."""
        rows, similarities = index.search(
            self.memory.index, queries, self.fetched, self.ef_search, self.memory.allowed()
        )
        rows, similarities = index.leave_out(rows, similarities, self.left_out(rows, own), self.k)
        return Neighbours(
            self.tokens(rows),
            rows.astype(np.int32),
            np.where(rows < 0, 0, similarities).astype(np.float32),
        )

    def tokens(self, rows: np.ndarray) -> np.ndarray:
        """The texts of rows [B, k] as one sequence each, [B, T]."""
        return np.zeros((len(rows), 0), np.int32) if self.snippets is None else self.snippets.join(self._texts(rows))

    def longest(self, rows: np.ndarray) -> int:
        """Tokens of the longest of the sequences of rows [B, k]."""
        return 0 if self.snippets is None else self.snippets.longest(self._texts(rows))

    def fitting(self, rows: np.ndarray) -> np.ndarray:
        """How many of the texts of rows [B, k] fit into a sequence, [B]."""
        assert self.snippets is not None
        return self.snippets.fitting(self._texts(rows))

    def mean_fitting(self) -> float:
        """How many of the k texts T reads uncut, on average over some of the memory's own images."""
        some = self.some_rows()
        keys = np.asarray(self.memory.keys[some], np.float32)
        return float(self.fitting(self.search(keys, some).rows).mean())

    def some_rows(self) -> np.ndarray:
        """Rows that a search may return, evenly spaced, few enough to be looked up at start-up: [M] int32."""
        allowed = self.memory.allowed()
        rows = np.arange(len(self.memory)) if allowed is None else np.flatnonzero(allowed)
        number = np.clip(SAMPLED_KEYS // max(len(rows), 1), *SAMPLE) if len(rows) else 0
        return rows[np.unique(np.linspace(0, len(rows) - 1, number).astype(int))].astype(np.int32)

    def _texts(self, rows: np.ndarray) -> np.ndarray:
        return np.where(rows < 0, -1, self.memory.text_of[rows])

    def left_out(self, rows: Any, own: Any, xp: Any = np, same_image: Any = None) -> Any:
        """Which of the rows found [B, K] each query leaves out, [B, K] bool.

        `xp` is numpy, or jax.numpy where the lookup is on the devices; then `same_image` is the array there.
        """
        own = own[:, None]
        if self.exclude == "first":
            return (xp.arange(rows.shape[1])[None, :] == 0) & (own != KEEP_ALL)
        if self.exclude == "none":
            return xp.zeros(rows.shape, bool)
        mine = rows == own
        if self.same_image is not None:
            images = self.same_image if same_image is None else same_image
            mine |= (images[rows] == images[xp.maximum(own, 0)]) & (rows >= 0)  # index −1 reads a value that is masked
        return mine & (own >= 0)

    def callback(self, queries: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, ...]:
        """`search` for `jax.pure_callback`: arrays, and no exception."""
        started = time.perf_counter()
        faiss.omp_set_num_threads(self._threads)  # holds for the calling thread only
        try:
            found = self.search(np.asarray(queries), np.asarray(own))
        except Exception as error:
            self._failure = self._failure or error
            found = self._nothing(len(queries))
        with self._lock:
            self._seconds += time.perf_counter() - started
            self._calls += 1
        return found.tokens, found.rows, found.similarities

    def check(self) -> None:
        """Raise what went wrong inside a callback since the last check, if anything did."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise LookupFailed(f"the lookup in {self.memory.folder} failed: {failure}") from failure

    def take_milliseconds(self) -> float:
        """Mean time of a callback since this was last called."""
        with self._lock:
            seconds, calls = self._seconds, self._calls
            self._seconds, self._calls = 0.0, 0
        return 1e3 * seconds / max(calls, 1)

    def _nothing(self, batch: int) -> Neighbours:
        none = np.full((batch, self.k), -1, np.int32)
        return Neighbours(self.tokens(none), none, np.zeros((batch, self.k), np.float32))
