"""A table of your own: CSV, JSONL or Parquet with the columns path and label, perhaps caption, split.

Paths are relative to the root or, if that is not set, to the table's folder. Labels are names, or
numbers from 0 up. Without a split column, test and validation images are held out here.
"""

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet

from rac_jax.data import files, long_tail
from rac_jax.data.dataset import Dataset, texts, with_test

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
Row = tuple[str, dict[str, Any]]  # where it stands ("animals.csv, line 3"), and its columns


def load(file: str, root: str, *, seed: int, val_share: float, test_share: float) -> Dataset:
    """The shares are of each class's images; they matter where the table has no split column."""
    table = Path(file)
    if not table.is_file():
        raise FileNotFoundError(f"config.data.name is 'table:{file}', and there is no such file")
    folder = Path(root) if root else table.parent
    rows = read_rows(table)
    class_names, labels = _labels(rows)
    check_paths(rows, folder)
    captions = [str(row.get("caption") or "") for _, row in rows]
    everything = files.file_split("train", folder, [row["path"] for _, row in rows], labels)
    everything = dataclasses.replace(everything, captions=captions if any(captions) else None)
    held_out = "split" not in rows[0][1]
    if not held_out:
        named = np.array([split_of(where, row) for where, row in rows])
        positions = {name: np.flatnonzero(named == name) for name in ("train", "val", "test") if name in named}
    else:
        positions = long_tail.held_out(everything.labels, {"val": val_share, "test": test_share}, seed)
    splits = {
        name: dataclasses.replace(everything.select(chosen), name=name)
        for name, chosen in positions.items()
        if len(chosen)
    }
    if "train" not in splits:
        raise ValueError(f"{table}: no row is of the split train")
    files.check_every_class(splits["train"], class_names, str(table))
    return Dataset(table.stem, class_names, texts(class_names), with_test(splits), held_out)


def read_rows(table: Path, needed: Sequence[str] = ("path", "label")) -> list[Row]:
    """The rows, each with where it stands; there is at least one, and each has what is needed."""
    if table.suffix == ".csv":
        with table.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            rows = [(f"{table}, line {reader.line_num}", dict(row)) for row in reader]
    elif table.suffix in (".jsonl", ".ndjson"):
        rows = _read_jsonl(table)
    elif table.suffix == ".parquet":
        content = pyarrow.parquet.read_table(table).to_pylist()
        rows = [(f"{table}, row {number}", row) for number, row in enumerate(content)]
    else:
        raise ValueError(f"{table}: a table ends in .csv, .jsonl or .parquet")
    if not rows:
        raise ValueError(f"{table}: no rows")
    for where, row in rows:
        absent = [name for name in needed if row.get(name) in (None, "")]
        if absent:
            raise ValueError(f"{where}: no {' and no '.join(absent)}; the columns are {list(row)}")
    return rows


def _read_jsonl(table: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                rows.append((f"{table}, line {number}", dict(json.loads(line))))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{table}, line {number}: not a JSON object ({error})") from error
    return rows


def _labels(rows: list[Row]) -> tuple[tuple[str, ...], list[int]]:
    """Class names and each row's label. Numbers keep their order; 10 comes after 9."""
    values = [str(row["label"]) for _, row in rows]
    numbers = all(value.isdecimal() for value in values)
    class_names = sorted(set(values), key=lambda value: (int(value) if numbers else 0, value))
    if numbers and [int(name) for name in class_names] != list(range(len(class_names))):
        absent = next(i for i, name in enumerate(class_names) if int(name) != i)
        raise ValueError(
            f"{rows[0][0].rpartition(',')[0]}: labels are numbers up to {class_names[-1]}, without {absent}"
        )
    place = {name: label for label, name in enumerate(class_names)}
    return tuple(class_names), [place[value] for value in values]


def check_paths(rows: list[Row], folder: Path) -> None:
    """Every image is there, and named once."""
    first: dict[str, str] = {}
    for where, row in rows:
        path = str(row["path"])
        if first.setdefault(path, where) != where:
            raise ValueError(f"{where}: {path} is already on {first[path].rpartition(', ')[2]}")
        if not (folder / path).is_file():
            raise FileNotFoundError(f"{where}: there is no file {folder / path}")


def split_of(where: str, row: dict[str, Any]) -> str:
    name = str(row.get("split") or "").lower()
    if name not in SPLITS:
        raise ValueError(f"{where}: split is {row.get('split')!r}; known: train, val, test")
    return SPLITS[name]
