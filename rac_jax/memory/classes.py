"""The classes of a source: how many rows each has, and the sum of their keys. Class means are computed from these.

A source keeps its own counts and sums, so a source that is added, hidden or removed is an addition or a subtraction,
and no key is read again.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from rac_jax.memory.manifest import BadMemory

NO_LABEL = -1
CHUNK = 2**14  # keys that are added up at once


@dataclasses.dataclass(frozen=True)
class ClassSums:
    """Counts and sums of the classes that some rows have; rows without a label are left out."""

    labels: np.ndarray  # [c] int32, ascending: numbers in the memory's class table
    counts: np.ndarray  # [c] int64
    sums: np.ndarray  # [c, D] float64


def of_rows(labels: np.ndarray, keys: np.ndarray) -> ClassSums:
    """For labels [N] and stored keys [N, D]."""
    present, counts = np.unique(labels[labels != NO_LABEL], return_counts=True)
    sums = np.zeros((len(present), keys.shape[1]), np.float64)
    for start in range(0, len(labels), CHUNK):
        some = labels[start : start + CHUNK]
        order = np.argsort(some, kind="stable")
        order = order[np.count_nonzero(some == NO_LABEL) :]  # −1 comes first
        if len(order):
            found, first = np.unique(some[order], return_index=True)
            added = np.asarray(keys[start : start + CHUNK], np.float64)[order]
            sums[np.searchsorted(present, found)] += np.add.reduceat(added, first)
    return ClassSums(present.astype(np.int32), counts.astype(np.int64), sums)


def none(width: int) -> ClassSums:
    """Of no rows."""
    return ClassSums(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros((0, width), np.float64))


def changed(sums: ClassSums, label: int, key: np.ndarray, by: int) -> ClassSums:
    """The counts and sums after a row with this stored key [D] is added (`by` = 1) or removed (−1)."""
    if label == NO_LABEL:
        return sums
    labels = np.union1d(sums.labels, [label]).astype(np.int32)
    before, mine = np.searchsorted(labels, sums.labels), np.searchsorted(labels, label)
    counts, added = np.zeros(len(labels), np.int64), np.zeros((len(labels), len(key)), np.float64)
    counts[before], added[before] = sums.counts, sums.sums
    counts[mine] += by
    added[mine] += by * np.asarray(key, np.float64)
    left = counts > 0
    return ClassSums(labels[left], counts[left], added[left])


def total(sums: Iterable[ClassSums], classes: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts [C] int64 and sums [C, D] float64 of several sources together."""
    counts, added = np.zeros(classes, np.int64), np.zeros((classes, width), np.float64)
    for part in sums:
        counts[part.labels] += part.counts
        added[part.labels] += part.sums
    return counts, added


def write(path: Path, sums: ClassSums) -> None:
    """One Arrow file: a row for each class."""
    width = sums.sums.shape[1]
    table = pa.table(
        {
            "label": pa.array(sums.labels, pa.int32()),
            "count": pa.array(sums.counts, pa.int64()),
            "sum": pa.FixedSizeListArray.from_arrays(pa.array(sums.sums.reshape(-1), pa.float64()), width),
        },
        schema=_schema(width),
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read(path: Path, *, classes: int, width: int) -> ClassSums:
    """Read the file by mapping it; its labels must be below `classes` and its keys must have this width."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all().combine_chunks()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise BadMemory(f"{path} is not a table of class sums, or was cut short ({error})") from error
    if table.schema != _schema(width):
        raise BadMemory(f"{path} does not hold sums of keys of {width} numbers")
    if any(table[name].null_count for name in table.column_names):
        raise BadMemory(f"{path} is damaged: values are missing")
    labels = table["label"].to_numpy()
    if len(labels) and not (labels[0] >= 0 and labels[-1] < classes and (np.diff(labels) > 0).all()):
        raise BadMemory(f"{path} is damaged: its labels are not classes of this memory")
    chunks = table["sum"].chunks
    sums = chunks[0].flatten().to_numpy().reshape(-1, width) if chunks else np.zeros((0, width))
    return ClassSums(labels, table["count"].to_numpy(), sums)


def _schema(width: int) -> pa.Schema:
    return pa.schema({"label": pa.int32(), "count": pa.int64(), "sum": pa.list_(pa.float64(), width)})
