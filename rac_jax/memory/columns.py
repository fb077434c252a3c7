"""The text, label and image reference of each row, as mapped Arrow columns."""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from rac_jax.memory.classes import NO_LABEL
from rac_jax.memory.manifest import BadMemory

TEXT = pa.dictionary(pa.int32(), pa.large_string())
SCHEMA = pa.schema({"text": TEXT, "image": pa.large_string(), "label": pa.int32()})


class Strings(Sequence[str]):
    """Strings by number, read from the file on access: there is no Python object per row."""

    def __init__(self, chunks: Sequence[pa.Array]):
        self._strings = pa.chunked_array(list(chunks), pa.large_string())

    def __len__(self) -> int:
        return len(self._strings)

    def __getitem__(self, number):  # type: ignore[no-untyped-def]  # an int, or a slice
        found = self._strings[int(number)] if not isinstance(number, slice) else self._strings[number]
        return found.to_pylist() if isinstance(number, slice) else found.as_py()

    def __iter__(self) -> Iterator[str]:
        for chunk in self._strings.chunks:
            yield from chunk.to_pylist()

    def parts(self) -> list["Strings"]:
        """The strings in the parts that they were made of: for texts, one of each source."""
        return [Strings([chunk]) for chunk in self._strings.chunks]

    def sha256(self) -> str:
        """The checksum of all strings and their lengths."""
        digest = hashlib.sha256()
        for chunk in self._strings.chunks:
            _, offsets, content = chunk.buffers()
            ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            digest.update(np.diff(ends).tobytes())
            digest.update(memoryview(content)[ends[0] : ends[-1]] if content else b"")
        return digest.hexdigest()

    def take(self, numbers: np.ndarray) -> list[str]:
        """The strings of these numbers [M].

        After a forward pass, which fills the CPU's caches, Arrow's own `take` needs 0.14 ms for 50 strings, and this a
        third of it.
        """
        ends, chunks = self._chunks
        chunk_of = np.searchsorted(ends, numbers, side="right").tolist()
        found = []
        for chunk, number in zip(chunk_of, np.asarray(numbers).tolist(), strict=True):
            first, offsets, content = chunks[chunk]
            start, end = offsets[number - first : number - first + 2].tolist()
            found.append(str(content[start:end], "utf-8"))
        return found

    @functools.cached_property
    def _chunks(self) -> tuple[np.ndarray, list[tuple[int, np.ndarray, memoryview]]]:
        """Where each chunk ends, and for each its first number, the offsets of its strings and their bytes."""
        ends = np.cumsum([len(chunk) for chunk in self._strings.chunks])
        chunks = []
        for chunk, end in zip(self._strings.chunks, ends.tolist(), strict=True):
            _, offsets, content = chunk.buffers()
            inside = np.frombuffer(offsets or b"", np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            chunks.append((end - len(chunk), inside, memoryview(content or b"")))
        return ends, chunks


def make(texts: pa.Array, images: Sequence[str], labels: np.ndarray | None = None) -> pa.Table:
    """The columns of a source: texts, references and labels [N] (−1, or None for all rows: no label)."""
    labels = np.full(len(texts), NO_LABEL) if labels is None else labels
    if not len(texts) == len(images) == len(labels):
        raise ValueError(f"{len(texts)} texts and {len(labels)} labels for {len(images)} images")
    encoded = texts if isinstance(texts, pa.DictionaryArray) else texts.cast(pa.large_string()).dictionary_encode()
    return pa.table(
        {
            "text": encoded.cast(TEXT),
            "image": pa.array(images, pa.large_string()),
            "label": pa.array(np.asarray(labels, np.int32)),
        },
        schema=SCHEMA,
    )


def blank(rows: int) -> pa.Table:
    """The columns of rows that nothing is known about."""
    return make(pa.array([""] * rows, pa.large_string()), [""] * rows)


def labels_of(table: pa.Table) -> np.ndarray:
    """The labels of a source's rows, [N] int32."""
    return np.concatenate([np.zeros(0, np.int32), *map(_numbers, table["label"].chunks)])


def _numbers(array: pa.Array) -> np.ndarray:
    """An int32 array without nulls. Its own to_numpy would import pandas, which takes 0.2 s at every start."""
    return np.frombuffer(array.buffers()[1] or b"", np.int32, len(array), 4 * array.offset)


def relabelled(table: pa.Table, numbers: np.ndarray) -> pa.Table:
    """The columns with label i replaced by numbers[i]."""
    changed = np.append(numbers, NO_LABEL)[labels_of(table)].astype(np.int32)  # −1 reads the last
    return table.set_column(table.column_names.index("label"), "label", pa.array(changed))


def appended(table: pa.Table, text: str, image: str, label: int) -> pa.Table:
    """The columns with one more row."""
    texts = [*table["text"].cast(pa.large_string()).to_pylist(), text]
    images, labels = [*table["image"].to_pylist(), image], np.append(labels_of(table), np.int32(label))
    return make(pa.array(texts, pa.large_string()), images, labels)


def write(path: Path, table: pa.Table) -> None:
    """An Arrow file that can be mapped."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def read(path: Path, rows: int, classes: int) -> pa.Table:
    """The columns in a file, mapped. They must have this many rows, and labels below `classes`."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table.validate(full=True)  # a wrong offset would read outside of the file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadMemory(f"{path} is not an Arrow file, or was cut short ({error})") from error
    if table.schema != SCHEMA:
        raise BadMemory(f"{path} has the columns {table.schema.names}; a memory's are {SCHEMA.names}")
    if len(table) != rows:
        raise BadMemory(f"{path} has {len(table)} texts, but its source has {rows} rows")
    empty = [name for name in table.column_names if table[name].null_count]
    if empty:
        raise BadMemory(f"{path} is damaged: rows without {' and '.join(empty)}")
    labels = labels_of(table)
    if rows and not -1 <= labels.min() <= labels.max() < classes:
        raise BadMemory(f"{path} is damaged: its labels are not classes of this memory")
    return table


def split(tables: Sequence[pa.Table]) -> tuple[Strings, np.ndarray, Strings]:
    """The distinct texts of all sources, which of them each row has ([N] int32), and each row's reference."""
    texts, text_of, images, known = [], [], [], 0
    for table in tables:
        for chunk in table["text"].chunks:
            texts.append(chunk.dictionary)
            text_of.append(_numbers(chunk.indices) + np.int32(known))
            known += len(chunk.dictionary)
        images += table["image"].chunks
    return Strings(texts), np.concatenate([*text_of, np.zeros(0, np.int32)]), Strings(images)
