"""The predictions of a run for every image of a split, as arrays and as an Arrow file."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

from rac_jax.runtime import files

NEIGHBOURS = ("rows", "similarities")


@dataclasses.dataclass(frozen=True)
class Votes:
    """The answers of one voice."""

    label: np.ndarray  # [N] int32: the most probable class
    probability: np.ndarray  # [N] float32: of that class
    of_true: np.ndarray  # [N] float32: probability of the true class


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The answers of all voices, and the neighbours that were retrieved."""

    id: np.ndarray  # [N] int32: the image's position in the split
    label: np.ndarray  # [N] int32: the true class
    votes: dict[str, Votes]  # by voice
    rows: np.ndarray  # [N, k] int32: rows of the memory, nearest first, −1 for none; k = 0 without a memory
    similarities: np.ndarray  # [N, k] float32

    def __len__(self) -> int:
        return len(self.id)

    def right(self, voice: str) -> np.ndarray:
        """Whether a voice classifies each image correctly: [N] bool."""
        return self.votes[voice].label == self.label


def concatenate(parts: list[Predictions]) -> Predictions:
    """The predictions of several batches, in the order of the split."""
    order = np.argsort(np.concatenate([part.id for part in parts]), kind="stable")

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays)[order]

    votes = {
        voice: Votes(
            **{
                field.name: joined([getattr(part.votes[voice], field.name) for part in parts])
                for field in dataclasses.fields(Votes)
            }
        )
        for voice in parts[0].votes
    }
    rest = {name: joined([getattr(part, name) for part in parts]) for name in ("id", "label", *NEIGHBOURS)}
    return Predictions(votes=votes, **rest)


def write(path: Path, predictions: Predictions) -> None:
    """Write one row per image: id, label, three columns per voice (`base_label`, …), `rows` and `similarities`."""
    columns: dict[str, pa.Array] = {"id": pa.array(predictions.id), "label": pa.array(predictions.label)}
    for voice, votes in predictions.votes.items():
        for field in dataclasses.fields(Votes):
            columns[f"{voice}_{field.name}"] = pa.array(getattr(votes, field.name))
    for name in NEIGHBOURS:
        values = getattr(predictions, name)
        columns[name] = pa.array(list(values), pa.list_(pa.from_numpy_dtype(values.dtype)))
    table = pa.table(columns)
    with files.atomic(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as writer:
        writer.write_table(table)
