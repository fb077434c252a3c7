"""Checks of a memory: its files against their checksums, and its index against exact search."""

import dataclasses
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rac_jax.memory import classes, columns, index, manifest, store, thumbnails
from rac_jax.memory.manifest import BadMemory, Manifest, Source
from rac_jax.memory.store import Memory

CHUNK = 2**15  # keys that are compared with the queries at once


def problems(folder: Path) -> list[str]:
    """Everything that is wrong with the folder's files; reads every byte."""
    found = manifest.read(folder)
    try:
        keys = store.map_keys(folder, found)
    except (BadMemory, FileNotFoundError) as error:
        return [str(error)]
    result = []
    for source, rows in tqdm(list(found.slices()), desc="check", unit="source", leave=False):
        if source.is_gap:
            continue
        kept = [file for file in (source.columns, source.classes, source.thumbnails) if file is not None]
        damaged = [problem for file in kept for problem in _problems_of_file(folder, file)]
        if store.sha256(keys[rows]) != source.keys_sha256:
            damaged.append(f"{folder / found.keys}: the keys of {source.name} are damaged (checksum)")
        result += damaged or _problems_of_columns(folder, found, source, keys[rows])
    if found.index is not None:
        result += _problems_of_file(folder, found.index)
    return result


def _problems_of_file(folder: Path, file: manifest.File) -> list[str]:
    path = folder / file.name
    if not path.exists():
        return [f"{path} is missing"]
    return [] if store.described(path) == file else [f"{path} is damaged (checksum)"]


def _problems_of_columns(folder: Path, found: Manifest, source: Source, keys: np.ndarray) -> list[str]:
    """Every row has a text, a reference and a label of the class table, and the class sums are those of the keys."""
    assert source.columns is not None and source.classes is not None
    try:
        table = columns.read(folder / source.columns.name, source.rows, len(found.class_names))
        kept = store.read_sums(folder, found, source)
        if source.thumbnails is not None:
            thumbnails.read(folder / source.thumbnails.name, source.rows)
    except (BadMemory, FileNotFoundError) as error:
        return [str(error)]
    present = source.present_rows() if source.removed else slice(None)
    counted = classes.of_rows(columns.labels_of(table)[present], keys[present])
    same = np.array_equal(kept.labels, counted.labels) and np.array_equal(kept.counts, counted.counts)
    if same and np.allclose(kept.sums, counted.sums, rtol=1e-9, atol=1e-9):
        return []
    return [f"{folder / source.classes.name}: the class sums of {source.name} are not those of its rows"]


@dataclasses.dataclass(frozen=True)
class Quality:
    """How an index compares with exact search, for some of the memory's own keys."""

    queries: int
    k: int
    recall: float  # share of the k nearest other rows that the index finds
    found_itself: float  # share of the queries that find their own row
    index_ms: float  # a query
    exact_ms: float


def quality(memory: Memory, *, k: int, ef_search: int, queries: int, seed: int = 0) -> Quality:
    """Measure the index on a sample of the rows that may be returned."""
    allowed = memory.allowed()
    candidates = np.arange(len(memory)) if allowed is None else np.flatnonzero(allowed)
    k = min(k, len(candidates) - 1)
    if k < 1:
        raise BadMemory(f"the memory in {memory.folder} has {len(candidates)} enabled rows: too few to search")
    rows = np.sort(np.random.default_rng(seed).choice(candidates, min(queries, len(candidates)), replace=False))
    asked = np.asarray(memory.keys[rows], np.float32)
    started = time.perf_counter()
    found, _ = index.search(memory.index, asked, k + 1, ef_search, allowed)
    between = time.perf_counter()
    nearest = exact(memory, asked, k + 1)
    finished = time.perf_counter()
    itself = (found == rows[:, None]).any(axis=1)
    found, nearest = (index.leave_out(near, near, near == rows[:, None], k)[0] for near in (found, nearest))
    least = _similarities(memory, asked, nearest).min(axis=1, keepdims=True)
    hits = (found >= 0) & (_similarities(memory, asked, found) >= least - 1e-6)  # equally near rows count as found
    return Quality(
        queries=len(rows),
        k=k,
        recall=float(hits.mean()),
        found_itself=float(itself.mean()),
        index_ms=1e3 * (between - started) / len(rows),
        exact_ms=1e3 * (finished - between) / len(rows),
    )


def exact(memory: Memory, queries: np.ndarray, k: int) -> np.ndarray:
    """The k nearest of the rows that may be returned, [B, k], by comparing with every key."""
    allowed = memory.allowed()
    best = np.full((len(queries), 0), 0.0, np.float32)
    rows = np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(memory), CHUNK):
        near = _compare(memory, queries, np.asarray(memory.keys[start : start + CHUNK], np.float32))
        if allowed is not None:
            near[:, ~allowed[start : start + CHUNK]] = -np.inf
        best = np.concatenate([best, near], axis=1)
        rows = np.concatenate([rows, np.broadcast_to(np.arange(start, start + near.shape[1]), near.shape)], axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]
        best, rows = np.take_along_axis(best, order, axis=1), np.take_along_axis(rows, order, axis=1)
    return np.where(np.isfinite(best), rows, -1)


def _compare(memory: Memory, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Similarities [B, M]."""
    products = queries @ keys.T
    if memory.recipe["index"]["metric"] == "cosine":
        return products
    return 2 * products - (keys**2).sum(axis=1) - (queries**2).sum(axis=1, keepdims=True)


def _similarities(memory: Memory, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Similarities of each query to its own rows [B, k]: [B, k]."""
    return np.stack(
        [
            _compare(memory, query[None], np.asarray(memory.keys[mine], np.float32))[0]
            for query, mine in zip(queries, rows, strict=True)
        ]
    )
