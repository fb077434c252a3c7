"""A table of your own: CSV, JSONL or Parquet with the columns path and label and, optionally, caption and split.

Paths are relative to the root or, if that is not set, to the table's folder. Labels are names, which may be numbers.
Without a split column, test and validation images are held out here.
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from rac_jax.data import files, long_tail
from rac_jax.data.dataset import Dataset, texts, with_test
from rac_jax.data.text_files import read_lines, read_text

SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
COLUMNS = ("path", "label", "caption", "split")  # others are not used
Row = tuple[str, dict[str, Any]]  # its position ("animals.csv, line 3"), and its columns


def load(file: str, root: str, *, seed: int, val_share: float, test_share: float) -> Dataset:
    """The shares are of each class's images; they matter where the table has no split column."""
    table = Path(file)
    if not table.is_file():
        raise FileNotFoundError(f"config.data.name is 'table:{file}', and there is no such file")
    folder = Path(root) if root else table.parent
    rows = read_rows(table)
    class_names, labels = _labels(rows)
    check_paths(rows, folder)
    captions = [row.get("caption", "") for _, row in rows]
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
    """The rows of a table, at least one; each has a value in every column that is needed. Values are text.

    A value that is missing (empty, null, NaN) is "". White space around labels, captions and splits is removed, and
    in a CSV also around paths.
    """
    kind = table.suffix.lower()
    if kind == ".csv":
        rows = _read_csv(table)
    elif kind in (".jsonl", ".ndjson"):
        rows = _read_jsonl(table)
    elif kind == ".parquet":
        rows = _read_parquet(table)
    else:
        raise ValueError(f"{table}: a table ends in .csv, .jsonl or .parquet")
    if not rows:
        raise ValueError(f"{table}: no rows")
    columns = list(dict.fromkeys(str(name).strip() for _, row in rows for name in row))
    result = []
    for where, row in rows:
        read = dict.fromkeys(columns, "")
        read |= {str(name).strip(): _text(where, str(name).strip(), value) for name, value in row.items()}
        absent = [name for name in needed if not read.get(name)]
        if absent:
            raise ValueError(f"{where}: no {' and no '.join(absent)}; the columns are {list(read)}")
        result.append((where, read))
    return result


def _text(where: str, name: str, value: Any) -> str:
    """A value as text: 3 and 3.0 are "3", and so is " 3 "."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if name not in COLUMNS:
        return str(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int | float):
        raise ValueError(f"{where}: {name} is {_short(value)}; it must be a text or a number")
    text = str(value) if name == "path" else str(value).strip()
    if name == "label" and text.lower() == "nan":
        raise ValueError(f"{where}: label is {text!r}, which is written where a value is missing")
    return text


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _read_csv(table: Path) -> list[Row]:
    reader = csv.reader(io.StringIO(read_text(table), newline=""), strict=True, skipinitialspace=True)
    rows: list[Row] = []
    header: list[str] = []
    line = 1
    try:
        for values in reader:
            where, line = f"{table}, line {line}", reader.line_num + 1
            values = [value.strip() for value in values]
            if not header:
                header = _header(where, values)
            elif len(values) > len(header):
                raise ValueError(
                    f"{where}: {len(values)} values for {len(header)} columns; a text with commas needs double quotes"
                )
            elif any(values):
                rows.append((where, dict(zip(header, values, strict=False))))
    except csv.Error as error:
        raise ValueError(f"{table}, line {line}: not CSV ({error}); a quote may be open from here on") from error
    return rows


def _header(where: str, names: list[str]) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{where}: two columns are called {twice!r}")
    return names


def _read_jsonl(table: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(read_lines(table), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{table}, line {number}: not a JSON object ({error})") from error
            if not isinstance(row, dict):
                raise ValueError(f"{table}, line {number}: not a JSON object but {_short(row)}")
            rows.append((f"{table}, line {number}", row))
    return rows


def _read_parquet(table: Path) -> list[Row]:
    try:
        content = pyarrow.parquet.read_table(table).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{table}: not a readable Parquet file ({reason})") from error
    return [(f"{table}, row {number}", row) for number, row in enumerate(content)]


def _labels(rows: list[Row]) -> tuple[tuple[str, ...], list[int]]:
    """Class names and each row's label. Numbers keep their order: 10 comes after 9."""
    values = [row["label"] for _, row in rows]
    numbers = all(value.isdecimal() and value.isascii() and len(value) < 10 for value in values)
    class_names = sorted(set(values), key=lambda value: (int(value) if numbers else 0, value))
    label_of = {name: label for label, name in enumerate(class_names)}
    return tuple(class_names), [label_of[value] for value in values]


def check_paths(rows: list[Row], folder: Path) -> None:
    """Check that every image exists and is listed once."""
    first: dict[str, str] = {}
    for where, row in rows:
        path = row["path"]
        if first.setdefault(path, where) != where:
            raise ValueError(f"{where}: {path} is already on {first[path].rpartition(', ')[2]}")
        if not (folder / path).is_file():
            raise FileNotFoundError(f"{where}: there is no file {folder / path}")


def split_of(where: str, row: Mapping[str, str]) -> str:
    """The split of a row."""
    name = row.get("split", "")
    if name.lower() not in SPLITS:
        raise ValueError(f"{where}: split is {name!r}; known: train, val, test")
    return SPLITS[name.lower()]
