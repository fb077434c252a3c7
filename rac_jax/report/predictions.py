"""What a run said of every image of a split, as arrays and as one Arrow file: all pictures are drawn from it."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

from rac_jax.runtime import files

NEIGHBOURS = ("rows", "similarities")


@dataclasses.dataclass(frozen=True)
class Votes:
    """The answers of one branch."""

    label: np.ndarray  # [N] int32: the class it finds most probable
    probability: np.ndarray  # [N] float32: how probable
    of_true: np.ndarray  # [N] float32: how probable it finds the true class


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The answers of all branches, and the neighbours that they rest on."""

    id: np.ndarray  # [N] int32: the image's place in the split
    label: np.ndarray  # [N] int32: the true class
    votes: dict[str, Votes]  # by branch
    rows: np.ndarray  # [N, k] int32: rows of the memory, nearest first, −1 for none; k = 0 without a memory
    similarities: np.ndarray  # [N, k] float32

    def __len__(self) -> int:
        return len(self.id)

    def right(self, branch: str) -> np.ndarray:
        """Which images a branch classifies rightly: [N] bool."""
        return self.votes[branch].label == self.label


def concatenate(parts: list[Predictions]) -> Predictions:
    """The predictions of several batches, in the order of the split."""
    order = np.argsort(np.concatenate([part.id for part in parts]), kind="stable")

    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays)[order]

    votes = {
        branch: Votes(
            **{
                field.name: joined([getattr(part.votes[branch], field.name) for part in parts])
                for field in dataclasses.fields(Votes)
            }
        )
        for branch in parts[0].votes
    }
    rest = {name: joined([getattr(part, name) for part in parts]) for name in ("id", "label", *NEIGHBOURS)}
    return Predictions(votes=votes, **rest)


def write(path: Path, predictions: Predictions) -> None:
    """One row an image: id, label, three columns a branch (as rac_label), and lists of rows and similarities."""
    columns: dict[str, pa.Array] = {"id": pa.array(predictions.id), "label": pa.array(predictions.label)}
    for branch, votes in predictions.votes.items():
        for field in dataclasses.fields(Votes):
            columns[f"{branch}_{field.name}"] = pa.array(getattr(votes, field.name))
    for name in NEIGHBOURS:
        values = getattr(predictions, name)
        columns[name] = pa.array(list(values), pa.list_(pa.from_numpy_dtype(values.dtype)))
    table = pa.table(columns)
    with files.whole(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as writer:
        writer.write_table(table)


def read(path: Path) -> Predictions:
    """What `write` wrote."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; evaluate the run first")
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all().combine_chunks()
    except pa.ArrowException as error:
        raise ValueError(f"{path} is no Arrow file, or was cut short ({error}); evaluate the run again") from error
    branches = [name.removesuffix("_of_true") for name in table.column_names if name.endswith("_of_true")]
    votes = {
        branch: Votes(**{field.name: table[f"{branch}_{field.name}"].to_numpy() for field in dataclasses.fields(Votes)})
        for branch in branches
    }
    lists = {name: table[name].combine_chunks().flatten().to_numpy().reshape(len(table), -1) for name in NEIGHBOURS}
    return Predictions(table["id"].to_numpy(), table["label"].to_numpy(), votes, **lists)
