"""What a memory knows about the classes of a run, for the voices that are read from it."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh

from rac_jax import sharding
from rac_jax.memory.store import Memory
from rac_jax.models.voices import Knowledge


@dataclasses.dataclass(frozen=True)
class Classes:
    """The classes of a run: first those that it was trained on, then those that only the memory or the data has."""

    names: tuple[str, ...]
    trained: int

    def __len__(self) -> int:
        return len(self.names)

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """The number of each name, [M] int32; −1 for an unknown one."""
        number = {name: i for i, name in enumerate(self.names)}
        return np.array([number.get(name, -1) for name in names], np.int32)


def classes_of(trained: Sequence[str], memory: Memory | None, further: Sequence[str] = ()) -> Classes:
    """The trained classes, those of the memory's rows that a search may return, and `further` ones."""
    names = dict.fromkeys(trained)
    if memory is not None:
        counts = memory.class_counts()
        names |= dict.fromkeys(name for name, count in zip(memory.class_names, counts, strict=True) if count)
    names |= dict.fromkeys(further)
    return Classes(tuple(names), len(trained))


def read(memory: Memory, classes: Classes, mesh: Mesh, row_weight: np.ndarray | None = None) -> Knowledge:
    """Counts, sums and labels of the memory's rows, by the numbers of `classes`, on every device.

    `row_weight` [N] is how much each row's vote counts: see reliability.py.
    """
    numbers = classes.numbers(memory.class_names)
    known = numbers >= 0
    counts, sums = np.zeros(len(classes), np.float32), np.zeros((len(classes), memory.keys.shape[1]), np.float64)
    counts[numbers[known]] = memory.class_counts()[known]
    sums[numbers[known]] = memory.class_sums()[known]
    padded = np.append(numbers, np.int32(-1))  # rows without a label have −1 and read the last
    known_rows = of_sums(counts, sums, padded[memory.label_of])
    if row_weight is not None:
        known_rows = with_weights(known_rows, row_weight, memory.allowed())
    return sharding.put_replicated(mesh, known_rows)


def with_weights(known: Knowledge, row_weight: np.ndarray, allowed: np.ndarray | None) -> Knowledge:
    """Knowledge on the host with a weight for each row [N]; rows that are not `allowed` [N] count for no class."""
    counted = known.row_label >= 0 if allowed is None else allowed & (known.row_label >= 0)
    of_classes = np.bincount(known.row_label[counted], row_weight[counted], minlength=len(known.counts))
    return known.replace(row_weight=row_weight, class_weight=of_classes.astype(np.float32))


def of_sums(counts: np.ndarray, sums: np.ndarray, row_label: np.ndarray) -> Knowledge:
    """Knowledge on the host from counts [L] and sums of keys [L, D] of the classes, and the class of each row [N]."""
    present = counts > 0
    means = sums[present] / counts[present, None]
    centre = means.mean(axis=0) if present.any() else np.zeros(sums.shape[1])
    return Knowledge(
        counts=counts.astype(np.float32),
        sums=sums.astype(np.float32),
        centre=centre.astype(np.float32),
        row_label=row_label,
        offset=np.float32(0.0),
    )


@dataclasses.dataclass(frozen=True)
class Room:
    """How many classes and rows padded knowledge has: its shapes stay the same while an edit adds to them."""

    classes: int
    rows: int

    @classmethod
    def for_more_than(cls, classes: int, rows: int) -> "Room":
        """Room for an eighth more, at least 16 classes and 1,024 rows."""
        return cls(_multiple(classes + max(16, classes // 8), 16), _multiple(rows + max(1024, rows // 8), 1024))

    def holds(self, classes: int, rows: int) -> bool:
        return classes <= self.classes and rows <= self.rows


def _multiple(number: int, of: int) -> int:
    """The next multiple."""
    return -(-number // of) * of


def padded(known: Knowledge, room: Room, mesh: Mesh) -> Knowledge:
    """The same knowledge in arrays of other shapes, which change no answer."""
    counts, sums, row_label = (np.asarray(array) for array in (known.counts, known.sums, known.row_label))
    more_classes, more_rows = room.classes - len(counts), room.rows - len(row_label)
    wider = known.replace(
        counts=np.pad(counts, (0, more_classes), constant_values=-1),
        sums=np.pad(sums, ((0, more_classes), (0, 0))),
        row_label=np.pad(row_label, (0, more_rows), constant_values=-1),
    )
    if known.row_weight is not None:
        row_weight, class_weight = np.asarray(known.row_weight), np.asarray(known.class_weight)
        wider = wider.replace(
            row_weight=np.pad(row_weight, (0, more_rows)), class_weight=np.pad(class_weight, (0, more_classes))
        )
    return sharding.put_replicated(mesh, wider)
