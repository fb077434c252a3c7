"""GloVe's word vectors: the published text file, or the folder of arrays inside a PyPI package."""

import pathlib
from collections.abc import Iterator

import numpy as np

INDEX = "*_index.parquet"  # the words of a folder
_LINES_AT_ONCE = 10_000


def words(path: pathlib.Path) -> list[str]:
    """The vocabulary, most frequent first. Word i has id i + 1, since id 0 is padding. A file may have words alone."""
    if path.is_dir():
        from pyarrow import parquet

        return parquet.read_table(_one(path, INDEX)).column("index").to_pylist()
    with path.open(encoding="utf-8") as lines:
        width = len(lines.readline().split()) - 1
        lines.seek(0)
        return [line.rstrip("\n").rsplit(" ", width)[0] for line in lines]


def vectors(path: pathlib.Path) -> np.ndarray:
    """[1 + words, width] float32; row 0 is the padding's, zeros."""
    if path.is_dir():
        file = _one(path, "*_emb.npy")
        try:
            table = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{file} is truncated or damaged: {error}") from error
        if table.ndim != 2:
            raise ValueError(f"{file} has shape {table.shape}; word vectors are a table [words, width]")
        return np.concatenate([np.zeros((1, table.shape[1]), np.float32), table])
    try:
        chunks = list(_text_chunks(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a GloVe file: it is not UTF-8 text ({error})") from error
    return np.concatenate([np.zeros((1, chunks[0].shape[1]), np.float32), *chunks])


def _one(folder: pathlib.Path, pattern: str) -> pathlib.Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise FileNotFoundError(f"{folder} holds no GloVe vectors: there is no {pattern} in it")
    return found[0]


def _text_chunks(path: pathlib.Path) -> Iterator[np.ndarray]:
    """Parses many lines in one call. A word may hold spaces, so numbers are counted from the end."""
    with path.open(encoding="utf-8", errors="strict") as lines:
        width = len(lines.readline().split()) - 1
        lines.seek(0)
        if width < 1:
            raise ValueError(
                f"{path} is not a GloVe file, where each line is a word and its numbers, separated by spaces"
            )
        done = 0
        while block := [line for _, line in zip(range(_LINES_AT_ONCE), lines, strict=False)]:
            numbers = [line.rstrip("\n").split(" ", line.count(" ") - width + 1)[-1] for line in block]
            try:
                rows = np.array(" ".join(numbers).split(), np.float32).reshape(len(block), width)
            except ValueError as error:
                where = f"lines {done + 1} to {done + len(block)}"
                raise ValueError(f"{path}: {where} are not all a word and {width} numbers: {error}") from error
            done += len(block)
            yield rows
