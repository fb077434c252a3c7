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


def read(memory: Memory, classes: Classes, mesh: Mesh) -> Knowledge:
    """Counts, sums and labels of the memory's rows, by the numbers of `classes`, on every device."""
    numbers = classes.numbers(memory.class_names)
    known = numbers >= 0
    counts, sums = np.zeros(len(classes), np.float32), np.zeros((len(classes), memory.keys.shape[1]), np.float64)
    counts[numbers[known]] = memory.class_counts()[known]
    sums[numbers[known]] = memory.class_sums()[known]
    padded = np.append(numbers, np.int32(-1))  # rows without a label have −1 and read the last
    return sharding.put_replicated(mesh, of_sums(counts, sums, padded[memory.label_of]))


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
